"""What the header of a FIX message must say, before anybody looks at its body."""

from fairtape.core.instants import SECOND, Duration, Instant
from fairtape.formats.fix.admin_messages import SequenceReset
from fairtape.formats.fix.codec import FixMessage, Flaw
from fairtape.formats.fix.dictionary import RejectReason, Tag
from fairtape.formats.fix.fields import parse_instant


def header_flaw(message: FixMessage, now: Instant, *, ours: str, theirs: str, error_max: Duration) -> Flaw | None:
    """Why a header is not that of the other side, here and now."""
    for tag, expected in ((Tag.SENDER_COMP_ID, theirs), (Tag.TARGET_COMP_ID, ours)):
        if message.get(tag) != expected.encode("ascii"):
            return Flaw(RejectReason.COMP_ID_PROBLEM, tag, f"{tag.name} ({tag}) is not that of this session")
    sending_time = message.get(Tag.SENDING_TIME)
    if sending_time is None:
        return Flaw(RejectReason.REQUIRED_TAG_MISSING, Tag.SENDING_TIME, "SendingTime (52) is missing")
    sent_at = parse_instant(sending_time)
    if sent_at is None:
        return Flaw(RejectReason.INCORRECT_DATA_FORMAT, Tag.SENDING_TIME, "SendingTime (52) is no timestamp")
    if abs(now - sent_at) > error_max:
        seconds = error_max // SECOND
        text = f"SendingTime (52) is more than {seconds} s away from the time here"
        return Flaw(RejectReason.SENDING_TIME_ACCURACY, Tag.SENDING_TIME, text)
    first_sent_at = parse_instant(message.get(Tag.ORIG_SENDING_TIME) or b"")
    if first_sent_at is not None and first_sent_at > sent_at:
        text = "OrigSendingTime (122) is later than SendingTime (52)"
        return Flaw(RejectReason.SENDING_TIME_ACCURACY, Tag.ORIG_SENDING_TIME, text)
    return None


def repetition_flaw(message: FixMessage) -> Flaw | None:
    """A repetition must say when it was first sent; a gap fill was never sent before."""
    repeated = message.get(Tag.POSS_DUP_FLAG) == b"Y" and message.msg_type != SequenceReset.MSG_TYPE
    if repeated and message.get(Tag.ORIG_SENDING_TIME) is None:
        text = "OrigSendingTime (122) is missing; a message with PossDupFlag (43) must have one"
        return Flaw(RejectReason.REQUIRED_TAG_MISSING, Tag.ORIG_SENDING_TIME, text)
    return None

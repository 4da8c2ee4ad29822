"""What is sent again: application messages as they were, and gap fills for all that is not worth repeating.

A message that is sent again keeps its number and says so: PossDupFlag, and when it was sent first. Messages of the
session itself are never sent again, for an old heartbeat helps nobody and an old logon would do harm.
"""

from collections.abc import Iterable, Iterator

from fairtape.core.instants import Instant
from fairtape.formats.fix.admin_messages import SEQUENCE_RESET, SequenceReset
from fairtape.formats.fix.codec import Pair, decode, encode
from fairtape.formats.fix.dictionary import HEADER, Tag
from fairtape.formats.fix.fields import format_instant


def header(ours: str, theirs: str, number: int, now: Instant, *, first_sent: bytes | None = None) -> list[Pair]:
    """The fields behind MsgType that every message has."""
    pairs: list[Pair] = [
        (Tag.SENDER_COMP_ID, ours.encode("ascii")),
        (Tag.TARGET_COMP_ID, theirs.encode("ascii")),
        (Tag.MSG_SEQ_NUM, b"%d" % number),
    ]
    if first_sent is not None:
        pairs += [(Tag.POSS_DUP_FLAG, b"Y"), (Tag.ORIG_SENDING_TIME, first_sent)]
    pairs.append((Tag.SENDING_TIME, format_instant(now)))
    return pairs


def compose(fields: Iterable[Pair], head: Iterable[Pair]) -> bytes:
    """The bytes of a message: its type, its header, its body."""
    kind, *body = fields
    return encode([kind, *head, *body])


def repetitions(
    kept: Iterable[tuple[int, bytes]], first: int, last: int, *, ours: str, theirs: str, now: Instant
) -> Iterator[bytes]:
    """The numbers from first to last again: those that are kept, and gap fills between them."""

    def fill(begin: int, end: int) -> bytes:
        gap = SEQUENCE_RESET.write(SequenceReset(gap_fill=True, new_seq_no=end))
        return compose(gap, header(ours, theirs, begin, now, first_sent=format_instant(now)))

    following = first
    for number, octets in kept:
        if number > following:
            yield fill(following, number)
        message = decode(octets)
        first_sent = message.get(Tag.SENDING_TIME) or format_instant(now)
        body = [pair for pair in message.pairs if pair[0] not in HEADER or pair[0] == Tag.MSG_TYPE]
        yield compose(body, header(ours, theirs, number, now, first_sent=first_sent))
        following = number + 1
    if following <= last:
        yield fill(following, last + 1)

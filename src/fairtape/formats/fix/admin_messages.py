"""The messages of the FIX session itself: to log on and off, to be heard, and to ask again for what was lost."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, TypeAlias

from fairtape.formats.fix.dictionary import BusinessReason, RejectReason
from fairtape.formats.fix.fields import FLAG, INTEGER, POSITIVE, TEXT, CodeKind, FixField, FixLayout

RefSeqNum: TypeAlias = Annotated[int, FixField(45, INTEGER)]
RefMsgType: TypeAlias = Annotated[str, FixField(372, TEXT)]
Words: TypeAlias = Annotated[str, FixField(58, TEXT)]
TestReqId: TypeAlias = Annotated[str, FixField(112, TEXT)]

ENCRYPT_NONE: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Logon:
    """Who comes, and how often it will be heard."""

    MSG_TYPE: ClassVar[bytes] = b"A"

    encrypt_method: Annotated[int, FixField(98, INTEGER)] = ENCRYPT_NONE
    heart_bt_int: Annotated[int, FixField(108, INTEGER)]  # seconds
    reset_seq_num: Annotated[bool, FixField(141, FLAG)] | None = None  # both sides begin at 1 again
    username: Annotated[str, FixField(553, TEXT)] | None = None
    password: Annotated[str, FixField(554, TEXT)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Logout:
    """The session is over for now."""

    MSG_TYPE: ClassVar[bytes] = b"5"

    text: Words | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Somebody lives, or answers a test."""

    MSG_TYPE: ClassVar[bytes] = b"0"

    test_req_id: TestReqId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRequest:
    """Answer me with a heartbeat."""

    MSG_TYPE: ClassVar[bytes] = b"1"

    test_req_id: TestReqId


@dataclass(frozen=True, slots=True, kw_only=True)
class ResendRequest:
    """Send these again."""

    MSG_TYPE: ClassVar[bytes] = b"2"

    begin_seq_no: Annotated[int, FixField(7, POSITIVE)]
    end_seq_no: Annotated[int, FixField(16, INTEGER)] = 0  # 0: all that follow


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """A message broke a rule about its fields, and is not taken."""

    MSG_TYPE: ClassVar[bytes] = b"3"

    ref_seq_num: RefSeqNum
    ref_tag_id: Annotated[int, FixField(371, INTEGER)] | None = None
    ref_msg_type: RefMsgType | None = None
    reason: Annotated[RejectReason, FixField(373, CodeKind(RejectReason))] | None = None
    text: Words | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceReset:
    """The next number is another one: because nothing worth repeating stands between, or because all else failed."""

    MSG_TYPE: ClassVar[bytes] = b"4"

    gap_fill: Annotated[bool, FixField(123, FLAG)] | None = None
    new_seq_no: Annotated[int, FixField(36, POSITIVE)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BusinessReject:
    """A message is whole, and the application does not take it."""

    MSG_TYPE: ClassVar[bytes] = b"j"

    ref_seq_num: RefSeqNum | None = None
    ref_msg_type: RefMsgType
    reason: Annotated[BusinessReason, FixField(380, CodeKind(BusinessReason))]
    text: Words | None = None


LOGON: Final = FixLayout.of(Logon)
LOGOUT: Final = FixLayout.of(Logout)
HEARTBEAT: Final = FixLayout.of(Heartbeat)
TEST_REQUEST: Final = FixLayout.of(TestRequest)
RESEND_REQUEST: Final = FixLayout.of(ResendRequest)
REJECT: Final = FixLayout.of(Reject)
SEQUENCE_RESET: Final = FixLayout.of(SequenceReset)
BUSINESS_REJECT: Final = FixLayout.of(BusinessReject)

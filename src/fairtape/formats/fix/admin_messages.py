"""The administrative messages of a FIX session: logon and logout, heartbeats, resend requests, rejects."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, TypeAlias

from fairtape.formats.fix.dictionary import BusinessReason, RejectReason
from fairtape.formats.fix.fields import FLAG, INTEGER, POSITIVE, TEXT, CodeKind, FixField, FixLayout

RefSeqNum: TypeAlias = Annotated[int, FixField(45, INTEGER)]
RefMsgType: TypeAlias = Annotated[str, FixField(372, TEXT)]
FreeText: TypeAlias = Annotated[str, FixField(58, TEXT)]
TestReqId: TypeAlias = Annotated[str, FixField(112, TEXT)]

ENCRYPT_NONE: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Logon:
    """Opens a session, with the login and the heartbeat interval."""

    MSG_TYPE: ClassVar[bytes] = b"A"

    encrypt_method: Annotated[int, FixField(98, INTEGER)] = ENCRYPT_NONE
    heart_bt_int: Annotated[int, FixField(108, INTEGER)]  # seconds
    reset_seq_num: Annotated[bool, FixField(141, FLAG)] | None = None  # both sides begin at 1 again
    username: Annotated[str, FixField(553, TEXT)] | None = None
    password: Annotated[str, FixField(554, TEXT)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Logout:
    """Ends the connection of a session."""

    MSG_TYPE: ClassVar[bytes] = b"5"

    text: FreeText | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Sent in idle periods, or in answer to a test request."""

    MSG_TYPE: ClassVar[bytes] = b"0"

    test_req_id: TestReqId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRequest:
    """Asks for a heartbeat."""

    MSG_TYPE: ClassVar[bytes] = b"1"

    test_req_id: TestReqId


@dataclass(frozen=True, slots=True, kw_only=True)
class ResendRequest:
    """Asks for a range of messages again."""

    MSG_TYPE: ClassVar[bytes] = b"2"

    begin_seq_no: Annotated[int, FixField(7, POSITIVE)]
    end_seq_no: Annotated[int, FixField(16, INTEGER)] = 0  # 0: all that follow


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """A message is rejected, because it breaks a rule about its fields."""

    MSG_TYPE: ClassVar[bytes] = b"3"

    ref_seq_num: RefSeqNum
    ref_tag_id: Annotated[int, FixField(371, INTEGER)] | None = None
    ref_msg_type: RefMsgType | None = None
    reason: Annotated[RejectReason, FixField(373, CodeKind(RejectReason))] | None = None
    text: FreeText | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceReset:
    """Sets the next sequence number: as a gap fill for messages that are not resent, or as a reset after an error."""

    MSG_TYPE: ClassVar[bytes] = b"4"

    gap_fill: Annotated[bool, FixField(123, FLAG)] | None = None
    new_seq_no: Annotated[int, FixField(36, POSITIVE)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BusinessReject:
    """A valid message is rejected by the application."""

    MSG_TYPE: ClassVar[bytes] = b"j"

    ref_seq_num: RefSeqNum | None = None
    ref_msg_type: RefMsgType
    reason: Annotated[BusinessReason, FixField(380, CodeKind(BusinessReason))]
    text: FreeText | None = None


LOGON: Final = FixLayout.of(Logon)
LOGOUT: Final = FixLayout.of(Logout)
HEARTBEAT: Final = FixLayout.of(Heartbeat)
TEST_REQUEST: Final = FixLayout.of(TestRequest)
RESEND_REQUEST: Final = FixLayout.of(ResendRequest)
REJECT: Final = FixLayout.of(Reject)
SEQUENCE_RESET: Final = FixLayout.of(SequenceReset)
BUSINESS_REJECT: Final = FixLayout.of(BusinessReject)

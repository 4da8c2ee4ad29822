"""FIX 4.4: tags, message types and reject reasons, as far as order entry needs them.

Also the sets of the specification: the fields of the header, data fields with their length fields, and fields of
repeating groups, which may occur more than once.
"""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final

DEFINED_MAX: Final = 956  # the last field of FIX 4.4
USER_DEFINED_MIN: Final = 5_000  # the first user-defined field
TAG_MAX: Final = 99_999


class Tag(IntEnum):
    """Fields that the codec and the session use themselves."""

    BEGIN_SEQ_NO = 7
    BEGIN_STRING = 8
    BODY_LENGTH = 9
    CHECK_SUM = 10
    END_SEQ_NO = 16
    MSG_SEQ_NUM = 34
    MSG_TYPE = 35
    NEW_SEQ_NO = 36
    POSS_DUP_FLAG = 43
    SENDER_COMP_ID = 49
    SENDING_TIME = 52
    TARGET_COMP_ID = 56
    ENCRYPT_METHOD = 98
    POSS_RESEND = 97
    HEART_BT_INT = 108
    ORIG_SENDING_TIME = 122
    RESET_SEQ_NUM_FLAG = 141


class RejectReason(IntEnum):
    """SessionRejectReason (373): what is wrong with a complete message."""

    INVALID_TAG = 0
    REQUIRED_TAG_MISSING = 1
    TAG_NOT_FOR_THIS_TYPE = 2
    UNDEFINED_TAG = 3
    TAG_WITHOUT_VALUE = 4
    VALUE_INCORRECT = 5
    INCORRECT_DATA_FORMAT = 6
    COMP_ID_PROBLEM = 9
    SENDING_TIME_ACCURACY = 10
    INVALID_MSG_TYPE = 11
    TAG_TWICE = 13
    TAG_OUT_OF_ORDER = 14
    OTHER = 99


class BusinessReason(IntEnum):
    """BusinessRejectReason (380): why an application rejects a message that the session accepted."""

    OTHER = 0
    UNKNOWN_ID = 1
    UNKNOWN_SECURITY = 2
    UNSUPPORTED_TYPE = 3
    APPLICATION_NOT_AVAILABLE = 4
    CONDITIONAL_FIELD_MISSING = 5
    NOT_AUTHORIZED = 6


HEADER: Final = frozenset(
    {8, 9, 34, 35, 43, 49, 50, 52, 56, 57, 90, 91, 97, 115, 116, 122, 128, 129, 142, 143, 144, 145, 212, 213, 347, 369}
    | {627, 628, 629, 630}
)

DATA: Final[Mapping[int, int]] = MappingProxyType(
    {90: 91, 93: 89, 95: 96, 212: 213, 348: 349, 350: 351, 352: 353, 354: 355, 356: 357, 358: 359, 360: 361, 362: 363}
    | {364: 365, 445: 446, 618: 619, 621: 622}
)
"""Each length field, and the data field that must follow it; data may contain any bytes, separators too."""

LENGTH_OF: Final[Mapping[int, int]] = MappingProxyType({data: length for length, data in DATA.items()})

REPEATABLE: Final = frozenset(
    {372, 385}  # kinds of messages, in Logon
    | {628, 629, 630}  # hops
    | {447, 448, 452, 523, 802, 803}  # parties and their parts
    | {79, 80, 366, 467, 524, 525, 538, 539, 573, 661, 736, 804, 805, 806}  # allocations and their nested parties
    | {336, 625}  # trading sessions
    | {455, 456}  # other names of a security
    | {865, 866, 867, 868}  # events
    | {305, 309, 310, 311, 312, 313, 316, 318, 457, 458, 459, 462, 463, 810, 879, 882}  # underlyings
    | {233, 234, 887, 888, 889}  # stipulations
    | {337, 375, 437, 438, 655}  # contra brokers
    | {137, 138, 139, 891}  # fees
    | {518, 519, 520, 521}  # contract amounts
)
"""Fields of repeating groups: the only ones that may occur more than once in a message."""

ADMIN_TYPES: Final = frozenset({b"0", b"1", b"2", b"3", b"4", b"5", b"A"})
"""Administrative messages: they are never resent, a gap fill replaces them."""

APPLICATION_TYPES: Final = frozenset(
    b"6 7 8 9 B C D E F G H J K L M N P Q R S T V W X Y Z "
    b"a b c d e f g h i j k l m n o p q r s t u v w x y z "
    b"AA AB AC AD AE AF AG AH AI AJ AK AL AM AN AO AP AQ AR AS AT AU AV AW AX AY AZ "
    b"BA BB BC BD BE BF BG BH".split()
)


def is_defined(tag: int) -> bool:
    """Whether FIX 4.4 defines this field, or leaves its number to users."""
    return 1 <= tag <= DEFINED_MAX or USER_DEFINED_MIN <= tag <= TAG_MAX

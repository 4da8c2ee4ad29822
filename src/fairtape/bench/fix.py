"""How fast FIX is read: ours beside `simplefix`, the same file in the same pieces, in turns.

The file is a day of order entry: orders, cancels and reports as traders and markets send them. Both readers find the
messages, take them apart and give the type and the ClOrdID of each, which must be equal. Ours also proves length, check
sum and the order of fields; simplefix does not. Time is the processor's, so that others on the machine do not count,
and the figures are medians of rounds that alternate.
"""

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Final, TypeAlias

from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.formats.fix.codec import FixStream
from fairtape.formats.fix.order_messages import (
    ExecType,
    ExecutionReport,
    FixSide,
    FixTimeInForce,
    NewOrderSingle,
    OrderCancelRequest,
    OrderEntry,
    OrdStatus,
    OrdType,
    write,
)
from fairtape.gateway.session.session import compose, header

MESSAGES: Final = 6_000
FIX_ROUNDS: Final = 5
PIECE: Final = 4_096  # bytes, as a socket brings them: of all sizes, about the best for simplefix
_BEGIN: Final = 1_704_465_000 * SECOND

Identity: TypeAlias = tuple[bytes, bytes]  # type and ClOrdID
Reader: TypeAlias = Callable[[bytes], list[Identity]]


def fix_figures(*, messages: int = MESSAGES, rounds: int = FIX_ROUNDS) -> dict[str, float]:
    """Messages per second and core of both, and how many times ours is the other; the median of all rounds."""
    day = fix_day(messages)
    ours: list[int] = []
    theirs: list[int] = []
    simplefix = _simplefix_reader()
    for _ in range(rounds):
        period, identities = _timed(_read, day)
        ours.append(period)
        period, others = _timed(simplefix, day)
        theirs.append(period)
        assert len(identities) == messages
        assert identities == others
    ratios = [slow / fast for fast, slow in zip(ours, theirs, strict=True)]
    return {
        "fix_messages_per_s": messages * SECOND / median(ours),
        "simplefix_messages_per_s": messages * SECOND / median(theirs),
        "fix_ratio": median(ratios),
    }


def fix_day(messages: int) -> bytes:
    """A file of messages as they stand in the log of a session."""
    return b"".join(
        compose(write(entry), header("TRADER", "FAIRTAPE", number, _BEGIN + number * MILLISECOND))
        for number, entry in enumerate(_entries(messages), 1)
    )


def _entries(messages: int) -> Iterator[OrderEntry]:
    """Of ten messages six are orders, two cancels and two reports."""
    for number in range(messages):
        at = _BEGIN + number * MILLISECOND
        name, side = f"T{number:08}", FixSide.BUY if number % 2 else FixSide.SELL
        price = (10_000 + number % 500) * SECOND // 100
        quantity = (100 + number % 900) * SECOND
        match number % 10:
            case 3 | 7:
                yield OrderCancelRequest(
                    orig_cl_ord_id=f"T{number - 1:08}", cl_ord_id=name, symbol="MSFT", side=side, transact_at=at
                )
            case 5 | 9:
                yield ExecutionReport(
                    order_id=f"F{number}",
                    cl_ord_id=name,
                    exec_id=f"X{number}",
                    exec_type=ExecType.TRADE,
                    ord_status=OrdStatus.FILLED,
                    symbol="MSFT",
                    side=side,
                    last_qty=quantity,
                    last_px=price,
                    leaves_qty=0,
                    cum_qty=quantity,
                    avg_px=price,
                    transact_at=at,
                )
            case _:
                yield NewOrderSingle(
                    cl_ord_id=name,
                    account="ACCOUNT7",
                    symbol="MSFT",
                    side=side,
                    transact_at=at,
                    order_qty=quantity,
                    ord_type=OrdType.LIMIT,
                    price=price,
                    time_in_force=FixTimeInForce.DAY,
                )


def _timed(reader: Reader, day: bytes) -> tuple[int, list[Identity]]:
    begun = time.thread_time_ns()
    identities = reader(day)
    return time.thread_time_ns() - begun, identities


def _read(day: bytes) -> list[Identity]:
    stream = FixStream()
    return [
        (message.msg_type, message.get(11) or b"")
        for at in range(0, len(day), PIECE)
        for message in stream.feed(day[at : at + PIECE])
    ]


def _simplefix_reader() -> Reader:
    try:
        from simplefix import FixParser
    except ImportError:
        raise UserError(
            "simplefix is not installed, and FIX is measured against it; pip install 'fairtape[bench]'"
        ) from None

    def read(day: bytes) -> list[Identity]:
        parser = FixParser()
        identities: list[Identity] = []
        for at in range(0, len(day), PIECE):
            parser.append_buffer(day[at : at + PIECE])
            while (message := parser.get_message()) is not None:
                identities.append((message.get(35), message.get(11)))
        return identities

    return read

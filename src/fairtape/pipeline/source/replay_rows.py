"""What a replay gives: messages of sessions as Arrow batches, read by the edge's own readers.

A replay port carries what was released, as customers hear it: trades, the ends of trades, marks, and payloads that are
none of these. It carries no release marks. So there is no site, no token and no time but the trade's own; those columns
are there and empty, so that queries over journals and over replays read alike.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from fairtape.core.errors import UserError
from fairtape.edge.protocol.session_marks import MARK, OPAQUE, BadMark, decode_mark, decode_opaque
from fairtape.edge.protocol.sessions import Session
from fairtape.edge.service.session_readers import SessionReaders
from fairtape.formats.itch.messages import BadItch
from fairtape.formats.itch.ticker import CanceledPrint, PrintedTrade
from fairtape.market.trades import Trade, encode, records
from fairtape.pipeline.schemas import REPLAYED, Arrow
from fairtape.pipeline.source.payload_columns import trade_columns
from fairtape.pipeline.source.replay_options import ReplaySourceOptions
from fairtape.pipeline.source.replay_sessions import SessionRange

TRADE: Final = "trade"
CORRECTION: Final = "correction"  # the trade that stands in the place of the one that was broken just before
BROKEN: Final = "broken"  # a trade is void; its own number is not told
OPAQUE_KIND: Final = (
    "opaque"  # a payload, or a part of it, behind the head that `fairtape.edge.protocol.session_marks` describes
)
MARK_KIND: Final = "mark"
DIRECTORY: Final = "directory"  # what a session begins and ends with


class _Told(NamedTuple):
    """One message, and what it says."""

    number: int
    kind: str
    message: bytes
    sequence: int | None = None  # in the order, where the message names its own
    source: int | None = None
    trade: Trade | None = None


def replayed(wanted: SessionRange, options: ReplaySourceOptions) -> Iterator[Arrow]:
    """The chosen rows of a range as record batches of the schema that `options.rows` names."""
    interpreter = _Interpreter(wanted.session, options)
    number = max(wanted.first - 1, 1)  # the message before says whether the first one corrects a trade
    for messages in options.replay.messages(wanted.session, number, wanted.last):
        told = [interpreter.told(each, message) for each, message in enumerate(messages, number)]
        number += len(messages)
        chosen = [each for each in told if each.number >= wanted.first and _is_chosen(each, options)]
        if chosen:
            yield _batch(chosen, wanted.session, options)


def _is_chosen(told: _Told, options: ReplaySourceOptions) -> bool:
    if options.symbols is not None and (told.trade is None or told.trade.symbol not in options.symbols):
        return False
    return options.rows == "messages" or told.kind == TRADE


class _Interpreter:
    """Reads the messages of one session, one after the other."""

    def __init__(self, session: str, options: ReplaySourceOptions) -> None:
        self._session = session
        self._options = options
        self._reader = SessionReaders(options.plan_of).of(session)
        self._corrects = False

    def told(self, number: int, message: bytes) -> _Told:
        """What a message says, or a sentence that names it."""
        try:
            return self._told(number, message)
        except (BadItch, BadMark) as error:
            raise UserError(
                f"replay {self._options.replay} gives message {number} of session {self._session}, which cannot be "
                f"read ({error}); is the plan the right one?"
            ) from None

    def _told(self, number: int, message: bytes) -> _Told:
        if message[:1] == MARK:
            return _Told(number, MARK_KIND, message, decode_mark(message).sequence)
        if message[:1] == OPAQUE:
            opaque = decode_opaque(message)
            return _Told(number, OPAQUE_KIND, message, opaque.sequence, opaque.source)
        corrects, self._corrects = self._corrects, False
        match self._reader.read(message):
            case PrintedTrade(sequence, trade):
                return _Told(number, CORRECTION if corrects else TRADE, message, sequence, None, trade)
            case CanceledPrint(corrected=corrected):
                self._corrects = corrected
                return _Told(number, BROKEN, message)
            case _:
                return _Told(number, DIRECTORY, message)


def _batch(told: Sequence[_Told], session: str, options: ReplaySourceOptions) -> Arrow:
    schema = REPLAYED[options.rows]
    name = Session.parse(session)
    assert name is not None
    columns: dict[str, Any] = {
        "stripe": pa.array([name.stripe] * len(told), pa.int32()),
        "session": pa.array([session] * len(told)),
        "stripe_number": pa.array([each.number for each in told]),
        "sequence": pa.array([each.sequence for each in told], pa.int64()),
        "kind": pa.array([each.kind for each in told]),
        "source": pa.array([each.source for each in told], pa.int64()),
        "payload": pa.array([each.message for each in told], pa.binary()),
    }
    if options.rows == "trades":
        columns |= trade_columns(records(b"".join(encode(each.trade) for each in told if each.trade is not None)))
    return pa.RecordBatch.from_arrays(
        [columns.get(field.name, pa.nulls(len(told), field.type)) for field in schema], schema=schema
    )

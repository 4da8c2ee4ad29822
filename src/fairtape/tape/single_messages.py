"""Messages that are no trades, one by one: what a payload says, and the trade that a correction tells of."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fairtape.core.instants import Instant
from fairtape.market import notices
from fairtape.market.notices import BadNotice, Cancel, Correction, decode_notice, is_notice
from fairtape.market.trades import Trade, blank_trades
from fairtape.tape.batches import PLACE_DTYPE, TradeBatch
from fairtape.tape.records import ABSENT, Canceled, Corrected, Message, Single, VenueStatus


def decode_single(payload: bytes, place: Mapping[str, int | bool]) -> Single:
    """The record of a message with this place, whose names are those of PLACE_DTYPE."""
    known = {name: None if value == ABSENT else value for name, value in place.items()}
    return _read(payload, known) if is_notice(payload) else Message(payload=payload, **known)  # type: ignore[arg-type]


def corrected_of(number: int, trade: Trade, at: Instant, place: Mapping[str, Any]) -> Corrected:
    """The record of a correction with this place, in which what does not exist is None."""
    return Corrected(
        number=number,
        venue=trade.venue_name,
        symbol=trade.symbol,
        price=trade.price,
        quantity=trade.quantity,
        trade_id=trade.trade_id,
        flags=trade.flags,
        traded_at=trade.traded_at,
        corrected_at=at,
        **place,
    )


def _read(payload: bytes, place: Mapping[str, Any]) -> Single:
    try:
        notice = decode_notice(payload)
    except BadNotice:
        return Message(payload=payload, **place)
    match notice:
        case Cancel(number, venue, symbol, at):
            return Canceled(number=number, venue=venue, symbol=symbol, canceled_at=at, **place)
        case Correction(number, trade, at):
            return corrected_of(number, trade, at, place)
        case notices.VenueStatus(venue, status, since):
            return VenueStatus(venue=venue, status=status, since=since, **place)


def batch_of(corrected: Corrected) -> TradeBatch:
    """The trade as it really was: a lot of one."""
    trades = blank_trades(1)
    for name in ("venue", "symbol", "price", "quantity", "trade_id", "flags", "traded_at"):
        trades[name] = getattr(corrected, name)
    places = np.zeros(1, PLACE_DTYPE)
    for name in PLACE_DTYPE.names or ():
        value = getattr(corrected, name)
        places[name] = ABSENT if value is None else value
    return TradeBatch(trades, places)

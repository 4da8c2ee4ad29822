"""The messages of the native protocol: JSON objects, one per line. `docs/how-to/trade.md` documents them for clients.

Prices and quantities are decimal text, because a JSON number is a float in most languages. Fields have the names of the
values' fields; a missing field has the value's default.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from fairtape.exchange.orders import Cancel, NewOrder, OrderType, Replace, SelfTrade, Side, TimeInForce
from fairtape.gateway.core.events import EventKind, OrderEvent, RequestKind
from fairtape.market.prices import BadNumber, format_fixed, parse_fixed

LINE_MAX: Final = 4_096  # bytes of a line from a client
_FIXED: Final = ("price", "stop_price", "quantity", "filled", "open", "last_price", "last_quantity")
_KNOWN: Final = {
    "order": frozenset(
        {"account", "client_id", "symbol", "side", "quantity", "price", "stop_price", "order_type"}
        | {"time_in_force", "post_only", "self_trade"}
    ),
    "cancel": frozenset({"account", "client_id"}),
    "replace": frozenset({"account", "client_id", "new_client_id", "quantity", "price"}),
}
_ENVELOPE: Final = frozenset({"do", "session", "request"})


class BadNativeMessage(ValueError):
    """An invalid line; the text names the field, the value and what is expected."""


def encode_line(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def parse_line(line: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        raise BadNativeMessage("the line is not JSON; each line is one object") from None
    if not isinstance(fields, dict):
        raise BadNativeMessage("the line is JSON but not an object; each line is one object")
    return fields


def request_of(fields: Mapping[str, Any], login: str) -> NewOrder | Cancel | Replace:
    """The request in an object. Without an account it is for the login's own account."""
    kind = fields["do"]
    if unknown := fields.keys() - _KNOWN[kind] - _ENVELOPE:
        raise BadNativeMessage(f"field {min(unknown)!r} is not known in {kind!r}")
    account, name = _text(fields, "account", login), _text(fields, "client_id")
    match kind:
        case "order":
            return NewOrder(
                0,
                0,
                account,
                name,
                _text(fields, "symbol"),
                Side(_choice(fields, "side", Side)),
                _fixed(fields, "quantity"),
                _fixed(fields, "price", 0),
                _fixed(fields, "stop_price", 0),
                OrderType(_choice(fields, "order_type", OrderType, OrderType.LIMIT)),
                TimeInForce(_choice(fields, "time_in_force", TimeInForce, TimeInForce.DAY)),
                fields.get("post_only") is True,
                SelfTrade(_choice(fields, "self_trade", SelfTrade, SelfTrade.CANCEL_NEWEST)),
            )
        case "cancel":
            return Cancel(0, 0, account, name)
        case _:
            new_name = _text(fields, "new_client_id")
            return Replace(0, 0, account, name, new_name, _fixed(fields, "quantity"), _fixed(fields, "price"))


def request_fields(request: NewOrder | Cancel | Replace) -> dict[str, Any]:
    """The object of a request, as `request_of` reads it."""
    match request:
        case NewOrder():
            return {
                "do": "order",
                "account": request.account,
                "client_id": request.client_id,
                "symbol": request.symbol,
                "side": request.side.name.lower(),
                "quantity": format_fixed(request.quantity),
                "price": format_fixed(request.price),
                "stop_price": format_fixed(request.stop_price),
                "order_type": request.order_type.name.lower(),
                "time_in_force": request.time_in_force.name.lower(),
                "post_only": request.post_only,
                "self_trade": request.self_trade.name.lower(),
            }
        case Cancel():
            return {"do": "cancel", "account": request.account, "client_id": request.order_id}
        case Replace():
            return {
                "do": "replace",
                "account": request.account,
                "client_id": request.order_id,
                "new_client_id": request.client_id,
                "quantity": format_fixed(request.quantity),
                "price": format_fixed(request.price),
            }


def event_fields(event: OrderEvent) -> dict[str, Any]:
    fields: dict[str, Any] = event._asdict()
    fields |= {name: format_fixed(fields[name]) for name in _FIXED}
    for name in ("side", "order_type", "time_in_force"):
        fields[name] = fields[name].name.lower()
    return {"is": "event", **fields, "kind": event.kind.value, "asked": event.asked.value, "spent": str(event.spent)}


def event_of(fields: Mapping[str, Any]) -> OrderEvent:
    """The event in an object. Raises `BadNativeMessage` for anything that `event_fields` does not produce."""
    try:
        values = {name: fields[name] for name in OrderEvent._fields}
        values |= {name: parse_fixed(values[name]) for name in _FIXED}
        values["side"] = Side[values["side"].upper()]
        values["order_type"] = OrderType[values["order_type"].upper()]
        values["time_in_force"] = TimeInForce[values["time_in_force"].upper()]
        values |= {
            "kind": EventKind(values["kind"]),
            "asked": RequestKind(values["asked"]),
            "spent": int(values["spent"]),
        }
        return OrderEvent(**values)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise BadNativeMessage(f"the event cannot be read: {error}") from None


def _text(fields: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = fields.get(name, default)
    if not isinstance(value, str) or not value:
        raise BadNativeMessage(f"{name} is {value!r}; give text")
    return value


def _fixed(fields: Mapping[str, Any], name: str, default: int | None = None) -> int:
    if name not in fields and default is not None:
        return default
    value = fields.get(name)
    if not isinstance(value, str):
        raise BadNativeMessage(f"{name} is {value!r}; give decimal text such as '101.25'")
    try:
        return parse_fixed(value)
    except BadNumber as error:
        raise BadNativeMessage(f"{name} is refused: {error}") from None


def _choice(fields: Mapping[str, Any], name: str, choices: Any, default: int | None = None) -> int:
    value = fields.get(name)
    if value is None and default is not None:
        return default
    known = {choice.name.lower(): int(choice) for choice in choices}
    if not isinstance(value, str) or value not in known:
        raise BadNativeMessage(f"{name} is {value!r}; give one of {', '.join(known)}")
    return known[value]

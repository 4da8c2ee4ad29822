"""What a customer asks for, in a query or in a message, and the error for what cannot be served.

A query such as `?symbols=AAPL,MSFT&form=binary&from=1000` and the message

    {"do": "subscribe", "symbols": ["AAPL", "MSFT"], "form": "binary", "from": 1000}

are equivalent. Every field is optional; without `symbols` or `stripes`, all of them are subscribed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

from fairtape.client.errors import ClientError
from fairtape.client.selection import Selection
from fairtape.tape.feed import AtInstant, AtNumber, Beginning
from fairtape.web.encoding import Encoding
from fairtape.wire.frames import NUMBER_MAX

SYMBOLS_MAX: Final = 1_000  # of one customer
STRIPES_MAX: Final = 1_000
FIELDS_MAX: Final = 16  # of a query
SHOWN_MAX: Final = 60  # characters of a bad value in an error

BEGINNING: Final = "beginning"

_FIELDS: Final = ("symbols", "stripes", "form", "policy", "from", "since_ns", "formation", "snapshot")

Choice = TypeVar("Choice", bound=Enum)


class Refusal(Exception):
    """A request that cannot be served: the field, what was found, and the remedy."""

    def __init__(self, field: str, sentence: str) -> None:
        super().__init__(sentence)
        self.field = field


class Overload(Refusal):
    """A request that cannot be served now, because a limit is reached."""


class SlowPolicy(Enum):
    """What happens when the backlog of a slow customer is full."""

    SKIP = "skip"  # the oldest records are left out, and a `skipped` says how many
    CONFLATE = "conflate"  # the latest trade of each symbol is kept, and a `merged` says how many are not
    DISCONNECT = "disconnect"  # the connection ends, and says from which number to go on


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What one customer wants, from where on, and what to do when it is slow."""

    symbols: tuple[str, ...] | None = None
    stripes: tuple[int, ...] | None = None
    encoding: Encoding = Encoding.JSON
    policy: SlowPolicy = SlowPolicy.SKIP
    start: AtNumber | AtInstant | Beginning | None = None  # None: what comes next
    formation: int | None = None  # the last one that a resuming customer knows; the replay begins with a Break since
    snapshot: bool = False  # the last trade of each symbol first

    @property
    def selection(self) -> Selection:
        return Selection(self.symbols, self.stripes)


class RequestVerb(Enum):
    """The `do` of a customer's message."""

    SUBSCRIBE = "subscribe"  # in place of what was subscribed before
    UNSUBSCRIBE = "unsubscribe"
    SNAPSHOT = "snapshot"  # the last trade of each symbol that is subscribed, once


def subscription_of_query(query: str) -> Subscription:
    """The subscription in a query; the values of a list are separated by commas."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=FIELDS_MAX)
    except ValueError:
        raise Refusal("query", f"the query is {_shown(query)}; expected fields such as symbols=AAPL&from=1") from None
    found: dict[str, Any] = {}
    for name, text in pairs:
        if name in found:
            raise Refusal(name, f"{name} is given twice; separate the values of a list by commas")
        found[name] = text
    for name in ("symbols", "stripes"):
        if name in found:
            found[name] = found[name].split(",")
    if "stripes" in found:
        found["stripes"] = [_number("stripes", text) for text in found["stripes"]]
    if found.get("from") not in (None, BEGINNING):
        found["from"] = _number("from", found["from"])
    if "formation" in found:
        found["formation"] = _number("formation", found["formation"])
    if "snapshot" in found:
        found["snapshot"] = _boolean(found["snapshot"])
    return _subscription(found)


def request_of(text: bytes) -> tuple[RequestVerb, Subscription]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise Refusal("message", f"the message is {_shown(text)}; expected a JSON object") from None
    if not isinstance(content, dict):
        raise Refusal("message", f'the message is {_shown(text)}; expected an object such as {{"do":"snapshot"}}')
    verb = _choice("do", content.pop("do", None), RequestVerb)
    if verb is not RequestVerb.SUBSCRIBE and content:
        name = next(iter(content))
        raise Refusal(name[:SHOWN_MAX], f"{name[:SHOWN_MAX]} is given, and {verb.value} has no fields; leave it out")
    return verb, _subscription(content)


def _subscription(found: Mapping[str, Any]) -> Subscription:
    for name in found:
        if name not in _FIELDS:
            raise Refusal(name[:SHOWN_MAX], f"{_shown(name)} is no field; there are {', '.join(_FIELDS)}")
    symbols, stripes = _list("symbols", found, SYMBOLS_MAX), _list("stripes", found, STRIPES_MAX)
    field = "symbols" if symbols is not None else "stripes"
    try:
        selection = Selection.of(symbols, stripes)
    except ClientError as error:
        raise Refusal(field, str(error)) from None
    start, snapshot, formation = _start(found), found.get("snapshot", False), found.get("formation")
    if not isinstance(snapshot, bool):
        raise Refusal("snapshot", f"snapshot is {_shown(snapshot)}; expected true or false")
    if snapshot and start is not None:
        raise Refusal("snapshot", "snapshot and from are both given; a snapshot is of now, so leave one of them out")
    if formation is not None and not _is_number(formation, 0):
        raise Refusal("formation", f"formation is {_shown(formation)}; expected the last formation that you know of")
    return Subscription(
        symbols=selection.symbols,
        stripes=selection.stripes,
        encoding=_choice("form", found.get("form", "json"), Encoding),
        policy=_choice("policy", found.get("policy", "skip"), SlowPolicy),
        start=start,
        formation=formation,
        snapshot=snapshot,
    )


def _start(found: Mapping[str, Any]) -> AtNumber | AtInstant | Beginning | None:
    number, since = found.get("from"), found.get("since_ns")
    if number is not None and since is not None:
        raise Refusal("since_ns", "from and since_ns are both given; begin with a number or with an instant")
    if since is not None:
        # Text, because an instant does not fit a JSON number.
        return AtInstant(_number("since_ns", since if isinstance(since, str) else str(since)))
    if number is None:
        return None
    if number == BEGINNING:
        return Beginning()
    if not _is_number(number, 1):
        raise Refusal("from", f"from is {_shown(number)}; expected a number of the order, 1 or above, or {BEGINNING}")
    return AtNumber(number)


def _is_number(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= NUMBER_MAX


def _list(name: str, found: Mapping[str, Any], most: int) -> list[Any] | None:
    values = found.get(name)
    if values is None or values == ["*"]:
        return None
    if not isinstance(values, list) or not 1 <= len(values) <= most:
        raise Refusal(name, f"{name} is {_shown(values)}; expected a list of 1 to {most:,}, or leave it out for all")
    return values


def _choice(field: str, value: object, kind: type[Choice]) -> Choice:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(each.value for each in kind)
        raise Refusal(field, f"{field} is {_shown(value)}; expected one of {known}") from None


def _number(field: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > len(str(NUMBER_MAX)):
        raise Refusal(field, f"{field} is {_shown(text)}; expected a whole number")
    return int(text)


def _boolean(text: str) -> bool:
    if text not in ("0", "1", "false", "true"):
        raise Refusal("snapshot", f"snapshot is {_shown(text)}; expected 1 or 0")
    return text in ("1", "true")


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= SHOWN_MAX else f"{shown[:SHOWN_MAX]}…"

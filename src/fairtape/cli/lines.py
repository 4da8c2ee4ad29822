"""The lines of the tape: a trade or a change of formation, for a person or as one JSON object."""

import json
from collections.abc import Mapping
from typing import NamedTuple

from fairtape.cli.journal import format_instant
from fairtape.core.effects import FormationChange, Release
from fairtape.market.notices import Notice, VenueStatus, in_words
from fairtape.market.prices import format_fixed
from fairtape.ring.membership.layout import decode_formation
from fairtape.wire.frames import Malformed, NodeId


class TradeRecord(NamedTuple):
    """A trade as its record has it."""

    kind: int
    version: int
    flags: int
    venue: bytes
    symbol: bytes
    price: int
    quantity: int
    traded_at: int
    trade_id: int


class TextLines:
    """Columns for a person."""

    def __init__(self, names: Mapping[NodeId, str]) -> None:
        """`names` are those of sources and sites; whoever has none is a number."""
        self._names = names

    def trade(self, sequence: int, committed_at: str, release: Release, source: NodeId, trade: TradeRecord) -> str:
        """A trade in its place in the order, and when it was due."""
        mark = "  late" if release.late else ""
        name, venue, symbol = _name(source, self._names), trade.venue.decode(), trade.symbol.decode()
        return (
            f"{sequence:>9}  {committed_at}  {name:<5} {venue:<12} {symbol:<16}"
            f" {format_fixed(trade.price):>14} {format_fixed(trade.quantity):>14}{mark}\n"
        )

    def notice(self, sequence: int, committed_at: str, release: Release, source: NodeId, notice: Notice) -> str:
        """What a venue says beside its trades."""
        mark = "  late" if release.late else ""
        return f"{sequence:>9}  {committed_at}  {_name(source, self._names):<5} {in_words(notice)}{mark}\n"

    def change(self, change: FormationChange) -> str:
        """A change of formation, where it stands in the order."""
        members = " ".join(_members(change, self._names))
        told = f"formation {change.formation}{members and f' of {members}'}, from number {change.sequence} on"
        if change.broken:
            told = f"BREAK  {told}; sites that are lost may have used these numbers otherwise"
        else:
            told = f"{'FORMATION' if change.formation == 1 else 'REFORMATION'}  {told}"
        return f"{'-':>9}  {format_instant(change.installed_at)}  {told}\n"


class JsonLines:
    """One object per line, for a program."""

    def __init__(self, names: Mapping[NodeId, str]) -> None:
        self._names = names

    def trade(self, sequence: int, _committed_at: str, release: Release, source: NodeId, trade: TradeRecord) -> str:
        """A trade in its place in the order."""
        return _packed(
            {
                **self._place("trade", sequence, release, source),
                "venue": trade.venue.decode(),
                "symbol": trade.symbol.decode(),
                "price": format_fixed(trade.price),
                "quantity": format_fixed(trade.quantity),
                "traded_at_ns": trade.traded_at,
                "trade_id": trade.trade_id,
            }
        )

    def notice(self, sequence: int, _committed_at: str, release: Release, source: NodeId, notice: Notice) -> str:
        """What a venue says beside its trades."""
        return _packed(
            {
                **self._place("notice", sequence, release, source),
                "revises": None if isinstance(notice, VenueStatus) else notice.number,
                "notice": in_words(notice),
            }
        )

    def change(self, change: FormationChange) -> str:
        """A change of formation, with the fields that `fairtape journal cat` gives it."""
        return _packed(
            {
                "kind": "formation",
                "formation": change.formation,
                "broken": change.broken,
                "token": change.token,
                "sequence": change.sequence,
                "installed_at_ns": change.installed_at,
                "members": _members(change, self._names),
            }
        )

    def _place(self, kind: str, sequence: int, release: Release, source: NodeId) -> dict[str, object]:
        """What every message has."""
        return {
            "kind": kind,
            "sequence": sequence,
            "commit_at_ns": release.commit_at,
            "late": release.late,
            "source": _name(source, self._names),
        }


def _packed(fields: Mapping[str, object]) -> str:
    return json.dumps(fields, separators=(",", ":")) + "\n"


def _name(node: NodeId, names: Mapping[NodeId, str]) -> str:
    return names.get(node) or str(node)


def _members(change: FormationChange, names: Mapping[NodeId, str]) -> list[str]:
    """Who is in it; nobody is named where the layout is of a version that this program does not read."""
    try:
        return [_name(member, names) for member in decode_formation(change.layout).members]
    except Malformed:
        return []

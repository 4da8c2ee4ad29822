"""A reference implementation of the tables: plain loops over journals, row by row.

It shares with the pipeline only the codecs. Every function gives rows as dictionaries with the columns of the table of
its name, so that a test can compare them, integer by integer.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from fairtape.core.effects import FormationChange, Ordered, Release
from fairtape.core.instants import SECOND
from fairtape.exchange.orders import BadOrder, Cancel, NewOrder, Replace
from fairtape.exchange.orders import decode as decode_order
from fairtape.journal import JournalEntry, JournalReader
from fairtape.market.notices import BadNotice, CorrectionNotice, StatusNotice, decode_notice
from fairtape.market.trades import BadTrade, PublishedTrade, decode
from fairtape.ring.membership.layout import decode_formation
from fairtape.wire.blocks import unpack_messages

Row = dict[str, Any]
DAY = 86_400 * SECOND


class ReferenceTables:
    """All journals of all stripes, in memory."""

    def __init__(self, journals: Iterable[Path]) -> None:
        self.tokens: dict[int, dict[int, Ordered]] = defaultdict(dict)  # by stripe and token
        self.marks: dict[tuple[int, int], list[tuple[Ordered, Release]]] = {}  # by stripe and site
        self.changes: dict[int, dict[int, list[FormationChange]]] = defaultdict(lambda: defaultdict(list))
        for path in journals:
            self._read(path)

    def _read(self, path: Path) -> None:
        journal = JournalReader.open(path)
        summary = next(iter(journal.summaries()))
        released = self.marks.setdefault((summary.stripe, summary.site), [])
        with journal.entries() as cursor:
            for entry in cursor.everything():
                if not isinstance(entry, JournalEntry):
                    self.changes[summary.stripe][entry.change.formation].append(entry.change)
                elif entry.release is not None:
                    self.tokens[summary.stripe][entry.ordered.token] = entry.ordered
                    released.append((entry.ordered, entry.release))

    def messages(self, stripe: int) -> Iterable[tuple[int, Ordered, int, bytes]]:
        """Number, token, source and payload of all messages of a stripe, in order."""
        for _, ordered in sorted(self.tokens[stripe].items()):
            for span in ordered.spans:
                for body, count in zip(span.bodies, span.counts, strict=True):
                    for step, payload in enumerate(unpack_messages(body, count)):
                        yield span.sequence + step, ordered, span.source, payload

    def trades(self) -> list[tuple[int, int, Ordered, int, PublishedTrade]]:
        found = []
        for stripe in sorted(self.tokens):
            for number, ordered, source, payload in self.messages(stripe):
                try:
                    found.append((stripe, number, ordered, source, decode(payload)))
                except BadTrade:
                    continue
        return found

    def entered(self) -> list[tuple[int, int, Ordered, int, int]]:
        """Stripe, number, token, source and instant of entry of everything that says when it was entered."""
        found = [
            (stripe, number, ordered, source, each.traded_at) for stripe, number, ordered, source, each in self.trades()
        ]
        for stripe in sorted(self.tokens):
            for number, ordered, source, payload in self.messages(stripe):
                try:
                    request = decode_order(payload)
                except BadOrder:
                    continue
                if isinstance(request, NewOrder | Cancel | Replace):
                    found.append((stripe, number, ordered, source, request.entered_at))
        return sorted(found, key=lambda each: each[:2])

    def sales(self) -> list[Row]:
        open_: dict[tuple[int, int], Row] = {}
        for stripe in sorted(self.tokens):
            for number, ordered, source, payload in self.messages(stripe):
                try:
                    trade = decode(payload)
                except BadTrade:
                    self._heed(open_, stripe, number, source, payload)
                    continue
                open_[stripe, number] = {
                    "stripe": stripe,
                    "sequence": number,
                    "number": number,
                    "source": source,
                    "acknowledged_at_ns": ordered.acknowledged_at,
                    "venue": trade.venue_name,
                    "symbol": trade.symbol,
                    "price": trade.price,
                    "quantity": trade.quantity,
                    "traded_at_ns": trade.traded_at,
                }
        return sorted(open_.values(), key=lambda row: (row["stripe"], row["sequence"]))

    def _heed(self, open_: dict[tuple[int, int], Row], stripe: int, number: int, source: int, payload: bytes) -> None:
        try:
            notice = decode_notice(payload)
        except BadNotice:
            return
        if isinstance(notice, StatusNotice) or (stripe, notice.number) not in open_:
            return
        wrong = open_[stripe, notice.number]
        about = notice.trade if isinstance(notice, CorrectionNotice) else notice
        venue = about.venue_name if isinstance(about, PublishedTrade) else about.venue
        if (source, venue, about.symbol) != (wrong["source"], wrong["venue"], wrong["symbol"]):
            return
        del open_[stripe, notice.number]
        if isinstance(notice, CorrectionNotice):
            right = {"price": notice.trade.price, "quantity": notice.trade.quantity}
            open_[stripe, number] = wrong | right | {"traded_at_ns": notice.trade.traded_at, "number": number}

    def bars(self, period: int) -> list[Row]:
        bars: dict[tuple[str, int], Row] = {}
        for sale in sorted(self.sales(), key=lambda row: (row["acknowledged_at_ns"], row["stripe"], row["sequence"])):
            key = sale["symbol"], sale["traded_at_ns"] // period * period
            price = sale["price"]
            bar = bars.setdefault(key, {"open": price, "high": price, "low": price, "volume": 0, "trades": 0})
            bar |= {"high": max(bar["high"], price), "low": min(bar["low"], price), "close": price}
            bar |= {"volume": bar["volume"] + sale["quantity"], "trades": bar["trades"] + 1}
        return [{"symbol": symbol, "period_at_ns": at} | bar for (symbol, at), bar in bars.items()]

    def vwap(self) -> list[Row]:
        paid: dict[tuple[str, int], list[int]] = {}
        for sale in self.sales():
            sums = paid.setdefault((sale["symbol"], sale["traded_at_ns"] // DAY * DAY), [0, 0, 0])
            sums[:] = [sums[0] + sale["price"] * sale["quantity"], sums[1] + sale["quantity"], sums[2] + 1]
        return [
            {"symbol": symbol, "period_at_ns": at, "notional": n, "volume": v, "trades": t, "vwap": _toward_zero(n, v)}
            for (symbol, at), (n, v, t) in paid.items()
        ]

    def spreads(self) -> list[Row]:
        by_token: dict[tuple[int, int], list[tuple[Ordered, Release]]] = defaultdict(list)
        for (stripe, _), marks in self.marks.items():
            for ordered, mark in marks:
                by_token[stripe, ordered.token].append((ordered, mark))
        rows = []
        for (stripe, token), found in by_token.items():
            at = [mark.released_at for _, mark in found]
            latest = max(mark.released_at - mark.clock_bound for _, mark in found)
            earliest = min(mark.released_at + mark.clock_bound for _, mark in found)
            ordered, mark = found[0]
            rows.append({
                "stripe": stripe, "formation": ordered.formation, "token": token, "sequence": ordered.sequence,
                "messages": ordered.count, "sites": len(found), "acknowledged_at_ns": ordered.acknowledged_at,
                "commit_at_ns": mark.commit_at, "first_released_at_ns": min(at), "last_released_at_ns": max(at),
                "spread_ns": max(at) - min(at), "window_ns": max(latest - earliest, 0),
                "late_sites": sum(mark.late for _, mark in found),
            })  # fmt: skip
        return rows

    def spread_distribution(self) -> list[Row]:
        values: dict[tuple[int, str], list[int]] = defaultdict(list)
        for row in self.spreads():
            if row["sites"] > 1:
                for measure in ("spread", "window"):
                    values[row["stripe"], measure] += [row[f"{measure}_ns"]] * row["messages"]
        return [{"stripe": stripe, "measure": name} | ranks(found) for (stripe, name), found in values.items()]

    def latency(self) -> list[Row]:
        values: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for (stripe, site), marks in self.marks.items():
            released = {ordered.token: mark.released_at for ordered, mark in marks}
            for of, _, ordered, source, entered_at in self.entered():
                if of == stripe and ordered.token in released:
                    values[stripe, site, source].append(released[ordered.token] - entered_at)
        return [
            {"stripe": stripe, "site": site, "source": source} | ranks(found)
            for (stripe, site, source), found in values.items()
        ]

    def hold(self) -> list[Row]:
        return [
            {"stripe": stripe, "site": site}
            | ranks([mark.released_at - o.acknowledged_at for o, mark in marks for _ in range(o.count)])
            for (stripe, site), marks in self.marks.items()
        ]

    def lateness(self) -> list[Row]:
        rows = []
        for (stripe, site), marks in self.marks.items():
            total, late = sum(mark.count for _, mark in marks), sum(mark.count for _, mark in marks if mark.late)
            rows.append(
                {"stripe": stripe, "site": site, "deliveries": total, "late": late, "late_fraction": late / total}
            )
        return rows

    def pairs(self) -> list[Row]:
        pairs: Counter[tuple[int, int, int]] = Counter()
        kept: Counter[tuple[int, int, int]] = Counter()
        for stripe in self.tokens:
            entered = sorted((at, number, source) for of, number, _, source, at in self.entered() if of == stripe)
            for (at, number, source), (later_at, later, other) in pairwise(entered):
                if at < later_at and source != other:
                    pairs[stripe, source, other] += 1
                    kept[stripe, source, other] += number < later
        names = ("stripe", "earlier_source", "later_source")
        return [dict(zip(names, key, strict=True)) | {"pairs": n, "in_order": kept[key]} for key, n in pairs.items()]

    def portal(self, stripe: int, ordered: Ordered) -> int:
        return decode_formation(self.changes[stripe][ordered.formation][0].layout).holder(ordered.token)

    def portals(self) -> list[Row]:
        tokens: dict[tuple[int, int, int], set[int]] = defaultdict(set)
        messages: Counter[tuple[int, int, int]] = Counter()
        whole: Counter[tuple[int, int]] = Counter()
        for stripe in self.tokens:
            for _, ordered, source, _ in self.messages(stripe):
                key = stripe, self.portal(stripe, ordered), source
                tokens[key].add(ordered.token)
                messages[key] += 1
                whole[stripe, source] += 1
        names = ("stripe", "portal", "source")
        return [
            dict(zip(names, key, strict=True))
            | {"tokens": len(tokens[key]), "messages": n, "source_messages": whole[key[0], key[2]]}
            for key, n in messages.items()
        ]

    def delays(self) -> list[Row]:
        values: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for stripe, _, ordered, source, entered_at in self.entered():
            values[stripe, source, self.portal(stripe, ordered)].append(ordered.acknowledged_at - entered_at)
        names = ("stripe", "source", "portal")
        return [dict(zip(names, key, strict=True)) | ranks(found) for key, found in values.items()]

    def clocks(self) -> list[Row]:
        rows = []
        for (stripe, site), marks in self.marks.items():
            bounds = ranks([mark.clock_bound for _, mark in marks])
            back = [one.released_at - other.released_at for (_, one), (_, other) in pairwise(marks)]
            rows.append({
                "stripe": stripe, "site": site, "releases": len(marks), "bound_min_ns": bounds["least"],
                "bound_p50_ns": bounds["p50"], "bound_max_ns": bounds["most"],
                "early_releases": sum(mark.released_at < mark.commit_at for _, mark in marks),
                "steps_back": sum(step > 0 for step in back), "step_max_ns": max([0, *back]),
            })  # fmt: skip
        return rows

    def formations(self) -> list[Row]:
        return [
            {"stripe": stripe, "formation": number, "token": noted[0].token, "broken": noted[0].broken}
            | {"sites": len(noted), "members": list(decode_formation(noted[0].layout).members)}
            for stripe, changes in self.changes.items()
            for number, noted in changes.items()
        ]

    def outages(self) -> list[Row]:
        rows = []
        for stripe, changes in self.changes.items():
            for number, (change, *_) in changes.items():
                tokens = sorted(self.tokens[stripe])
                last = max((token for token in tokens if token < change.token), default=None)
                first = min((token for token in tokens if token >= change.token), default=None)
                ends = [None if each is None else self.tokens[stripe][each].acknowledged_at for each in (last, first)]
                rows.append({
                    "stripe": stripe, "formation": number, "broken": change.broken, "last_token": last,
                    "last_at_ns": ends[0], "first_token": first, "first_at_ns": ends[1],
                    "silence_ns": None if None in ends else ends[1] - ends[0],  # type: ignore[operator]
                })  # fmt: skip
        return rows

    def fairness(self) -> list[Row]:
        return [self._fairness(stripe) for stripe in self.tokens]

    def _fairness(self, stripe: int) -> Row:
        spreads, late, pairs, portals = (
            [row for row in rows if row["stripe"] == stripe]
            for rows in (self.spreads(), self.lateness(), self.pairs(), self.portals())
        )
        entered = [at for of, _, _, _, at in self.entered() if of == stripe]
        row = {
            "stripe": stripe,
            "sites": max(each["sites"] for each in spreads),
            "messages": _sum("messages", spreads),
            "deliveries": _sum("deliveries", late),
            "late_deliveries": _sum("late", late),
            "unlike_messages": _sum("messages", [each for each in spreads if each["late_sites"]]),
            "shared_messages": _sum("messages", [each for each in spreads if each["sites"] > 1]),
            "window_0_messages": _sum("messages", [e for e in spreads if e["sites"] > 1 and not e["window_ns"]]),
            "entered_messages": len(entered),
            "overtaken_messages": sum(at < max(entered[:place], default=0) for place, at in enumerate(entered)),
            "pairs": _sum("pairs", pairs),
            "pairs_in_order": _sum("in_order", pairs),
        }
        entries: Counter[int] = Counter()
        for each in portals:
            entries[each["portal"]] += each["messages"]
        return row | {
            "late_fraction": _share(row["late_deliveries"], row["deliveries"]),
            "outbound_unfairness": _share(row["unlike_messages"], row["messages"]),
            "window_0_share": _share(row["window_0_messages"], row["shared_messages"]),
            "inbound_unfairness": _share(row["overtaken_messages"], row["entered_messages"]),
            "pairwise_fairness": _share(row["pairs_in_order"], row["pairs"]),
            "portal_equity": min(entries.values()) / max(entries.values()) if entries else None,
        }


def ranks(values: Sequence[int]) -> Row:
    """Nearest ranks: the value at place ⌈share · n⌉."""
    ordered = sorted(values)
    shares = {"p10": 1_000, "p50": 5_000, "p90": 9_000, "p95": 9_500, "p99": 9_900, "p999": 9_990, "p9999": 9_999}
    found = {name: ordered[-(-share * len(ordered) // 10_000) - 1] for name, share in shares.items()}
    return {"count": len(ordered), "least": ordered[0]} | found | {"most": ordered[-1]}


def _sum(name: str, rows: Iterable[Row]) -> int:
    return sum(row[name] for row in rows)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _toward_zero(part: int, whole: int) -> int | None:
    return (abs(part) // whole) * (1 if part >= 0 else -1) if whole else None

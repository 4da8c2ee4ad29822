"""Journals of a small market for the tables: trades, notices and orders of several sources, at several sites."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import unit.journal.journal_values as values
from fairtape.core.effects import FormationChange, Ordered, Release, Span
from fairtape.core.entries import Entry as Content
from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND
from fairtape.core.timing import PROFILES
from fairtape.journal import JournalWriter, SyncPolicy
from fairtape.market.notices import CancelNotice, CorrectionNotice, VenueNotice, encode_notice
from fairtape.market.trades import PublishedTrade, encode
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.layout import encode_formation
from fairtape.ring.receiver.tracing import Trace, TraceKind
from fairtape.storage.trace_files import TRACES, TraceWriter
from fairtape.wire.blocks import pack_messages

STARTS_AT = values.STARTS_AT
SYMBOLS = ("ABC", "DEF", "GHI")
SOURCES = (101, 102, 103)
COMMIT_DELAY = 2 * MILLISECOND


def formation(number: int, members: Sequence[int], first_token: int, first_sequence: int) -> Formation:
    """A formation of these sites, from this token on."""
    return Formation(
        number=number,
        members=tuple(members),
        timing=next(iter(PROFILES.values())),
        starts_at=STARTS_AT + first_token * MILLISECOND,
        first_token=first_token,
        first_sequence=first_sequence,
    )


@dataclass
class Market:
    """Writes one order, token by token; then every site has it in its own way."""

    seed: int
    stripe: int = 0
    history: list[Content] = field(default_factory=list)
    token: int = 0
    sequence: int = 1
    formation: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.numbers = dict.fromkeys(SOURCES, 1)
        self.reported: list[tuple[int, int, PublishedTrade]] = []  # number, source, trade

    def form(self, members: Sequence[int], *, broken: bool = False) -> None:
        """A new formation takes over."""
        self.formation += 1
        layout = encode_formation(formation(self.formation, members, self.token + 1, self.sequence))
        place = self.stripe, self.formation, self.token + 1, self.sequence
        self.history.append(FormationChange(*place, broken, layout, self.at(self.token + 1)))

    def at(self, token: int) -> int:
        """The scheduled time of a token."""
        return STARTS_AT + token * 400 * MILLISECOND

    def add(self, payloads: Sequence[tuple[int, bytes]]) -> None:
        """One more token with these messages, each of its source."""
        self.token += 1
        spans: list[Span] = []
        for source, payload in payloads:
            body = (pack_messages([payload]),)
            spans.append(Span(source, 1, self.numbers[source], 1, self.sequence + len(spans), body, (1,)))
            self.numbers[source] += 1
        place = self.stripe, self.formation, self.token, self.sequence, len(spans), self.at(self.token)
        self.history.append(Ordered(*place, tuple(spans)))
        self.sequence += len(spans)

    def trade_on(self, tokens: int, *, symbols: Sequence[str] = SYMBOLS) -> "Market":
        """Random trades, now and then a notice that takes one back (or tries to), or a message that says nothing."""
        for _ in range(tokens):
            payloads = []
            for place in range(self.chance.randint(1, 6)):
                source = self.chance.choice(SOURCES)
                number = self.sequence + place
                chance = self.chance.random()
                if chance < 0.08:
                    payloads.append((source, b"something else"))
                elif chance < 0.3 and self.reported:
                    payloads.append(self._notice(number))
                else:
                    trade = self._trade(self.chance.choice(symbols))
                    self.reported.append((number, source, trade))
                    payloads.append((source, encode(trade)))
            self.add(payloads)
        return self

    def _trade(self, symbol: str) -> PublishedTrade:
        made_at = self.at(self.token + 1) - self.chance.choice((1, 40, 90, 1_500)) * MILLISECOND
        made_at -= self.chance.randint(0, 5) * MICROSECOND
        price, quantity = self.chance.randint(-5, 400) * SECOND // 7, self.chance.randint(0, 90) * SECOND
        return PublishedTrade(self.chance.randint(1, 3), symbol, price, quantity, made_at, self.chance.getrandbits(64))

    def _notice(self, own: int) -> tuple[int, bytes]:
        number, source, trade = self.chance.choice(self.reported[-12:])
        if self.chance.random() < 0.15:
            source = self.chance.choice(SOURCES)  # perhaps another source than that of the trade
        at = self.at(self.token + 1)
        notice: VenueNotice = CancelNotice(number, trade.venue_name, trade.symbol, at)
        if self.chance.random() < 0.6:
            right = self._trade(trade.symbol if self.chance.random() < 0.9 else "ELSE")
            venue = trade.venue if self.chance.random() < 0.9 else 1 + trade.venue % 3
            right = PublishedTrade(venue, right.symbol, right.price, right.quantity, right.traded_at, trade.trade_id)
            notice = CorrectionNotice(number, right, at)
            self.reported.append((own, source, right))
        return source, encode_notice(notice)

    def write(self, folder: Path, sites: Sequence[int], *, until: dict[int, int] | None = None) -> list[Path]:
        """The journals of these sites; some of them end earlier."""
        paths = []
        for site in sites:
            path = folder / f"{self.stripe}-{site}"
            history = self.history[: (until or {}).get(site, len(self.history))]
            write_site(path, history, stripe=self.stripe, site=site, chance=random.Random(self.seed * 1_000 + site))
            paths.append(path)
        return paths


def write_traces(path: Path, history: Sequence[Content], *, stripe: int, site: int) -> None:
    """What a site would trace of these tokens, over links that lose and delay."""
    chance = random.Random(f"{stripe} {site} {len(history)}")
    traces: list[Trace] = []
    for ordered in history:
        if not isinstance(ordered, Ordered):
            continue
        at, holder = ordered.acknowledged_at, 1 + ordered.token % 3
        asked, again = chance.choice((0, 0, 0, 1, 2)), chance.choice((0, 0, 1))
        came_at = at + chance.randint(100, 5_000) * MICROSECOND if chance.random() < 0.95 else 0
        missing = chance.randint(0, ordered.count) if again else 0
        common = (ordered.formation, ordered.token)
        for attempt in range(1, asked + 1):
            answered_at = came_at if attempt == asked else 0
            traces.append(
                Trace(TraceKind.REQUEST, 0, 0, attempt, 0, 2, *common, 0, at + attempt, answered_at, 0, 0, 0, 0)
            )
        if again:
            traces.append(Trace(TraceKind.REQUEST, 0, 0, 0, 1, 3, *common, 0, at + 9, came_at, 0, 0, 0, missing))
        times = (at, at + chance.randint(0, 999), came_at, came_at and came_at + 7)
        bound = chance.choice((500, 1_000))
        early, copies = chance.randint(0, asked), chance.randint(0, asked)
        traces.append(
            Trace(TraceKind.TOKEN, early, copies, asked, again, holder, *common, *times, bound, ordered.count, missing)
        )
        source = chance.choice(SOURCES)
        traces.append(Trace(TraceKind.SOURCE, 0, 0, 0, 0, source, *common, 0, 0, at, 0, 0, ordered.count, missing))
    writer = TraceWriter(path / TRACES, stripe=stripe, site=site)
    writer.append(traces)
    writer.close()


def write_site(path: Path, history: Sequence[Content], *, stripe: int, site: int, chance: random.Random) -> None:
    """A journal whose releases are now and then late, by a clock with a bound that sometimes steps."""
    write_traces(path, history, stripe=stripe, site=site)
    with JournalWriter.open(path, stripe=stripe, site=site, sync=SyncPolicy.NEVER, segment_size_max=8 << 10) as writer:
        for entry in history:
            values.append_entry(writer, entry)
        for entry in history:
            if isinstance(entry, Ordered):
                commit_at = entry.acknowledged_at + COMMIT_DELAY
                delay = chance.choice((0, 0, 0, 7, 2_000, 900_000_000))
                at = commit_at + delay
                bound = chance.choice((500, 1_000, 5_000))
                release = Release(entry.token, entry.sequence, entry.count, commit_at, at, delay > MILLISECOND, bound)
                writer.release(release, at)

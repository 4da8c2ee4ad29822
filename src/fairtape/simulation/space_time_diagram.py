"""The space-time diagram of a run, as SVG.

Time runs to the right and every node has a line. A datagram is an arrow from its departure to its arrival, coloured by
kind; a lost one ends in a cross. The token is a golden band on the line of the site that holds it. A release is a dot;
the dots of releases at the same instant are on one vertical line. Requests and repairs have warm colours, everything
else has cool ones, so that trouble stands out.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from fairtape.core import svg
from fairtape.core.effects import Channel
from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND, Duration, Instant
from fairtape.simulation.datagram_summary import span
from fairtape.simulation.recorder import Declared, FaultEvent, Flight, Released, Sent, TraceEvent
from fairtape.simulation.world import EPOCH
from fairtape.wire.frames import Kind, NodeId

WIDTH: Final = 1_600
LEFT: Final = 112
RIGHT: Final = 36
TOP: Final = 96
ROW: Final = 104
FOOT: Final = 92
FLIGHTS_MAX: Final = 220  # more arrows are not readable
CANDIDATES_MAX: Final = 400  # windows that are compared before one is chosen
LETTER: Final = 6.3  # the average width of a letter of a label
LOST_AT: Final = 0.62  # where the arrow of a lost datagram ends, as a fraction of its way
TICKS: Final = tuple(
    base * unit for unit in (MICROSECOND, MILLISECOND, SECOND) for base in (1, 2, 5, 10, 20, 50, 100, 200, 500)
)


DEEP: Final = "#243b6b"
ALARM: Final = "#d11a2a"


@dataclass(frozen=True, slots=True)
class Ink:
    """How one kind of datagram is drawn."""

    name: str
    colour: str
    width: float
    means: str


BLOCK: Final = Ink("block", "#7d96c4", 1.0, "block of a source")
ACK: Final = Ink("ack", "#1f7a6d", 1.5, "acknowledgment, passes the token")
REQUEST: Final = Ink("request", "#e08a1e", 1.5, "request")
REPAIR: Final = Ink("repair", "#c8451b", 1.7, "repair")
HOLE: Final = Ink("hole", "#b8326a", 1.5, "hole told to a source")
NOTE: Final = Ink("note", "#8d7aa8", 1.1, "progress, token acknowledgment")
INKS: Final = (BLOCK, ACK, REQUEST, REPAIR, HOLE, NOTE)
_BY_KIND: Final = {Kind.REQUEST: REQUEST, Kind.HOLE: HOLE, Kind.PROGRESS: NOTE, Kind.TOKEN_ACK: NOTE}

_STYLE: Final = """
text { font: 12px "Inter", "Segoe UI", "DejaVu Sans", sans-serif; fill: #2b2f36; }
.title { font-size: 16px; font-weight: 600; }
.quiet { fill: #6b7280; font-size: 11px; }
.label { font-size: 10.5px; }
.halo { font-size: 10.5px; fill: #fff; stroke: #fff; stroke-width: 3.5px; stroke-linejoin: round; }
.line { stroke: #9aa1ab; stroke-width: 1.4; }
.grid { stroke: #eceef1; stroke-width: 1; }
.token { stroke: #f2c94c; stroke-width: 9; stroke-linecap: round; opacity: .75; }
.release { stroke: #243b6b; stroke-width: 1.3; stroke-dasharray: 2 3; }
.cross { stroke: #d11a2a; stroke-width: 2; }
.down { stroke: #fff; stroke-width: 5; stroke-dasharray: 3 5; }
"""


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a run that is drawn."""

    since: Instant
    until: Instant


def choose_window(events: Sequence[TraceEvent], *, period: Duration, commit_delay: Duration) -> Window:
    """The most interesting window: it has repairs and releases, and few enough arrows to be readable."""
    departures = sorted(one.at for one in events if isinstance(one, Flight))
    requests = [one.at for one in events if isinstance(one, Sent) and one.summary.kind is Kind.REQUEST]
    releases = sorted(one.at for one in events if isinstance(one, Released))
    begins = [at - period for at in (requests or releases)[:CANDIDATES_MAX]] or [EPOCH]
    width = min(commit_delay + 2 * period, 6 * period)
    windows = [_readable(Window(max(at, EPOCH), max(at, EPOCH) + width), departures, period) for at in begins]
    return max(windows, key=lambda window: _interest(window, requests, releases))


def _readable(window: Window, departures: list[Instant], period: Duration) -> Window:
    """Shorten a window that has too many arrows."""
    last = bisect_left(departures, window.since) + FLIGHTS_MAX
    if last >= len(departures) or departures[last] >= window.until:
        return window
    return Window(window.since, max(departures[last], window.since + period))


def _interest(window: Window, requests: list[Instant], releases: list[Instant]) -> float:
    asked = bisect_left(requests, window.until) - bisect_left(requests, window.since)
    released = bisect_left(releases, window.until) - bisect_left(releases, window.since)
    return min(asked, 3) + min(released, 12) / 4


def draw_svg(
    events: Sequence[TraceEvent],
    *,
    window: Window,
    sources: Sequence[NodeId],
    sites: Sequence[NodeId],
    title: str,
    subtitle: str,
) -> str:
    """The SVG document."""
    return _Diagram(events, window, (*sources, *sites), frozenset(sites)).draw(title, subtitle)


class _Diagram:
    def __init__(
        self, events: Sequence[TraceEvent], window: Window, nodes: Sequence[NodeId], sites: frozenset[NodeId]
    ) -> None:
        self._window = window
        self._sites = sites
        self._rows = {node: TOP + ROW // 2 + position * ROW for position, node in enumerate(nodes)}
        self._bottom = TOP + len(nodes) * ROW
        self._height = self._bottom + FOOT
        self._happenings = [one for one in events if self._touches(one)]
        self._acks = [one for one in self._happenings if isinstance(one, Sent) and _passes_token(one)]
        self._passes = {(ack.at, ack.summary.label) for ack in self._acks}
        self._taken: dict[tuple[NodeId, int], float] = {}  # where the last label ends, by line and level

    def draw(self, title: str, subtitle: str) -> str:
        """All layers, the most important last."""
        layers = (
            self._ground(title, subtitle),
            self._axis(),
            self._tokens(),
            self._lines(),
            self._absences(),
            self._flights(),
            self._labels(),
            self._releases(),
            self._faults(),
            self._legend(),
        )
        content = "\n".join(("", *(line for layer in layers for line in layer), ""))
        return svg.document(WIDTH, self._height, content, role="img") + "\n"

    def _touches(self, event: TraceEvent) -> bool:
        ends_at = event.arrives_at if isinstance(event, Flight) and event.arrives_at else event.at
        return event.at <= self._window.until and ends_at >= self._window.since

    def _x(self, at: Instant) -> float:
        return round(svg.LinearScale(self._window.since, self._window.until, LEFT, WIDTH - RIGHT)(at), 1)

    def _ground(self, title: str, subtitle: str) -> Iterator[str]:
        yield svg.title(title)
        yield svg.element("style", _STYLE)
        frame = svg.element("rect", x=LEFT, y=0, width=WIDTH - LEFT - 8, height=self._height)
        heads = (_arrow_head(ink) for ink in INKS)
        yield svg.element("defs", "\n".join((svg.element("clipPath", frame, id="frame"), *heads)))
        yield svg.element("rect", width=WIDTH, height=self._height, fill="#fff")
        yield svg.text(24, 34, title, class_="title")
        yield svg.text(24, 54, subtitle, class_="quiet")

    def _axis(self) -> Iterator[str]:
        width = self._window.until - self._window.since
        tick = next((tick for tick in TICKS if width / tick <= 14), TICKS[-1])
        decimals = 3 if tick >= MILLISECOND else 6
        at = EPOCH - (EPOCH - self._window.since) // tick * tick
        while at <= self._window.until:
            if at >= self._window.since:
                x = self._x(at)
                yield svg.line(x, TOP - 8, x, self._bottom, class_="grid")
                text = f"{(at - EPOCH) / SECOND:.{decimals}f} s"
                yield svg.text(x, self._bottom + 18, text, class_="quiet", text_anchor="middle")
            at += tick

    def _lines(self) -> Iterator[str]:
        for node, y in self._rows.items():
            what = "site" if node in self._sites else "source"
            yield svg.line(LEFT, y, WIDTH - RIGHT, y, class_="line")
            yield svg.element("text", f"{what} {svg.element('tspan', str(node), font_weight=600)}", x=24, y=y + 4)

    def _absences(self) -> Iterator[str]:
        """The line of a node that is down or paused is dotted."""
        since: dict[NodeId, Instant] = {}
        faults = [one for one in self._happenings if isinstance(one, FaultEvent)]
        for one in (*faults, *(FaultEvent(self._window.until, node, "end") for node in self._rows)):
            if one.what in ("crash", "pause"):
                since.setdefault(one.node, one.at)
            elif one.node in since:
                x, y = self._x(since.pop(one.node)), self._rows[one.node]
                yield svg.line(x, y, self._x(one.at), y, class_="down")

    def _tokens(self) -> Iterator[str]:
        """A site holds the token from the acknowledgment that passes it to that site until its own acknowledgment."""
        before = self._window.since
        for ack in self._acks:
            if ack.at >= self._window.since:
                y = self._rows[ack.node]
                yield svg.line(self._x(before), y, self._x(ack.at), y, class_="token")
                before = ack.at

    def _flights(self) -> Iterator[str]:
        drawn = [
            arrow
            for one in self._happenings
            if isinstance(one, Flight) and one.node in self._rows and one.to in self._rows and one.node != one.to
            for arrow in self._flight(one, self._ink(one))
        ]
        yield svg.element("g", "\n".join(drawn), clip_path="url(#frame)", fill="none")

    def _flight(self, flight: Flight, ink: Ink) -> Iterator[str]:
        x1, y1, y2 = self._x(flight.at), self._rows[flight.node], self._rows[flight.to]
        if flight.arrives_at is not None:
            x2 = self._x(flight.arrives_at)
            yield _path(f"M{x1} {y1}L{x2} {y2}", ink, marker_end=f"url(#{ink.name})", opacity=".85")
            return
        x2 = x1 + 14 + abs(y2 - y1) * 0.06
        x, y = x1 + (x2 - x1) * LOST_AT, y1 + (y2 - y1) * LOST_AT
        yield _path(f"M{x1} {y1}L{x:.1f} {y:.1f}", ink, stroke_dasharray="4 3")
        yield svg.element("path", class_="cross", d=f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8")

    def _ink(self, one: Sent | Flight) -> Ink:
        kind = one.summary.kind
        if kind is Kind.BLOCK:
            return REPAIR if one.node in self._sites else BLOCK
        if kind is Kind.ACK:
            return ACK if (one.at, one.summary.label) in self._passes else REPAIR
        return NOTE if kind is None else _BY_KIND.get(kind, NOTE)

    def _labels(self) -> Iterator[str]:
        for one in self._happenings:
            if isinstance(one, Sent) and one.node in self._rows and one.at >= self._window.since:
                yield from self._label(one.node, self._x(one.at), one.summary.label, self._ink(one))

    def _label(self, node: NodeId, x: float, text: str, ink: Ink) -> Iterator[str]:
        """Beside the line, at the first level with enough space; else the label is left out."""
        width = len(text) * LETTER
        if x + width > WIDTH - 8:
            return
        for level, rise in enumerate((-8, -20, 18)):
            if self._taken.get((node, level), 0.0) <= x:
                self._taken[node, level] = x + width + 6
                y = self._rows[node] + rise
                yield _label(x + 3, y, text, ink.colour)
                return

    def _releases(self) -> Iterator[str]:
        """One dotted line through the dots of one token; it is vertical if the clocks agree."""
        together: dict[int, list[Released]] = {}
        for one in self._happenings:
            if isinstance(one, Released):
                together.setdefault(one.release.token, []).append(one)
        end = 0.0
        for dots in together.values():
            timely = sorted((self._rows[dot.node], self._x(dot.at)) for dot in dots if not dot.release.late)
            if timely:
                x = timely[0][1]
                text = f"release {span(dots[0].release.sequence, dots[0].release.count)}"
                path = "L".join(f"{x} {y}" for y, x in ((TOP - 4, x), *timely))
                yield svg.element("path", class_="release", d=f"M{path}", fill="none")
                if x >= end:
                    end = x + len(text) * LETTER
                    yield _label(x + 4, TOP - 8, text, DEEP)
            yield from (self._dot(self._x(dot.at), dot) for dot in dots)

    def _dot(self, x: float, dot: Released) -> str:
        y = self._rows[dot.node]
        fill, edge = ("#fff", ALARM) if dot.release.late else (DEEP, "#fff")
        return svg.element("circle", cx=x, cy=y, r=5, fill=fill, stroke=edge, stroke_width=1.6)

    def _faults(self) -> Iterator[str]:
        for one in self._happenings:
            if isinstance(one, FaultEvent | Declared):
                x, y = self._x(one.at), self._rows[one.node]
                text = one.what if isinstance(one, FaultEvent) else f"declares site {one.report.suspect} failed"
                yield svg.element("path", class_="cross", d=f"M{x} {y - 12}v24")
                yield _label(x + 5, y + 30, text, ALARM)

    def _legend(self) -> Iterator[str]:
        x, y = 24.0, self._bottom + 52
        for ink in INKS:
            key = svg.element(
                "path",
                d=f"M{x:.1f} {y - 4}h26",
                stroke=ink.colour,
                stroke_width=ink.width + 0.5,
                marker_end=f"url(#{ink.name})",
            )
            yield key + svg.text(x + 33, y, ink.means)
            x += 33 + len(ink.means) * 6.6 + 26
        x, y = 24.0, y + 24
        for number, means in enumerate(("lost", "has the token", "release", "late release")):
            yield self._key(number, x + 6, y) + svg.text(x + 33, y, means)
            x += 33 + len(means) * 6.6 + 26

    def _key(self, number: int, x: float, y: int) -> str:
        """The shape that the legend explains."""
        return (
            svg.element("path", class_="cross", d=f"M{x:.1f} {y - 8}l8 8m0 -8l-8 8"),
            svg.line(x, y - 4, x + 16, y - 4, class_="token"),
            svg.element("circle", cx=x, cy=y - 4, r=5, fill=DEEP),
            svg.element("circle", cx=x, cy=y - 4, r=5, fill="#fff", stroke=ALARM, stroke_width=1.6),
        )[number]


def _arrow_head(ink: Ink) -> str:
    shape = svg.element("path", d="M0 .6 8 4 0 7.4Z", fill=ink.colour)
    return svg.element(
        "marker",
        shape,
        id=ink.name,
        viewBox="0 0 8 8",
        refX=7.4,
        refY=4,
        markerWidth=7,
        markerHeight=7,
        markerUnits="userSpaceOnUse",
        orient="auto",
    )


def _path(path: str, ink: Ink, **attributes: str | float) -> str:
    return svg.element("path", d=path, stroke=ink.colour, stroke_width=ink.width, **attributes)


def _label(x: float, y: float, text: str, colour: str) -> str:
    """A label with a halo, so that it is readable on top of arrows."""
    halo = svg.text(x, y, text, class_="halo")
    return halo + svg.text(x, y, text, class_="label", style=f"fill:{colour}")


def _passes_token(sent: Sent) -> bool:
    return isinstance(sent.to, Channel) and sent.summary.kind is Kind.ACK


def count_flights(events: Iterable[TraceEvent], window: Window) -> int:
    """The count of arrows in the diagram of this window."""
    return sum(isinstance(one, Flight) and window.since <= one.at <= window.until for one in events)

"""Plots as SVG text: lines over time, bars by name, candles, and marks on a line of time.

Drawn here and not by a library because a page must stand alone, follow the reader's light or dark colours, and be
readable on a phone: each plot is drawn for a width, with letters of the same size whatever that width is. Colours are
classes (`c0` … `c5`) of the page's style sheet, and lines beyond them come dashed in the same colours; everything else
takes the colour of the text.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from math import floor, log10
from typing import Final, TypeAlias

from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND

WIDE: Final = 860
NARROW: Final = 350
HEIGHT: Final = 230
ROW: Final = 26  # pixels of one bar
LETTERS: Final = {"mwMW%@…": 11.5, " .,:;'|iljft()-": 4.6}  # pixels of those at 12 px that are no usual ones
LABEL_PART: Final = 0.4  # of the width that names beside bars may take
COLOURS: Final = 6
LINES_MAX: Final = 2 * COLOURS  # that can be told apart
BREAK_PERIODS: Final = 1.5  # between two points of a line that is not drawn through
ROWS: Final = 5  # level lines of a frame, about
DECIMALS: Final = 2  # of a value that is alone
SHARE_MIN: Final = 1e-10  # percent: what is less, or less away from all, is beyond what numbers here can tell
ALONE_PART: Final = 1e-9  # of a value, the room on either side of it: of an instant, some two seconds
UNITS: Final = (
    (86_400 * SECOND, "days"),
    (3_600 * SECOND, "h"),
    (60 * SECOND, "min"),
    (SECOND, "s"),
    (MILLISECOND, "ms"),
    (MICROSECOND, "µs"),
)
POINTS_MAX: Final = 1_500  # of one line: a screen has no more

Format: TypeAlias = Callable[[float], str]
Points: TypeAlias = Sequence[tuple[float, float]]


def told_number(value: float) -> str:
    """1,234 or 0.0123, as short as it can be told."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def told_share(value: float) -> str:
    """A part of the whole, in percent: with so many decimals that little is not told as nothing, nor most as all."""
    percent = value * 100
    text = f"{percent:,.0f}" if percent >= 1_000 else f"{percent:.3g}"
    if 0 < percent < 100 and ("e" in text or text == "100"):
        rest = max(min(percent, 100 - percent), SHARE_MIN)
        text = f"{percent:.{1 - floor(log10(rest))}f}".rstrip("0").rstrip(".")
    return f"{text} %"


def told_duration(value: float) -> str:
    """Nanoseconds in the unit that suits them."""
    for unit, name in UNITS:
        if abs(value) >= unit:
            text = f"{value / unit:.3g}"
            return f"{value / unit:,.0f} {name}" if "e" in text else f"{text} {name}"
    return f"{value:.0f} ns"


def told_in_steps(values: Sequence[float]) -> Format:
    """A format for these, with as many decimals as tell one from the next."""
    steps = [after - before for before, after in pairwise(values)]
    decimals = max(0, -floor(log10(min(steps)) + 1e-9)) if steps else DECIMALS
    return lambda value: f"{value:,.{decimals}f}"


def told_instant(value: float) -> str:
    """The time of day, UTC."""
    return f"{datetime.fromtimestamp(value / SECOND, UTC):%H:%M:%S}"


@dataclass(frozen=True, slots=True)
class PlotLine:
    """One line, or one row of points where `dots` is set."""

    name: str
    points: Points
    dots: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePlot:
    """Lines over a common axis, which is time unless said otherwise."""

    lines: Sequence[PlotLine]
    told_x: Format = told_instant
    told_y: Format = told_number
    period: float | None = None  # between points, where there are all: a line breaks where some are missing
    marks: Sequence[tuple[float, str]] = ()  # upright lines, with what happened there
    limits: Sequence[tuple[float, str]] = ()  # level lines, with what they mean

    def svg(self, width: int) -> str:
        """The plot, so many pixels wide."""
        lines = [PlotLine(line.name, thinned(line.points), line.dots) for line in self.lines[:LINES_MAX] if line.points]
        if not lines:
            return _nothing(width)
        xs = [x for line in lines for x, _ in line.points] + [at for at, _ in self.marks]
        ys = [y for line in lines for _, y in line.points] + [at for at, _ in self.limits]
        legend = _legend([line.name for line in lines], width) if len(lines) > 1 or lines[0].name else ([], 0)
        frame = _Frame.around(xs, [0.0, *ys], width, legend[1], self.told_x, self.told_y)
        parts = [*legend[0], *frame.axes()]
        parts += [_mark(frame.x(at), frame, what) for at, what in self.marks]
        parts += [_limit(frame.y(at), frame, what) for at, what in self.limits]
        for number, line in enumerate(lines):
            parts += [_drawn(piece, number, frame) for piece in self._pieces(line)]
        return _svg(width, frame.bottom + 24, parts)

    def _pieces(self, line: PlotLine) -> Iterator[PlotLine]:
        """The line, in as many pieces as its points lie together in: where nothing was measured nothing is drawn."""
        begins = 0
        for place in range(1, len(line.points) + 1):
            ends = place == len(line.points)
            if ends or self._is_gap(line.points[place - 1][0], line.points[place][0]):
                yield PlotLine(line.name, line.points[begins:place], line.dots)
                begins = place

    def _is_gap(self, before: float, after: float) -> bool:
        return self.period is not None and after - before > BREAK_PERIODS * self.period


@dataclass(frozen=True, slots=True, kw_only=True)
class BarPlot:
    """A bar for each name."""

    bars: Sequence[tuple[str, float]]
    told: Format = told_number
    limit: float | None = None

    def svg(self, width: int) -> str:
        """The plot, so many pixels wide."""
        if not self.bars:
            return _nothing(width)
        names = max(_width(name) for name, _ in self.bars) + 10
        above = names > width * LABEL_PART  # then names stand over their bars
        left, row_height = (0.0, ROW + 16) if above else (names, ROW)
        right = max(_width(self.told(value)) for _, value in self.bars) + 12
        most = max([value for _, value in self.bars] + [self.limit or 0.0]) or 1.0
        scale = (width - left - right) / most
        parts = []
        for row, (name, value) in enumerate(self.bars):
            y = row * row_height + (16 if above else 0)
            parts.append(_text(0, y, name, "start") if above else _text(left - 8, y + 17, name, "end"))
            parts.append(
                f'<rect class="c0" x="{left:.1f}" y="{y + 4}" width="{max(value * scale, 1):.1f}" height="{ROW - 8}" '
                f'rx="2"><title>{escape(name)}: {self.told(value)}</title></rect>'
            )
            parts.append(_text(left + max(value * scale, 1) + 6, y + 17, self.told(value), "start"))
        height = len(self.bars) * row_height + 4
        if self.limit is not None:
            x = left + self.limit * scale
            parts.append(f'<line class="limit" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}"/>')
        return _svg(width, height, parts)


@dataclass(frozen=True, slots=True)
class Candle:
    """What a price did in a period."""

    at: float
    open: float
    high: float
    low: float
    close: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CandlePlot:
    """Open, high, low and close of each period."""

    candles: Sequence[Candle]
    period: float  # of one of them

    def svg(self, width: int) -> str:
        """The plot, so many pixels wide: as many of the last periods as can be told apart."""
        candles = self.candles[-(width // 5) :]
        if not candles:
            return _nothing(width)
        lows, highs = [each.low for each in candles], [each.high for each in candles]
        around = candles[0].at - self.period / 2, candles[-1].at + self.period / 2  # the first and last stand free
        rows = ticks(min(lows), max(highs), ROWS)
        frame = _Frame.around(around, [*lows, *highs], width, 0, told_instant, told_in_steps(rows))
        thick = max(1.0, min(8.0, 0.6 * (frame.right - frame.left) / len(candles)))
        parts = list(frame.axes())
        for each in candles:
            x, way = frame.x(each.at), "up" if each.close >= each.open else "down"
            top, foot = sorted((frame.y(each.open), frame.y(each.close)))
            parts.append(
                f'<g class="{way}"><line x1="{x:.1f}" x2="{x:.1f}" y1="{frame.y(each.high):.1f}" '
                f'y2="{frame.y(each.low):.1f}"/><rect x="{x - thick / 2:.1f}" y="{top:.1f}" width="{thick:.1f}" '
                f'height="{max(foot - top, 1):.1f}"/></g>'
            )
        return _svg(width, frame.bottom + 24, parts)


Plot: TypeAlias = LinePlot | BarPlot | CandlePlot


def figure(plot: Plot, label: str) -> str:
    """A plot for a page: drawn twice, and the style sheet shows the one that fits the reader's screen."""
    both = (f'<div class="{name}">{plot.svg(width)}</div>' for name, width in (("wide", WIDE), ("narrow", NARROW)))
    return f'<figure role="img" aria-label="{escape(label)}">{"".join(both)}</figure>'


def standalone(plot: Plot, width: int) -> str:
    """A plot as a file of its own, with the little style that it needs."""
    style = (
        "<style>svg{color:#222;background:#fff}text{font:12px system-ui,sans-serif;fill:currentColor}"
        ".grid{stroke:#8884}.line{fill:none;stroke:#2563eb;stroke-width:1.6}.c0{fill:#2563eb}.line.c0{fill:none}"
        ".limit,.mark{stroke:#888;stroke-dasharray:6 4}.key{stroke-width:4}</style>"
    )
    head, end, rest = plot.svg(width).partition(">")
    return head + end + style + rest


def thinned(points: Points) -> Points:
    """At most so many points; of those that share a place the highest and the lowest stay, so no peak is lost."""
    if len(points) <= POINTS_MAX:
        return points
    step = -(-2 * len(points) // POINTS_MAX)
    found: list[tuple[float, float]] = []
    for start in range(0, len(points), step):
        piece = points[start : start + step]
        found += sorted({min(piece, key=lambda each: each[1]), max(piece, key=lambda each: each[1])})
    return found


def ticks(least: float, most: float, count: int) -> list[float]:
    """About so many round numbers from least to most."""
    if most <= least:
        return [least]
    raw = (most - least) / max(count, 1)
    power = 10.0 ** floor(log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first = floor(least / step + 0.999999)
    return [number * step for number in range(first, floor(most / step + 1e-6) + 1)]


def _time_ticks(least: float, most: float, count: int) -> list[float]:
    """Round times: seconds, minutes or hours."""
    steps = [SECOND * each for each in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 86400)]
    step = next((each for each in steps if (most - least) / each <= count), steps[-1])
    first = -(-int(least) // step)
    return [float(number * step) for number in range(first, int(most) // step + 1)] or [least]


@dataclass(frozen=True, slots=True)
class _Frame:
    """The axes of a plot, and where values are in it."""

    left: float
    right: float
    top: float
    bottom: float
    xs: tuple[float, float]
    ys: tuple[float, float]
    told_x: Format
    told_y: Format
    rows: Sequence[float] = field(default_factory=list)

    @classmethod
    def around(
        cls, xs: Sequence[float], ys: Sequence[float], width: int, top: float, told_x: Format, told_y: Format
    ) -> "_Frame":
        low, high = min(ys), max(ys)
        high = high if high > low else low + 2 * _room(low)
        rows = ticks(low, high, ROWS)
        left = max(_width(told_y(row)) for row in rows) + 10
        first, last = min(xs), max(xs)
        if last <= first:  # what has one place only stands in the middle
            first, last = first - _room(first), first + _room(first)
        return cls(left, width - 12, top + 10, top + HEIGHT, (first, last), (low, high), told_x, told_y, rows)

    def x(self, value: float) -> float:
        return self.left + (value - self.xs[0]) / (self.xs[1] - self.xs[0]) * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - (value - self.ys[0]) / (self.ys[1] - self.ys[0]) * (self.bottom - self.top)

    def axes(self) -> list[str]:
        parts = []
        for row in self.rows:
            y = self.y(row)
            parts.append(f'<line class="grid" x1="{self.left:.1f}" x2="{self.right}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(_text(self.left - 6, y + 4, self.told_y(row) if row else "0", "end"))
        count = max(2, int((self.right - self.left) / 95))
        found = (_time_ticks if self.told_x is told_instant else ticks)(*self.xs, count)
        for at in found:
            text = self.told_x(at)
            half = _width(text) / 2
            x = min(max(self.x(at), self.left + half), self.right - half + 8)
            parts.append(_text(x, self.bottom + 18, text, "middle"))
        return parts


def _room(value: float) -> float:
    """Room around a value that is alone: so much that it is not lost in the value, as 1 ns is in a time since 1970."""
    return max(0.5, abs(value) * ALONE_PART)


def _drawn(line: PlotLine, number: int, frame: _Frame) -> str:
    places = [(frame.x(x), frame.y(y)) for x, y in line.points]
    if line.dots or len(places) == 1:
        dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2"/>' for x, y in places)
        return f'<g class="c{number % COLOURS}">{dots}</g>'
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline class="{_stroke(number)}" points="{path}"><title>{escape(line.name)}</title></polyline>'


def _stroke(number: int) -> str:
    """The classes of a line: after the last colour comes the first one again, dashed."""
    return f"c{number % COLOURS} line{' again' if number >= COLOURS else ''}"


def _mark(x: float, frame: _Frame, what: str) -> str:
    title = f"<title>{escape(what)}</title>"
    return f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{frame.top}" y2="{frame.bottom}">{title}</line>'


def _limit(y: float, frame: _Frame, what: str) -> str:
    line = f'<line class="limit" x1="{frame.left:.1f}" x2="{frame.right}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return line + _text(frame.right - 4, y - 4 if y > frame.top + 14 else y + 14, what, "end")


def _legend(names: Sequence[str], width: int) -> tuple[list[str], float]:
    """Names beside their colours, in as many rows as they need, and how high that is."""
    parts, x, y = [], 4.0, 14.0
    for number, name in enumerate(names):
        needs = _width(name) + 32
        if x > 4 and x + needs > width:
            x, y = 4.0, y + 18
        parts.append(f'<line class="{_stroke(number)} key" x1="{x:.1f}" x2="{x + 14:.1f}" y1="{y - 4}" y2="{y - 4}"/>')
        parts.append(_text(x + 19, y, name, "start"))
        x += needs
    return parts, y + 4


def _width(text: str) -> float:
    """About how many pixels a text takes. Fonts differ, so this is a wide one: room is better than a cut letter."""
    return sum(next((width for some, width in LETTERS.items() if letter in some), _usual(letter)) for letter in text)


def _usual(letter: str) -> float:
    return 8.6 if letter.isupper() else 7.6


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _nothing(width: int) -> str:
    return _svg(width, 40, [_text(width / 2, 24, "nothing to show", "middle")])


def _svg(width: int, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" width="{width}" '
        f'height="{height:.0f}">{"".join(parts)}</svg>'
    )

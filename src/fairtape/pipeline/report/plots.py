"""Plots of a report as SVG: lines over time, bars, bars on a logarithmic scale, candles.

No plotting library is used because a page must stand alone, follow the reader's light or dark colours, and be readable
on a phone: each plot is drawn for a width, and its text has the same size at every width. Colours are classes (`c0` …
`c5`) of the page's style sheet. Lines beyond the last colour are dashed in the same colours. Everything else has the
colour of the text.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from math import floor, log10
from typing import Final, TypeAlias

from fairtape.core import svg
from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND

WIDE: Final = 860  # pixels
NARROW: Final = 350
HEIGHT: Final = 230
ROW: Final = 26  # pixels of one bar
LETTERS: Final = {"mwMW%@…": 11.5, " .,:;'|iljft()-": 4.6}  # pixels at 12 px of letters that are not of usual width
LABEL_PART: Final = 0.4  # of the width that names beside bars may take
COLOURS: Final = 6
LINES_MAX: Final = 2 * COLOURS  # more cannot be distinguished
BREAK_PERIODS: Final = 1.5  # a line is not drawn across a longer gap
ROWS: Final = 5  # grid lines, about
DECIMALS: Final = 2  # of the only label of an axis
SHARE_MIN: Final = 1e-10  # percent: a smaller distance from 0 % or 100 % is below the precision of a float
ALONE_PART: Final = 1e-9  # of a single value: the margin on either side of it; of an instant, some two seconds
UNITS: Final = (
    (86_400 * SECOND, "days"),
    (3_600 * SECOND, "h"),
    (60 * SECOND, "min"),
    (SECOND, "s"),
    (MILLISECOND, "ms"),
    (MICROSECOND, "µs"),
)
POINTS_MAX: Final = 1_500  # of one line: about as many as a screen has columns

Format: TypeAlias = Callable[[float], str]
Points: TypeAlias = Sequence[tuple[float, float]]


def format_number(value: float) -> str:
    """1,234 or 0.0123."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def format_share(value: float) -> str:
    """Percent, with enough decimals that a small share is not shown as 0 % and a large one not as 100 %."""
    percent = value * 100
    text = f"{percent:,.0f}" if percent >= 1_000 else f"{percent:.3g}"
    if 0 < percent < 100 and ("e" in text or text == "100"):
        rest = max(min(percent, 100 - percent), SHARE_MIN)
        text = f"{percent:.{1 - floor(log10(rest))}f}".rstrip("0").rstrip(".")
    return f"{text} %"


def format_duration(value: float) -> str:
    """Nanoseconds in the largest unit of which there is at least one."""
    for unit, name in UNITS:
        if abs(value) >= unit:
            text = f"{value / unit:.3g}"
            return f"{value / unit:,.0f} {name}" if "e" in text else f"{text} {name}"
    return f"{value:.0f} ns"


def format_instant(value: float) -> str:
    """The time of day, UTC."""
    return f"{datetime.fromtimestamp(value / SECOND, UTC):%H:%M:%S}"


def step_format(values: Sequence[float]) -> Format:
    """A format with as many decimals as distinguish each of these values from the next."""
    steps = [after - before for before, after in pairwise(values)]
    decimals = max(0, -floor(log10(min(steps)) + 1e-9)) if steps else DECIMALS
    return lambda value: f"{value:,.{decimals}f}"


@dataclass(frozen=True, slots=True)
class PlotLine:
    """One line, or one row of points where `dots` is set."""

    name: str
    points: Points
    dots: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePlot:
    """Lines over a common axis, which is time by default."""

    lines: Sequence[PlotLine]
    format_x: Format = format_instant
    format_y: Format = format_number
    period: float | None = None  # between points; a line is interrupted where points are missing
    events: Sequence[tuple[float, str]] = ()  # vertical lines, with what happened there
    limits: Sequence[tuple[float, str]] = ()  # horizontal lines, with what they mean

    def svg(self, width: int) -> str:
        """The plot, `width` pixels wide."""
        lines = [PlotLine(line.name, thinned(line.points), line.dots) for line in self.lines[:LINES_MAX] if line.points]
        if not lines:
            return _nothing(width)
        xs = [x for line in lines for x, _ in line.points] + [at for at, _ in self.events]
        ys = [y for line in lines for _, y in line.points] + [at for at, _ in self.limits]
        legend = _legend([line.name for line in lines], width) if len(lines) > 1 or lines[0].name else ([], 0)
        frame = _Frame.around(xs, [0.0, *ys], width, legend[1], self.format_x, self.format_y)
        parts = [*legend[0], *frame.axes()]
        parts += [_event(frame.x(at), frame, what) for at, what in self.events]
        parts += [_limit(frame.y(at), frame, what) for at, what in self.limits]
        for number, line in enumerate(lines):
            parts += [_drawn(piece, number, frame) for piece in self._pieces(line)]
        return _document(width, frame.bottom + 24, parts)

    def _pieces(self, line: PlotLine) -> Iterator[PlotLine]:
        """The parts of the line between its gaps: where nothing was measured nothing is drawn."""
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
    format_value: Format = format_number
    limit: float | None = None

    def svg(self, width: int) -> str:
        """The plot, `width` pixels wide."""
        if not self.bars:
            return _nothing(width)
        rows = _BarRows.of([name for name, _ in self.bars], width)
        right = max(_text_width(self.format_value(value)) for _, value in self.bars) + 12
        most = max([value for _, value in self.bars] + [self.limit or 0.0]) or 1.0
        scale = svg.LinearScale(0.0, most, rows.left, width - right)
        parts = []
        for row, (name, value) in enumerate(self.bars):
            parts += rows.bar(row, name, scale(value), self.format_value(value))
        height = len(self.bars) * rows.height + 4
        if self.limit is not None:
            x = scale(self.limit)
            parts.append(svg.line(x, 0, x, height, class_="limit"))
        return _document(width, height, parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBarPlot:
    """Bars on a logarithmic scale, for positive values that differ by orders of magnitude.

    A bar begins at the power of ten below the least value. Bars with the same third element have the same colour.
    """

    bars: Sequence[tuple[str, float, int]]
    format_value: Format = format_number

    def svg(self, width: int) -> str:
        """The plot, `width` pixels wide."""
        positive = [value for _, value, _ in self.bars if value > 0]
        if not positive:
            return _nothing(width)
        rows = _BarRows.of([name for name, _, _ in self.bars], width)
        right = max(_text_width(self.format_value(value)) for _, value, _ in self.bars) + 12
        grid = svg.decades(min(positive) / 2, max(positive))  # half: so that the shortest bar is visible
        scale = svg.LogScale(grid[0], grid[-1], rows.left, width - right)
        bottom = len(self.bars) * rows.height + 4
        parts = []
        for value in grid:
            x, label = scale(value), self.format_value(value)
            parts.append(svg.line(x, 0, x, bottom, class_="grid"))
            parts.append(svg.text(max(x, _text_width(label) / 2), bottom + 16, label, text_anchor="middle"))
        for row, (name, value, colour) in enumerate(self.bars):
            parts += rows.bar(row, name, scale(value), self.format_value(value), colour)
        return _document(width, bottom + 24, parts)


@dataclass(frozen=True, slots=True)
class _BarRows:
    """Where bars and their names are: names stand to the left of the bars, or above them where they are long."""

    left: float
    height: int  # of a row
    above: bool = False

    @classmethod
    def of(cls, names: Sequence[str], width: int) -> "_BarRows":
        longest = max(map(_text_width, names)) + 10
        return cls(0.0, ROW + 16, above=True) if longest > width * LABEL_PART else cls(longest, ROW)

    def bar(self, row: int, name: str, end: float, label: str, colour: int = 0) -> list[str]:
        y = row * self.height + (16 if self.above else 0)
        length = max(end - self.left, 1.0)
        tooltip = svg.title(f"{name}: {label}")
        return [
            _text(0, y, name, "start") if self.above else _text(self.left - 8, y + 17, name, "end"),
            svg.element("rect", tooltip, class_=f"c{colour}", x=self.left, y=y + 4, width=length, height=ROW - 8, rx=2),
            _text(self.left + length + 6, y + 17, label, "start"),
        ]


@dataclass(frozen=True, slots=True)
class Candle:
    """The prices of a period."""

    at: float
    open: float
    high: float
    low: float
    close: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CandlePlot:
    """Open, high, low and close of each period."""

    candles: Sequence[Candle]
    period: float  # of one candle

    def svg(self, width: int) -> str:
        """The plot, `width` pixels wide: as many of the last periods as fit."""
        candles = self.candles[-(width // 5) :]
        if not candles:
            return _nothing(width)
        lows, highs = [each.low for each in candles], [each.high for each in candles]
        around = candles[0].at - self.period / 2, candles[-1].at + self.period / 2  # the first and last are not cut
        rows = svg.ticks(min(lows), max(highs), ROWS)
        frame = _Frame.around(around, [*lows, *highs], width, 0, format_instant, step_format(rows))
        thick = max(1.0, min(8.0, 0.6 * (frame.right - frame.left) / len(candles)))
        parts = list(frame.axes())
        for each in candles:
            x = frame.x(each.at)
            top, foot = sorted((frame.y(each.open), frame.y(each.close)))
            wick = svg.line(x, frame.y(each.high), x, frame.y(each.low))
            body = svg.element("rect", x=x - thick / 2, y=top, width=thick, height=max(foot - top, 1.0))
            parts.append(svg.element("g", wick + body, class_="up" if each.close >= each.open else "down"))
        return _document(width, frame.bottom + 24, parts)


Plot: TypeAlias = LinePlot | BarPlot | LogBarPlot | CandlePlot


def figure(plot: Plot, label: str) -> str:
    """A plot for a page: drawn at two widths, of which the style sheet shows the one that fits the screen."""
    both = (f'<div class="{name}">{plot.svg(width)}</div>' for name, width in (("wide", WIDE), ("narrow", NARROW)))
    return f'<figure role="img" aria-label="{escape(label)}">{"".join(both)}</figure>'


def standalone(plot: Plot, width: int) -> str:
    """A plot as a file of its own, with the style that it needs."""
    style = (
        "<style>svg{color:#222;background:#fff}text{font:12px system-ui,sans-serif;fill:currentColor}"
        ".grid{stroke:#8884}.line{fill:none;stroke:#2563eb;stroke-width:1.6}.c0{fill:#2563eb}.line.c0{fill:none}"
        ".limit,.mark{stroke:#888;stroke-dasharray:6 4}.key{stroke-width:4}</style>"
    )
    head, end, rest = plot.svg(width).partition(">")
    return head + end + style + rest


def thinned(points: Points) -> Points:
    """At most POINTS_MAX points. Of neighbours the highest and the lowest stay, so no peak is lost."""
    if len(points) <= POINTS_MAX:
        return points
    step = -(-2 * len(points) // POINTS_MAX)
    found: list[tuple[float, float]] = []
    for start in range(0, len(points), step):
        piece = points[start : start + step]
        found += sorted({min(piece, key=lambda each: each[1]), max(piece, key=lambda each: each[1])})
    return found


def _time_ticks(least: float, most: float, count: int) -> list[float]:
    """Round times: seconds, minutes or hours."""
    steps = [SECOND * each for each in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 86400)]
    step = next((each for each in steps if (most - least) / each <= count), steps[-1])
    first = -(-int(least) // step)
    return [float(number * step) for number in range(first, int(most) // step + 1)] or [least]


@dataclass(frozen=True, slots=True)
class _Frame:
    """The axes of a plot and their scales."""

    x: svg.LinearScale
    y: svg.LinearScale
    format_x: Format
    format_y: Format
    rows: Sequence[float] = field(default_factory=list)

    @property
    def left(self) -> float:
        return self.x.start

    @property
    def right(self) -> float:
        return self.x.end

    @property
    def top(self) -> float:
        return self.y.end

    @property
    def bottom(self) -> float:
        return self.y.start

    @classmethod
    def around(
        cls, xs: Sequence[float], ys: Sequence[float], width: int, top: float, format_x: Format, format_y: Format
    ) -> "_Frame":
        low, high = min(ys), max(ys)
        high = high if high > low else low + 2 * _margin(low)
        rows = svg.ticks(low, high, ROWS)
        left = max(_text_width(format_y(row)) for row in rows) + 10
        first, last = min(xs), max(xs)
        if last <= first:  # a single instant is drawn in the middle
            first, last = first - _margin(first), first + _margin(first)
        x = svg.LinearScale(first, last, left, width - 12)
        y = svg.LinearScale(low, high, top + HEIGHT, top + 10)
        return cls(x, y, format_x, format_y, rows)

    def axes(self) -> list[str]:
        parts = []
        for row in self.rows:
            y = self.y(row)
            parts.append(svg.line(self.left, y, self.right, y, class_="grid"))
            parts.append(_text(self.left - 6, y + 4, self.format_y(row) if row else "0", "end"))
        count = max(2, int((self.right - self.left) / 95))
        find = _time_ticks if self.format_x is format_instant else svg.ticks
        for at in find(self.x.least, self.x.most, count):
            text = self.format_x(at)
            half = _text_width(text) / 2
            x = min(max(self.x(at), self.left + half), self.right - half + 8)
            parts.append(_text(x, self.bottom + 18, text, "middle"))
        return parts


def _margin(value: float) -> float:
    """Around a single value: large enough not to be lost in rounding, as 1 ns is in a time since 1970."""
    return max(0.5, abs(value) * ALONE_PART)


def _drawn(line: PlotLine, number: int, frame: _Frame) -> str:
    places = [(frame.x(x), frame.y(y)) for x, y in line.points]
    if line.dots or len(places) == 1:
        dots = "".join(svg.element("circle", cx=x, cy=y, r=2) for x, y in places)
        return svg.element("g", dots, class_=f"c{number % COLOURS}")
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return svg.element("polyline", svg.title(line.name), class_=_stroke(number), points=path)


def _stroke(number: int) -> str:
    """The classes of a line. Lines beyond the last colour are dashed."""
    return f"c{number % COLOURS} line{' again' if number >= COLOURS else ''}"


def _event(x: float, frame: _Frame, what: str) -> str:
    return svg.line(x, frame.top, x, frame.bottom, tooltip=what, class_="mark")


def _limit(y: float, frame: _Frame, what: str) -> str:
    line = svg.line(frame.left, y, frame.right, y, class_="limit")
    return line + _text(frame.right - 4, y - 4 if y > frame.top + 14 else y + 14, what, "end")


def _legend(names: Sequence[str], width: int) -> tuple[list[str], float]:
    """Names beside their colours in as many rows as they need, and the height of that."""
    parts, x, y = [], 4.0, 14.0
    for number, name in enumerate(names):
        needs = _text_width(name) + 32
        if x > 4 and x + needs > width:
            x, y = 4.0, y + 18
        parts.append(svg.line(x, y - 4, x + 14, y - 4, class_=f"{_stroke(number)} key"))
        parts.append(_text(x + 19, y, name, "start"))
        x += needs
    return parts, y + 4


def _text_width(text: str) -> float:
    """About how many pixels a text takes. Fonts differ, so this is an upper estimate."""
    return sum(next((width for some, width in LETTERS.items() if letter in some), _usual(letter)) for letter in text)


def _usual(letter: str) -> float:
    return 8.6 if letter.isupper() else 7.6


def _text(x: float, y: float, content: str, anchor: str) -> str:
    return svg.text(float(x), float(y), content, text_anchor=anchor)


def _nothing(width: int) -> str:
    return _document(width, 40, [_text(width / 2, 24, "nothing to show", "middle")])


def _document(width: int, height: float, parts: Sequence[str]) -> str:
    return svg.document(width, round(height), "".join(parts))

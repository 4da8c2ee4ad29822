"""SVG as text: elements, documents, and scales from values to pixels.

All pictures of the project are written with these functions: plots of a report, space-time diagrams, shares of races.
Text is escaped here and nowhere else. Numbers are written with one decimal, which is a tenth of a pixel.
"""

from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from typing import Final

NAMESPACE: Final = "http://www.w3.org/2000/svg"


def element(tag: str, content: str | None = None, /, **attributes: str | float) -> str:
    """An element. Its content is markup; without content it closes itself.

    `class_` stands for `class`, and an underscore in a name for a hyphen: `text_anchor`, `stroke_width`.
    """
    head = "".join(f' {_name(name)}="{_value(value)}"' for name, value in attributes.items())
    return f"<{tag}{head}/>" if content is None else f"<{tag}{head}>{content}</{tag}>"


def document(width: float, height: float, content: str, **attributes: str | float) -> str:
    """A whole picture, as large as its view box."""
    box = f"0 0 {_value(width)} {_value(height)}"
    return element("svg", content, xmlns=NAMESPACE, viewBox=box, width=width, height=height, **attributes)


def text(x: float, y: float, content: str, /, **attributes: str | float) -> str:
    """A text whose baseline begins, or is anchored, at this point."""
    return element("text", escape(content), x=x, y=y, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, /, tooltip: str | None = None, **attributes: str | float) -> str:
    """A straight line."""
    content = None if tooltip is None else title(tooltip)
    return element("line", content, **attributes, x1=x1, y1=y1, x2=x2, y2=y2)


def title(content: str, /) -> str:
    """The tooltip of the element that this is the content of."""
    return element("title", escape(content))


def _name(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _value(value: str | float) -> str:
    if isinstance(value, str):
        return escape(value)
    return f"{value:.1f}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class LinearScale:
    """Values from `least` to `most` as pixels from `start` to `end`."""

    least: float
    most: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        return self.start + (value - self.least) / (self.most - self.least) * (self.end - self.start)


@dataclass(frozen=True, slots=True)
class LogScale:
    """Positive values as pixels: equal ratios are equally far apart. Values below `least` are drawn at `start`."""

    least: float
    most: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        share = log10(max(value, self.least) / self.least) / log10(self.most / self.least)
        return self.start + share * (self.end - self.start)


def ticks(least: float, most: float, count: int) -> list[float]:
    """About `count` round numbers from least to most."""
    if most <= least:
        return [least]
    raw = (most - least) / max(count, 1)
    power = 10.0 ** floor(log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first = floor(least / step + 0.999999)
    return [number * step for number in range(first, floor(most / step + 1e-6) + 1)]


def decades(least: float, most: float) -> list[float]:
    """The powers of ten that enclose these positive values; at least two."""
    first, last = floor(log10(least) + 1e-9), ceil(log10(most) - 1e-9)
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]

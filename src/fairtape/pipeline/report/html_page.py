"""Self-contained pages: one HTML file with its style and its plots, without scripts and without network requests.

A section has a title, a finding in the colour of its verdict, plots, an explanation below them, and a table with the
exact numbers, which is closed unless the section says otherwise.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from html import escape
from typing import Final

from fairtape.pipeline.report.plots import Plot, figure

ROWS_SHOWN_MAX: Final = 200

STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --good: #15803d; --attention: #c2410c; --failed: #b91c1c;
  --soft: #5b6470; --card: #f6f7f9;
  --c0: #2563eb; --c1: #d97706; --c2: #059669; --c3: #9333ea; --c4: #dc2626; --c5: #0891b2; }
@media (prefers-color-scheme: dark) { :root { --good: #4ade80; --attention: #fb923c; --failed: #f87171;
  --soft: #a3acb8; --card: #1d2127;
  --c0: #60a5fa; --c1: #fbbf24; --c2: #34d399; --c3: #c084fc; --c4: #f87171; --c5: #22d3ee; } }
body { font: 15px/1.55 system-ui, sans-serif; margin: 1.5rem auto; max-width: 56rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.25rem 0 .25rem; }
p { margin: .35rem 0; } .soft { color: var(--soft); }
.verdict { font-weight: 600; } .good { color: var(--good); } .attention { color: var(--attention); }
.failed { color: var(--failed); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr)); gap: .75rem; margin: 1rem 0; }
@media (min-width: 56rem) { .facts { grid-template-columns: repeat(4, 1fr); } }
.facts div { background: var(--card); border-radius: .4rem; padding: .5rem .75rem; }
.facts dt { font-size: .78rem; color: var(--soft); } .facts dd { margin: 0; font-size: 1.15rem; }
.facts dd, table { font-variant-numeric: tabular-nums; } dl { margin: 0; }
figure { margin: .75rem 0; overflow-x: auto; } svg { display: block; max-width: 100%; height: auto; }
.narrow { display: none; } @media (max-width: 56rem) { .wide { display: none; } .narrow { display: block; } }
svg text { font: 12px system-ui, sans-serif; fill: currentColor; } .grid { stroke: var(--line); }
.c0 { fill: var(--c0); stroke: none; } .c1 { fill: var(--c1); } .c2 { fill: var(--c2); } .c3 { fill: var(--c3); }
.c4 { fill: var(--c4); } .c5 { fill: var(--c5); } .line { fill: none; stroke-width: 1.6; }
.line.c0 { stroke: var(--c0); } .line.c1 { stroke: var(--c1); } .line.c2 { stroke: var(--c2); }
.line.c3 { stroke: var(--c3); } .line.c4 { stroke: var(--c4); } .line.c5 { stroke: var(--c5); }
.mark { stroke: var(--attention); stroke-dasharray: 3 3; } .limit { stroke: var(--soft); stroke-dasharray: 6 4; }
.up { fill: var(--good); stroke: var(--good); } .down { fill: var(--attention); stroke: var(--attention); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; }
th { text-align: left; font-weight: 500; color: var(--soft); font-size: .8rem; vertical-align: bottom; }
.again { stroke-dasharray: 5 3; } .key { stroke-width: 4; }
td, th { border-bottom: 1px solid var(--line); padding: .2rem .7rem .2rem 0; white-space: nowrap; }
td.number, th.number { text-align: right; } summary { cursor: pointer; color: var(--soft); font-size: .9rem; }
@media (max-width: 56rem) { td, th { padding-right: .5rem; } th { white-space: normal; } }
nav { font-size: .9rem; margin: .75rem 0; } nav a { margin-right: .9rem; white-space: nowrap; }
a { color: var(--c0); } code { font-size: .9em; } footer { margin: 3rem 0 1rem; font-size: .85rem; }
"""

_UNIT: Final = re.compile(r"(\d) (%|n?s\b|[mµ]s\b|min\b|h\b|days\b|UTC\b)")


class PageVerdict(Enum):
    """What a section's finding means. The values are classes of the style sheet."""

    GOOD = "good"  # as guaranteed
    ATTENTION = "attention"  # the operator should act
    FAILED = "failed"  # a guarantee was broken
    NEUTRAL = "soft"  # information


@dataclass(frozen=True, slots=True)
class HtmlTable:
    """A table of formatted cells."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def html(self) -> str:
        """The table; columns of numbers are aligned to the right."""
        right = [all(_is_number(row[at]) for row in self.rows) for at in range(len(self.columns))]
        head = "".join(_cell("th", name, number) for name, number in zip(self.columns, right, strict=True))
        shown = self.rows[:ROWS_SHOWN_MAX]
        body = "".join(
            f"<tr>{''.join(_cell('td', *each) for each in zip(row, right, strict=True))}</tr>" for row in shown
        )
        left_out = len(self.rows) - len(shown)
        more = f'<p class="soft">{left_out:,} more rows are in the files beside this page.</p>' if left_out else ""
        return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One question and its answer."""

    title: str
    verdict: PageVerdict
    finding: str  # the answer, in one or two sentences
    explanation: Sequence[str] = ()  # what the plot shows, and how to read it
    plots: Sequence[Plot] = ()
    table: HtmlTable | None = None
    is_open: bool = False  # whether the table is shown without a click

    @property
    def anchor(self) -> str:
        """The fragment of links to this section."""
        return self.title.lower().replace(" ", "-")

    def html(self) -> str:
        """The section."""
        plots = "".join(figure(plot, f"{self.title}: {self.finding}") for plot in self.plots)
        explanation = "".join(f"<p>{_prose(paragraph)}</p>" for paragraph in self.explanation)
        table = ""
        if self.table is not None and self.table.rows:
            table = self.table.html()
            if not self.is_open:
                table = f"<details><summary>The numbers</summary>{table}</details>"
        return (
            f'<section id="{escape(self.anchor)}"><h2>{escape(self.title)}</h2>'
            f'<p class="verdict {self.verdict.value}">{_prose(self.finding)}</p>{plots}{explanation}{table}</section>'
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A whole page."""

    title: str
    opening: Sequence[str]
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    closing: Sequence[str] = ()

    def html(self) -> str:
        """The file."""
        opening = "".join(f"<p>{_prose(sentence)}</p>" for sentence in self.opening)
        facts = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in self.facts)
        links = " ".join(f'<a href="#{escape(each.anchor)}">{escape(each.title)}</a>' for each in self.sections)
        sections = "".join(section.html() for section in self.sections)
        closing = "".join(f"<p>{_prose(sentence)}</p>" for sentence in self.closing)
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f'<title>{escape(self.title)}</title><link rel="icon" href="data:,"><style>{STYLE}</style></head><body>'
            f"<h1>{escape(self.title)}</h1>{opening}<nav>{links}</nav>"
            f'<dl class="facts">{facts}</dl>{sections}<footer class="soft">{closing}</footer></body></html>\n'
        )


def _prose(text: str) -> str:
    """Escaped text in which no line breaks between a number and its unit."""
    return _UNIT.sub("\\1&nbsp;\\2", escape(text))


def _cell(kind: str, text: str, is_number: bool) -> str:
    right = ' class="number"' if is_number else ""
    return f"<{kind}{right}>{escape(text)}</{kind}>"


def _is_number(text: str) -> bool:
    return not text or text[0].isdigit() or (text[0] in "-−–" and text[1:2].isdigit()) or text == "–"

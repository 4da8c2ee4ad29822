"""The section of a report about the links between sites: what they lose, and how long they take."""

from collections.abc import Mapping
from typing import Any, Final

from fairtape.pipeline.report.html_page import HtmlTable, PageVerdict, Section
from fairtape.pipeline.report.names import Names
from fairtape.pipeline.report.plots import BarPlot, told_duration, told_share
from fairtape.pipeline.report.sections import Rows

TITLE: Final = "Links between sites"
BARS_MAX: Final = 12  # of the plot: the slowest; the table has all
DELAYS: Final = ("p50", "p99", "most")


def links_section(links: Rows, sources: Rows, retries: Rows, names: Names) -> Section:
    """From the traces of sites."""
    tokens = sum(row["tokens"] for row in links)
    gone = sum(row["lost"] + row["absent"] for row in links)
    messages, missing = (sum(row[name] for row in sources) for name in ("messages", "missing"))
    unasked = sum(row["tokens"] for row in retries if row["requests"] == 0)
    timed = sorted((row for row in links if row["count"]), key=lambda row: -row["p50"])
    return Section(
        title=TITLE,
        verdict=PageVerdict.NEITHER,
        finding=f"{told_share(gone / max(tokens, 1))} of the acknowledgments between sites had to be asked for because "
        f"they were lost, and {told_share(missing / max(messages, 1))} of the messages of sources; "
        f"{told_share(unasked / max(tokens, 1))} of the tokens needed no request at all.",
        told=(
            (
                "Each bar is the median delay of one way between two sites, the slowest ones first. It is measured "
                "with the clocks of both, on acknowledgments that came by themselves. Ring order and timing are "
                "planned from these figures."
            ),
            (
                "An acknowledgment that was asked for, and of which the first copy came after all, was late and not "
                "lost. One that never came was that of a site that had failed, as a rule."
            ),
        ),
        plots=[
            BarPlot(
                bars=[(_way(row, names), float(row["p50"])) for row in timed[:BARS_MAX]],
                told=told_duration,
            )
        ],
        table=HtmlTable(
            ("way", "stripe", "acknowledgments", "lost", "late", "never came", *DELAYS),
            [
                (
                    _way(row, names),
                    f"{row['stripe']}",
                    *(f"{row[name]:,}" for name in ("tokens", "lost", "late", "absent")),
                    *("" if row[name] is None else told_duration(row[name]) for name in DELAYS),
                )
                for row in links
            ],
        ),
    )


def _way(row: Mapping[str, Any], names: Names) -> str:
    return f"{names.site(row['from_site'])} → {names.site(row['to_site'])}"

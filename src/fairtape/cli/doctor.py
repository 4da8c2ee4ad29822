"""`fairtape doctor`: checks whether this machine can run a site, and says what to improve."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Final

import click

from fairtape.core.errors import UserError

if TYPE_CHECKING:
    from fairtape.deployment.operations.doctor import Finding

EXIT_BAD: Final = 1
WIDTH_MAX: Final = 100  # of a line, however wide the terminal is


@click.command()
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    default=Path(),
    show_default="this folder",
    help="Where journals would be written.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.pass_context
def doctor(ctx: click.Context, *, directory: Path, as_json: bool) -> None:
    """Check this machine and say what to improve.

    "bad" prevents a site from running here; the exit code is then 1. A clock that is not synchronised is bad as well,
    but a deployment on this machine alone runs with it. "note" costs speed, precision or a feature.
    """
    from fairtape.deployment.operations.doctor import CheckStatus, examine

    if not directory.is_dir():
        raise UserError(f"--directory is {str(directory)!r}, which is not a folder; create it or name another")
    findings = list(examine(directory.absolute()))
    click.echo(_as_json(findings) if as_json else _table(findings))
    ctx.exit(EXIT_BAD if any(finding.status is CheckStatus.BAD for finding in findings) else 0)


def _table(findings: Sequence["Finding"]) -> str:
    from fairtape.deployment.operations.doctor import CheckStatus

    width = max(len(finding.name) for finding in findings)
    lines = [line for finding in findings for line in _lines(finding, width)]
    counts = Counter(finding.status for finding in findings)
    summary = f"{len(findings)} checks: " + ", ".join(f"{counts[status]} {status}" for status in CheckStatus)
    return "\n".join((*lines, "", summary))


def _lines(finding: "Finding", width: int) -> list[str]:
    """The finding, and the advice below it."""
    from fairtape.deployment.operations.doctor import CheckStatus

    first = f"{finding.status:4}  {finding.name:{width}}  "
    below = " " * len(first)
    lines = _wrapped(finding.found, first, below)
    return lines if finding.status is CheckStatus.GOOD else lines + _wrapped(finding.advice, f"{below}→ ", f"{below}  ")


def _wrapped(text: str, first: str, below: str) -> list[str]:
    """Break lines only at blanks, so that commands can be copied."""
    return TextWrapper(
        WIDTH_MAX, initial_indent=first, subsequent_indent=below, break_on_hyphens=False, break_long_words=False
    ).wrap(text)


def _as_json(findings: Sequence["Finding"]) -> str:
    from fairtape.deployment.operations.doctor import CheckStatus

    bad = sum(finding.status is CheckStatus.BAD for finding in findings)
    return json.dumps({"findings": [asdict(finding) for finding in findings], "bad": bad})

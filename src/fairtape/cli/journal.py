"""`fairtape journal`: list, print, export and verify the journal of a site.

Exit code 1: a journal is damaged, or journals differ. 2: wrong usage. 3: journals agree where they overlap, and one of
them is shorter than another.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fairtape.cli.terminal import check_within, counted, format_instant, parse_instant
from fairtape.core.errors import UserError
from fairtape.wire.frames import NUMBER_MAX

if TYPE_CHECKING:
    from fairtape.core.effects import FormationChange
    from fairtape.journal import AuditReport, Comparison, Extent, JournalMessage, JournalReader, Problem, Summary

EXIT_DAMAGED: Final = 1
EXIT_SHORTER: Final = 3
PROGRESS_SIZE_MIN: Final = 64 << 20  # bytes: a smaller journal takes no noticeable time
PAYLOAD_SHOWN_MAX: Final = 96  # bytes of a payload that a line shows

Directory: Final = click.Path(path_type=Path)


@click.group()
def journal() -> None:
    """Read and check a site's journal."""


@journal.command()
@click.argument("directory", type=Directory)
@click.option("--last", type=int, help="Only the last N segments.", metavar="N")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per segment.")
def ls(directory: Path, last: int | None, as_json: bool) -> None:
    """List the segments of the journal in DIRECTORY."""
    from fairtape.journal.segments import summarize

    check_within("--last", last, 1, NUMBER_MAX)
    with _damage_reported():
        paths = _existing(directory).paths()[-(last or 0) :]
        summaries = map(summarize, paths)
        if as_json:
            for summary in summaries:
                _echo_json(_segment_fields(summary))
        else:
            widest = map(summarize, (paths[0], paths[-1]))  # the first is full, and numbers grow
            _echo_table([_SEGMENT_TITLES, *map(_segment_cells, widest)], map(_segment_cells, summaries))


@journal.command()
@click.argument("directory", type=Directory)
@click.option("--from-seq", type=int, default=1, show_default=True, help="First sequence number.")
@click.option("--to-seq", type=int, help="Last sequence number.  [default: the last in the journal]")
@click.option("--since", metavar="TIME", help="Start at this acknowledgment time: ISO 8601 (default UTC) or ns.")
@click.option("--limit", type=int, help="Stop after N messages.", metavar="N")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per message.")
@click.option("--ordered", is_flag=True, help="Also print ordered messages that this site has not released.")
def cat(
    directory: Path,
    from_seq: int,
    to_seq: int | None,
    since: str | None,
    limit: int | None,
    as_json: bool,
    ordered: bool,
) -> None:
    """Print the messages of the journal in DIRECTORY, one per line.

    A change of formation has its own line. BREAK means that more sites failed than the formation tolerates: from there
    on, lost sites may have assigned the same sequence numbers to other messages.
    """
    from fairtape.journal import JournalMessage

    check_within("--from-seq", from_seq, 1, NUMBER_MAX)
    check_within("--to-seq", to_seq, 1, NUMBER_MAX)
    check_within("--limit", limit, 0, NUMBER_MAX)
    since_at = None if since is None else parse_instant("--since", since)
    with _damage_reported():
        last = NUMBER_MAX if to_seq is None else to_seq
        records = _existing(directory).messages_and_formations(
            from_sequence=from_seq, to_sequence=last, since=since_at, ordered=ordered
        )
        for record in _limited(records, limit):
            if as_json:
                _echo_json(_message_fields(record) if isinstance(record, JournalMessage) else _change_fields(record))
            else:
                click.echo(_message_line(record) if isinstance(record, JournalMessage) else _change_line(record))


def _limited(
    records: Iterator["JournalMessage | FormationChange"], limit: int | None
) -> Iterator["JournalMessage | FormationChange"]:
    """Stop after `limit` messages. Changes of formation do not count."""
    from fairtape.journal import JournalMessage

    left = limit
    while left is None or left > 0:
        record = next(records, None)
        if record is None:
            return
        if left is not None:
            left -= isinstance(record, JournalMessage)
        yield record


@journal.command()
@click.argument("directory", type=Directory)
@click.argument("file", type=click.Path(path_type=Path))
def export(directory: Path, file: Path) -> None:
    """Write the trades of the journal in DIRECTORY to FILE.

    The suffix selects the format: .parquet, .csv, .dbn or .itch (ITCH 5.0, each message with a length prefix). Every
    field is kept, times in nanoseconds. A trade that a format cannot represent is refused, except in ITCH, which gets a
    wide trade message defined by fairtape. Trades are written as published: cancels and corrections are not applied.
    """
    from fairtape.tape.export import export_trades

    exported = export_trades(directory, file)
    left = f"; {exported.others:,} messages that are not trades were left out" if exported.others else ""
    click.echo(f"{exported.trades:,} trades in {file}{left}")


@journal.command("verify", short_help="Verify journals, and that they hold the same order.")
@click.argument("directories", type=Directory, nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print the results as one JSON object.")
def verify_command(directories: tuple[Path, ...], as_json: bool) -> None:
    """Verify the journals in DIRECTORIES, and that they hold the same order.

    Checks of every journal: all digests, no gaps in sequence numbers and release marks, no release before its commit
    instant, late releases marked late. Checks of several journals: equal bytes from the latest beginning to the
    earliest end.

    Exit code 0: sound, and several journals hold the same order from the same beginning to the same end. 1: damaged or
    different. 3: equal where they overlap, but one is SHORTER: it begins later or ends earlier than another, like the
    journal of a site that joined later, is behind, or failed.
    """
    from fairtape.journal import compare, verify

    sizes = [sum(path.stat().st_size for path in _existing(directory).paths()) for directory in directories]
    compared = len(directories) > 1
    with _progress(sum(sizes) * (2 if compared else 1)) as progress:
        reports = [verify(directory, progress=progress) for directory in directories]
        sound = all(report.sound for report in reports)
        comparison = compare(directories, progress=progress) if compared and sound else None
    if as_json:
        _echo_json({"journals": list(map(_report_fields, reports)), "comparison": _comparison_fields(comparison)})
    else:
        _print_reports(reports, comparison, compared=compared)
    if not sound or (comparison and not comparison.same):
        click.get_current_context().exit(EXIT_DAMAGED)
    if comparison and not comparison.level:
        click.get_current_context().exit(EXIT_SHORTER)


def _existing(directory: Path) -> "JournalReader":
    from fairtape.journal import JournalReader

    found = JournalReader.open(directory)
    if found.last_path() is None:
        raise UserError(f"directory {str(directory)!r} holds no journal; give the journal directory of a site")
    return found


@contextmanager
def _damage_reported() -> Iterator[None]:
    """Damage is not a usage error: it has its own exit code."""
    from fairtape.journal import Damaged

    try:
        yield
    except Damaged as damage:
        click.echo(f"fairtape: {damage}", err=True)
        click.get_current_context().exit(EXIT_DAMAGED)


@contextmanager
def _progress(size: int) -> Iterator[Callable[[int], None] | None]:
    """A progress bar on a terminal, for large journals."""
    if size < PROGRESS_SIZE_MIN or not sys.stderr.isatty():
        yield None
        return
    with click.progressbar(length=size, label="verifying", file=sys.stderr) as bar:
        yield bar.update


def _echo_json(value: object) -> None:
    click.echo(json.dumps(value, separators=(",", ":")))


def _echo_table(widest: list[tuple[str, ...]], rows: Iterator[tuple[str, ...]]) -> None:
    """Print the first of the `widest` as titles, and each row when it is there: a journal may have many segments."""
    widths = [max(map(len, column)) for column in zip(*widest, strict=True)]
    for row in chain(widest[:1], rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


_SEGMENT_TITLES: Final = (
    "file", "sequences", "tokens", "entries", "first acknowledged", "last acknowledged", "bytes", "formations"
)  # fmt: skip


def _segment_cells(summary: "Summary") -> tuple[str, ...]:
    breaks = f", {summary.breaks} BREAK" if summary.breaks else ""
    formations = f"{summary.changes} begun{breaks}" if summary.changes else "-"
    if not summary.entries:
        return summary.path.name, "-", "-", "0", "-", "-", str(summary.size), formations
    return (
        summary.path.name,
        f"{summary.first_sequence}…{summary.last_sequence}",
        f"{summary.first_token}…{summary.last_token}",
        str(summary.entries),
        format_instant(summary.first_at),
        format_instant(summary.last_at),
        str(summary.size),
        formations,
    )


def _segment_fields(summary: "Summary") -> dict[str, Any]:
    return {
        "file": summary.path.name,
        "segment": summary.number,
        "stripe": summary.stripe,
        "site": summary.site,
        "entries": summary.entries,
        "first_sequence": summary.first_sequence,
        "last_sequence": summary.last_sequence,
        "first_token": summary.first_token,
        "last_token": summary.last_token,
        "first_acknowledged_at_ns": summary.first_at,
        "last_acknowledged_at_ns": summary.last_at,
        "size_bytes": summary.size,
        "formations": summary.changes,
        "breaks": summary.breaks,
    }


def _message_line(message: "JournalMessage") -> str:
    released = "unreleased" if message.released_at is None else format_instant(message.released_at)
    late = " LATE" if message.late else ""
    origin = f"{message.source}.{message.incarnation}#{message.number}"
    return f"{message.sequence} {released}{late} {origin} token {message.token} {_shown(message.payload)}"


def _change_line(change: "FormationChange") -> str:
    word = "BREAK, formation" if change.broken else "formation"
    begins = f"begins with token {change.token}, sequence {change.sequence}"
    return f"- {format_instant(change.installed_at)} {word} {change.formation} {begins}"


def _change_fields(change: "FormationChange") -> dict[str, Any]:
    return {
        "kind": "formation",
        "formation": change.formation,
        "broken": change.broken,
        "token": change.token,
        "sequence": change.sequence,
        "installed_at_ns": change.installed_at,
        "layout": change.layout.hex(),
    }


def _message_fields(message: "JournalMessage") -> dict[str, Any]:
    fields: dict[str, Any] = {
        "kind": "message",
        "sequence": message.sequence,
        "source": message.source,
        "incarnation": message.incarnation,
        "number": message.number,
        "token": message.token,
        "acknowledged_at_ns": message.acknowledged_at,
        "commit_at_ns": message.commit_at,
        "released_at_ns": message.released_at,
        "late": message.late,
        "payload": message.payload.hex(),
    }
    if trade := _trade_fields(message.payload):
        fields["trade"] = trade
    elif text := _notice_text(message.payload):
        fields["notice"] = text
    return fields


def _shown(payload: bytes) -> str:
    """A trade or a notice as text, printable ASCII in quotes, other bytes in hex."""
    if trade := _trade_fields(payload):
        side = f" {trade['side']}" if trade["side"] else ""
        venue = f"@{trade['venue']}" if trade["venue"] else ""
        return f"{trade['symbol']}{venue} {trade['quantity']} at {trade['price']}{side}"
    if text := _notice_text(payload):
        return text
    head, more = payload[:PAYLOAD_SHOWN_MAX], "…" if len(payload) > PAYLOAD_SHOWN_MAX else ""
    if head.isascii() and head.decode("ascii").isprintable():
        return f'"{head.decode("ascii")}{more}"'
    return f"0x{head.hex()}{more}"


def _trade_fields(payload: bytes) -> dict[str, Any] | None:
    """The fields of a trade; None for any other message."""
    # Imports NumPy, which `ls` and `verify` do not need.
    from fairtape.market.prices import format_fixed
    from fairtape.market.trades import BadTrade, TradeFlag, decode

    try:
        trade = decode(payload)
    except BadTrade:
        return None
    return {
        "venue": trade.venue_name,
        "symbol": trade.symbol,
        "price": format_fixed(trade.price),
        "quantity": format_fixed(trade.quantity),
        "traded_at_ns": trade.traded_at,
        "trade_id": trade.trade_id,
        "side": " ".join(flag.name.lower() for flag in TradeFlag if trade.flags & flag and flag.name),
    }


def _notice_text(payload: bytes) -> str | None:
    """The text of a venue's notice; None for any other message."""
    from fairtape.market.notices import in_words, notice_in

    notice = notice_in(payload)
    return None if notice is None else in_words(notice)


def _report_fields(report: "AuditReport") -> dict[str, Any]:
    return {
        "directory": str(report.directory),
        "site": report.site,
        "stripe": report.stripe,
        "sound": report.sound,
        "segments": report.segments,
        "entries": report.entries,
        "messages": report.messages,
        "formations": report.formations,
        "breaks": [each._asdict() for each in report.breaks],
        "first_sequence": report.first_sequence,
        "last_sequence": report.last_sequence,
        "last_token": report.last_token,
        "released_sequence": report.released_sequence,
        "late_messages": report.late,
        "digest": report.digest.hex(),
        "size_bytes": report.size,
        "unfinished_bytes": report.unfinished,
        "problems": list(map(_problem_fields, report.problems)),
        "remarks": list(map(_problem_fields, report.remarks)),
    }


def _problem_fields(problem: "Problem") -> dict[str, Any]:
    return {
        "file": str(problem.path),
        "offset": problem.offset,
        "sequence": problem.sequence,
        "reason": problem.reason,
    }


def _comparison_fields(comparison: "Comparison | None") -> dict[str, Any] | None:
    if comparison is None:
        return None
    difference = comparison.difference
    return {
        "same": comparison.same,
        "level": comparison.level,
        "entries": comparison.entries,
        "messages": comparison.messages,
        "first_sequence": comparison.first_sequence,
        "last_sequence": comparison.last_sequence,
        "difference": difference
        and {
            "sequence": difference.sequence,
            "token": difference.token,
            "reason": difference.reason,
            "places": [{"file": str(path), "offset": offset} for path, offset in difference.places],
        },
        "extents": [
            {
                "directory": str(extent.directory),
                "first_sequence": extent.first_sequence,
                "last_sequence": extent.last_sequence,
                "lacks_before": extent.lacks_before,
                "lacks_behind": extent.lacks_behind,
            }
            for extent in comparison.extents
        ],
    }


def _print_reports(reports: list["AuditReport"], comparison: "Comparison | None", *, compared: bool) -> None:
    for report in reports:
        _print_report(report)
    if comparison is not None:
        for line in _comparison_lines(comparison):
            click.echo(line)
    elif compared:
        click.echo("not compared: a journal is damaged")


def _print_report(report: "AuditReport") -> None:
    state = "sound" if report.sound else "DAMAGED"
    click.echo(
        f"{report.directory}: {state}, site {report.site}, sequence {report.first_sequence}…{report.last_sequence} "
        f"(released up to {report.released_sequence}, {report.late} late), {counted(report.messages, 'message')} in "
        f"{report.entries:,} entries and {counted(report.segments, 'segment')}, digest {report.digest.hex()}"
    )
    for each in report.breaks:
        click.echo(
            f"  BREAK: formation {each.formation} begins with token {each.token}, sequence {each.sequence}; "
            "from there on, lost sites may have assigned the same numbers to other messages"
        )
    if report.unfinished:
        click.echo(f"  the last {report.unfinished} bytes are an unfinished entry, which the next writer truncates")
    for problem in report.problems:
        click.echo(f"  {_place(problem)}: {problem.reason}")
    for remark in report.remarks:
        click.echo(f"  note: {_place(remark)}: {remark.reason}")


def _place(problem: "Problem") -> str:
    return f"{problem.path.name}, byte {problem.offset}, sequence {problem.sequence}"


def _comparison_lines(comparison: "Comparison") -> Iterator[str]:
    difference = comparison.difference
    if difference is not None:
        places = " and ".join(f"{path}, byte {offset}" for path, offset in difference.places)
        yield f"DIFFERENT from sequence {difference.sequence}, token {difference.token}: {difference.reason} ({places})"
    elif comparison.messages:
        common = f"sequence {comparison.first_sequence}…{comparison.last_sequence}"
        yield f"the same order everywhere: {comparison.messages} messages, {common}"
    else:
        yield "nothing to compare: no sequence number is in all journals"
    for extent in comparison.extents:
        if not extent.complete:
            yield f"SHORTER: {extent.directory} {' and '.join(_lacks(extent))}"


def _lacks(extent: "Extent") -> Iterator[str]:
    if extent.lacks_before:
        yield f"begins with sequence {extent.first_sequence}, {extent.lacks_before} messages after another"
    if extent.lacks_behind:
        yield f"ends with sequence {extent.last_sequence}, {extent.lacks_behind} messages before another"

"""The printed tape: one order from the journals of several sites, and output that never waits for a slow reader."""

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import unit.journal.journal_values as values
from fairtape.cli.tape_printer import CHUNKS_MAX, JsonLines, OutputThread, PrintState, TapePrinter, TextLines
from fairtape.core.effects import FormationChange, Ordered, Span
from fairtape.core.entries import Entry as Content
from fairtape.core.errors import UserError
from fairtape.journal import JournalFollower
from fairtape.market.trades import PublishedTrade, encode
from fairtape.ring.membership.layout import encode_formation
from fairtape.wire.blocks import pack_messages
from unit.ring.ring_values import formation

NAMES = {1: "s1", 2: "s2", 3: "s3", 101: "XNYS"}


def order(count: int, *, first: int = 1, trade_id: int = 0) -> list[Ordered]:
    """Tokens with one trade each; the trade id distinguishes messages with the same number in two orders."""
    found = []
    for at in range(first, first + count):
        body = pack_messages([encode(PublishedTrade(1, "ABC", 5, 7, 9, trade_id + at))])
        span = Span(101, 5, at, 1, at, (body,), (1,))
        found.append(Ordered(values.STRIPE, 1, at, at, 1, values.token_at(at), (span,)))
    return found


def change(before: Ordered, number: int, *, broken: bool = False) -> FormationChange:
    layout = encode_formation(replace(formation((1, 3)), number=number))
    return values.formation_change(before, number, broken=broken, layout=layout)


@contextmanager
def tape_of(
    journals: dict[int, Path], *, text: bool = False, from_sequence: int = 1
) -> Iterator[tuple[TapePrinter, JournalFollower, Path]]:
    """A tape that is printed into a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lines"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        lines = TextLines(NAMES) if text else JsonLines(NAMES)
        follower = JournalFollower(journals, from_sequence=from_sequence)
        yield TapePrinter(follower, OutputThread(descriptor), lines), follower, path


def print_all(tape: TapePrinter) -> None:
    while tape.advance() is not PrintState.CAUGHT_UP:
        pass
    assert tape.flush(lambda: False)


def printed_lines(path: Path) -> list[tuple[str, int, int]]:
    """Of each line: the kind, the number, and which trade or formation."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [(each["kind"], each["sequence"], each.get("trade_id", each.get("formation"))) for each in found]


def write(folder: Path, *parts: Content | Sequence[Content]) -> Path:
    """A journal of these entries, each of the formation that is in force there."""
    history: list[Content] = []
    number = 1
    for part in parts:
        for entry in part if isinstance(part, Sequence) else (part,):
            number = entry.formation if isinstance(entry, FormationChange) else number
            history.append(replace(entry, formation=number))
    values.write(folder, history)
    return folder


def test_a_change_of_formation_is_a_line_at_its_place(tmp_path: Path) -> None:
    one, two, three = order(3)
    write(tmp_path / "s1", one, change(two, 2), two, change(three, 3, broken=True), three)
    with tape_of({1: tmp_path / "s1"}) as (tape, _, path):
        print_all(tape)
        assert printed_lines(path) == [
            ("trade", 1, 1),
            ("formation", 2, 2), ("trade", 2, 2),
            ("formation", 3, 3), ("trade", 3, 3),
        ]  # fmt: skip
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert [row["broken"] for row in rows if row["kind"] == "formation"] == [False, True]
        assert rows[1]["members"] == ["s1", "s3"]
        assert (tape.printed.trades, tape.printed.breaks, tape.printed.through) == (3, 1, 3)
    with tape_of({1: tmp_path / "s1"}, text=True) as (tape, _, path):
        print_all(tape)
        lines = path.read_text().splitlines()
    assert "REFORMATION  formation 2 of s1 s3, from number 2 on" in lines[1]
    assert "BREAK  formation 3 of s1 s3, from number 3 on; lost sites may have" in lines[3]


def test_a_layout_of_another_version_is_printed_without_members(tmp_path: Path) -> None:
    (one,) = order(1)
    write(tmp_path / "s1", values.formation_change(one, 7), one)
    with tape_of({1: tmp_path / "s1"}, text=True) as (tape, _, path):
        print_all(tape)
        assert "REFORMATION  formation 7, from number 1 on\n" in path.read_text()


@settings(max_examples=30)
@given(sizes=st.tuples(st.integers(1, 12), st.integers(0, 12)), turn=st.integers(0, 12))
def test_another_site_goes_on_where_one_stopped(sizes: tuple[int, int], turn: int) -> None:
    """However much one site has released, with the other each number and each formation is printed once."""
    short, more = sizes
    whole = order(short + more)
    turn = min(turn, len(whole) - 1)
    formation_change = change(whole[turn], 2)
    with tempfile.TemporaryDirectory() as folder:
        known = (whole[:turn], formation_change, whole[turn:short]) if turn < short else (whole[:short],)
        journals = {
            1: write(Path(folder) / "s1", *known),
            2: write(Path(folder) / "s2", whole[:turn], formation_change, whole[turn:]),
        }
        with tape_of(journals) as (tape, follower, path):
            print_all(tape)
            follower.follow(2)
            print_all(tape)
            expected = [("trade", each.sequence, each.sequence) for each in whole]
            assert printed_lines(path) == [*expected[:turn], ("formation", turn + 1, 2), *expected[turn:]]


@settings(max_examples=30)
@given(held=st.integers(1, 12), broken_at=st.integers(0, 11), more=st.integers(1, 12))
def test_numbers_after_a_break_are_printed_again(held: int, broken_at: int, more: int) -> None:
    """Decision 21, Where a formation resumes: two different messages share a number only where a Break says so."""
    broken_at = min(broken_at, held - 1)
    lost = order(held)
    others = order(more, first=broken_at + 1, trade_id=1_000)
    with tempfile.TemporaryDirectory() as folder:
        journals = {
            1: write(Path(folder) / "s1", lost),
            2: write(Path(folder) / "s2", lost[:broken_at], change(others[0], 2, broken=True), others),
        }
        with tape_of(journals) as (tape, follower, path):
            print_all(tape)
            follower.follow(2)
            follower.follow(2)
            print_all(tape)
            assert printed_lines(path) == [
                *(("trade", each.sequence, each.sequence) for each in lost),
                ("formation", broken_at + 1, 2),
                *(("trade", each.sequence, 1_000 + each.sequence) for each in others),
            ]


@pytest.mark.parametrize("first", [1, 2, 3, 4])
def test_changes_before_the_start_are_not_printed(tmp_path: Path, first: int) -> None:
    one, two, three = order(3)
    history = one, change(two, 2, broken=True), two, three
    journals = {1: write(tmp_path / "s1", *history), 2: write(tmp_path / "s2", *history)}
    with tape_of(journals, from_sequence=first) as (tape, follower, path):
        follower.follow(2)
        print_all(tape)
        whole = [("trade", 1, 1), ("formation", 2, 2), ("trade", 2, 2), ("trade", 3, 3)]
        assert printed_lines(path) == [line for line in whole if line[1] >= first]


CHUNK = bytes(range(256)) * 1_024  # larger than the buffer of a pipe


def read_all(reader: int) -> bytes:
    """Everything until the writer closes."""
    with os.fdopen(reader, "rb") as file:
        return file.read()


def settle(output: OutputThread) -> None:
    """Wait until everything is written; raises if it cannot be."""
    while not output.idle:
        pass


def test_chunks_are_written_completely_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "out"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    output = OutputThread(descriptor)
    chunks = [bytes([number]) * 5_000 for number in range(CHUNKS_MAX)] + [b""]
    for chunk in chunks:
        while not output.offer(chunk):
            pass
    settle(output)
    assert path.read_bytes() == b"".join(chunks)
    assert output.written == len(chunks)


def test_a_reader_that_stops_fills_the_queue_and_gets_everything_later() -> None:
    reader, writer = os.pipe()
    output = OutputThread(writer)
    offered = 0
    while output.offer(CHUNK):
        offered += 1
    assert CHUNKS_MAX <= offered <= CHUNKS_MAX + 1  # the thread holds one of them
    assert output.written == 0
    received = b""
    while len(received) < offered * len(CHUNK):
        received += os.read(reader, 1 << 20)
    assert received == CHUNK * offered
    settle(output)
    assert output.written == offered


def test_a_closed_pipe_is_reported_to_the_caller() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    output = OutputThread(writer)
    output.offer(CHUNK)
    with pytest.raises(BrokenPipeError):
        settle(output)
    with pytest.raises(BrokenPipeError):
        output.offer(CHUNK)


def test_a_full_disk_is_a_user_error() -> None:
    output = OutputThread(os.open("/dev/full", os.O_WRONLY))
    output.offer(CHUNK)
    with pytest.raises(UserError, match="standard output cannot be written"):
        settle(output)

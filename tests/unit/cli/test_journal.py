"""The commands of `fairtape journal`."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fairtape.cli import run
from fairtape.cli.terminal import format_instant
from fairtape.core.effects import FormationChange, Ordered, Span
from fairtape.core.entries import HEAD_SIZE
from fairtape.journal.format import HEADER_SIZE
from fairtape.market.prices import ONE
from fairtape.market.trades import PublishedTrade, TradeFlag, encode
from fairtape.wire.blocks import pack_messages
from unit.journal import journal_values as values

ENTRIES = values.first(60)
TRADE = PublishedTrade(2, "BTC-USD", 61_804 * ONE, ONE // 4, values.STARTS_AT, 9, TradeFlag.SOLD)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    values.write(tmp_path / "journal", ENTRIES)
    return tmp_path / "journal"


def flip(directory: Path, at: int = HEADER_SIZE + HEAD_SIZE + 8) -> Path:
    file = values.segments(directory)[1]
    content = bytearray(file.read_bytes())
    content[at] ^= 4
    file.write_bytes(content)
    return file


def test_ls_shows_every_segment_and_its_extent(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["journal", "ls", str(journal)]) == 0
    title, *lines = capsys.readouterr().out.splitlines()
    assert title.split()[:2] == ["file", "sequences"]
    assert [line.split()[0] for line in lines] == [file.name for file in values.segments(journal)]
    assert run(["journal", "ls", "--json", str(journal)]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["last_sequence"] + 1 for row in rows[:-1]] == [row["first_sequence"] for row in rows[1:]]
    assert sum(row["entries"] for row in rows) == len(ENTRIES)
    assert rows[0]["first_acknowledged_at_ns"] == ENTRIES[0].acknowledged_at
    assert rows[-1]["last_acknowledged_at_ns"] == ENTRIES[-1].acknowledged_at


def test_ls_can_be_limited_to_the_last_segments(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["journal", "ls", "--last", "2", str(journal)]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [file.name for file in values.segments(journal)[-2:]]
    assert run(["journal", "ls", "--last", "0", str(journal)]) == 2


def test_cat_prints_the_requested_range(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["journal", "cat", str(journal), "--from-seq", "50", "--to-seq", "80", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["sequence"] for row in rows] == sorted(row["sequence"] for row in rows)
    assert all(50 <= row["sequence"] <= 80 for row in rows)
    assert all(row["released_at_ns"] == row["commit_at_ns"] + 7 for row in rows)


def test_cat_begins_at_a_time_in_either_notation(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ordered = ENTRIES[30]
    answers = set()
    for since in (str(ordered.acknowledged_at), format_instant(ordered.acknowledged_at)):
        assert run(["journal", "cat", str(journal), "--since", since, "--limit", "1", "--json"]) == 0
        answers.add(capsys.readouterr().out)
    (answer,) = answers
    assert json.loads(answer)["token"] == ordered.token


def test_cat_formats_trades_text_and_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = pack_messages([encode(TRADE), b"hello", b"\x00\xff", b"x" * 200])
    span = Span(7, 1, 1, 4, 1, (body,), (4,))
    values.write(tmp_path, [Ordered(values.STRIPE, 1, 5, 1, 4, values.STARTS_AT, (span,))])
    assert run(["journal", "cat", str(tmp_path)]) == 0
    trade, text, binary, long = capsys.readouterr().out.splitlines()
    assert trade.endswith("LATE 7.1#1 token 5 BTC-USD@XLON 0.25 at 61804 sold")
    assert text.endswith('"hello"')
    assert binary.endswith("0x00ff")
    assert long.endswith('x…"')
    assert run(["journal", "cat", str(tmp_path), "--json", "--limit", "1"]) == 0
    fields = json.loads(capsys.readouterr().out)["trade"]
    assert (fields["symbol"], fields["venue"], fields["price"], fields["trade_id"]) == ("BTC-USD", "XLON", "61804", 9)


def test_verify_reports_a_sound_journal_and_exits_with_0(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["journal", "verify", str(journal)]) == 0
    assert ": sound, site 6, sequence 1…" in capsys.readouterr().out


def test_verify_names_the_flipped_byte_and_exits_with_1(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = flip(journal)
    assert run(["journal", "verify", str(journal)]) == 1
    output = capsys.readouterr().out
    assert "DAMAGED" in output
    assert f"{file.name}, byte " in output
    assert run(["journal", "verify", "--json", str(journal)]) == 1
    (found,) = json.loads(capsys.readouterr().out)["journals"]
    (problem,) = found["problems"]
    assert problem["file"] == str(file)
    assert problem["sequence"] >= int(file.stem)


def test_verify_of_several_sites_compares_them(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    twin, other = tmp_path / "twin", tmp_path / "other"
    values.write(twin, ENTRIES, behind=5)
    values.write(other, [*ENTRIES[:20], replace(ENTRIES[20], acknowledged_at=9), *ENTRIES[21:]])
    assert run(["journal", "verify", str(journal), str(twin)]) == 0
    assert "the same order everywhere" in capsys.readouterr().out
    assert run(["journal", "verify", str(journal), str(twin), str(other)]) == 1
    assert f"DIFFERENT from sequence {ENTRIES[20].sequence}" in capsys.readouterr().out
    flip(twin)
    assert run(["journal", "verify", str(journal), str(twin)]) == 1
    assert "not compared" in capsys.readouterr().out


def test_verify_names_the_shorter_journal_and_exits_with_3(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = tmp_path / "part"
    values.write(part, ENTRIES[10:40])
    begin, end, last = ENTRIES[10].sequence, ENTRIES[40].sequence - 1, ENTRIES[-1].sequence + ENTRIES[-1].count - 1
    assert run(["journal", "verify", str(journal), str(part)]) == 3
    output = capsys.readouterr().out
    assert f"the same order everywhere: {end - begin + 1} messages, sequence {begin}…{end}" in output
    assert (
        f"SHORTER: {part} begins with sequence {begin}, {begin - 1} messages after another "
        f"and ends with sequence {end}, {last - end} messages before another"
    ) in output
    assert f"SHORTER: {journal}" not in output
    assert run(["journal", "verify", "--json", str(journal), str(part)]) == 3
    found = json.loads(capsys.readouterr().out)["comparison"]
    assert (found["same"], found["level"]) == (True, False)
    assert [extent["lacks_behind"] for extent in found["extents"]] == [0, last - end]


def test_a_break_is_shown_by_every_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two, three = values.first(3)
    quiet, broken = values.formation_change(two, 2), values.formation_change(three, 3, broken=True)
    history: list[Ordered | FormationChange] = [
        one,
        quiet,
        replace(two, formation=2),
        broken,
        replace(three, formation=3),
    ]
    values.write(tmp_path, history)
    assert run(["journal", "ls", str(tmp_path)]) == 0
    assert "2 begun, 1 BREAK" in capsys.readouterr().out
    assert run(["journal", "cat", str(tmp_path)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("-")]
    at = f"{format_instant(three.acknowledged_at)}"
    assert lines[1] == f"- {at} BREAK, formation 3 begins with token {three.token}, sequence {three.sequence}"
    assert " formation 2 begins with" in lines[0]
    assert "BREAK" not in lines[0]
    assert run(["journal", "cat", "--json", "--from-seq", str(three.sequence), "--limit", "1", str(tmp_path)]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["kind"] for row in rows] == ["formation", "message"]
    assert (rows[0]["formation"], rows[0]["broken"], rows[0]["layout"]) == (3, True, b"layout".hex())
    assert run(["journal", "verify", str(tmp_path)]) == 0
    assert f"BREAK: formation 3 begins with token {three.token}, sequence {three.sequence}" in capsys.readouterr().out


def test_damage_found_while_printing_exits_with_1_and_names_the_file(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = flip(journal)
    assert run(["journal", "cat", str(journal), "--ordered"]) == 1
    captured = capsys.readouterr()
    assert captured.out
    assert str(file) in captured.err
    assert len(captured.err.splitlines()) == 1


def test_everything_before_the_damage_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values.write(tmp_path, values.first(20), segment_size_max=1 << 20)
    (file,) = values.segments(tmp_path)
    content = bytearray(file.read_bytes())
    content[-100:] = bytes(100)
    file.write_bytes(content)
    assert run(["journal", "cat", str(tmp_path)]) == 1
    printed, errors = capsys.readouterr()
    assert len(printed.splitlines()) > 10
    assert file.name in errors


@pytest.mark.parametrize("command", ["ls", "cat", "verify"])
def test_a_directory_without_a_journal_is_a_usage_error(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["journal", command, str(tmp_path)]) == 2
    assert "holds no journal" in capsys.readouterr().err
    assert run(["journal", command, str(tmp_path / "nowhere")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_a_malformed_time_is_a_usage_error(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["journal", "cat", str(journal), "--since", "yesterday"]) == 2
    assert "--since is 'yesterday'" in capsys.readouterr().err

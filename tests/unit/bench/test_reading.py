"""The generated ITCH file and journal that the benchmarks read."""

from pathlib import Path

import pytest

from fairtape.bench.reading import MIX, PER_TOKEN, itch_day, write_journal
from fairtape.client import connect
from fairtape.formats.itch.columns import from_arrow, to_arrow
from unit.tape.tape_values import trades


def test_a_generated_itch_file_has_the_mix_and_decodes_completely() -> None:
    octets = itch_day(20_000)
    tables = to_arrow(octets)
    assert {letter: round(table.num_rows / 20_000, 2) for letter, table in tables.items()} == {
        letter: pytest.approx(share, abs=0.011) for letter, share in MIX.items()
    }
    assert from_arrow(tables, end_mark=True) == octets


def test_a_written_journal_holds_all_trades_in_order(tmp_path: Path) -> None:
    written = trades(1, 2 * PER_TOKEN + 7)
    write_journal(tmp_path, written)
    with connect(tmp_path, start="beginning") as tape:
        found = tape.to_arrow()
    assert found["sequence"].to_pylist() == list(range(1, len(written) + 1))
    assert found["trade_id"].to_pylist() == written["trade_id"].tolist()

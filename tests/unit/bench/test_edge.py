"""`fairtape bench edge`: invalid and low results are reported; the generated ITCH file and journal are complete."""

from pathlib import Path

import pytest

from fairtape.bench.edge import MIX, PER_TOKEN, itch_day, problems_of, shortfalls_of, write_journal
from fairtape.bench.results import Results
from fairtape.client import connect
from fairtape.formats.itch.columns import from_arrow, to_arrow
from unit.tape.tape_values import trades

EDGE: Results = {
    "websocket_kept_up": True,
    "websocket_customers": 1_000,
    "websocket_customers_asked": 1_000,
    "websocket_customers_tried": 1_000,
    "arrow_messages_per_s": 1_000_000,
    "itch_messages_per_s": 1_000_000,
}


@pytest.mark.parametrize(
    ("broken", "problems", "shortfalls"),
    [
        ({}, 0, 0),
        ({"arrow_messages_per_s": 999_999}, 0, 1),
        ({"websocket_customers": 500}, 0, 1),
        ({"websocket_customers": 0, "websocket_kept_up": False}, 1, 1),
    ],
)
def test_problems_and_shortfalls_of_the_edge_are_reported(broken: Results, problems: int, shortfalls: int) -> None:
    assert len(problems_of(EDGE | broken)) == problems
    assert len(shortfalls_of(EDGE | broken)) == shortfalls


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

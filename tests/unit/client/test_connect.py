"""`connect` makes a tape of a target, or raises an error of one sentence."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fairtape
import unit.journal.journal_values as values
from fairtape.client import Break, ClientError, Gap, Message, Record, Reformation, Snapshot, Tape, Trade
from fairtape.deployment.operations.draft import Draft, create_deployment
from fairtape.formats.dbn import write_dbn
from fairtape.formats.framing import frame
from fairtape.formats.itch import messages as itch
from fairtape.formats.itch.columns import from_arrow
from fairtape.journal import JournalReader
from fairtape.storage.trade_files import read_trades
from fairtape.tape.batches import trades_to_arrow
from unit.tape.tape_values import SYMBOLS, append, order, ordered, trade, trades, write


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return write(tmp_path / "journal", order(20))


def numbers(records: Any) -> list[int]:
    return [record.sequence for record in records if isinstance(record, Trade)]


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("beginning", 1),
        (1, 1),
        (8, 8),
        (20, 20),
        (values.token_at(3), 7),
        (values.token_at(3) - 1, 7),
        (datetime.fromtimestamp(0, UTC) + timedelta(microseconds=values.token_at(4) // 1_000), 10),
    ],
)
def test_a_journal_is_read_from_the_given_start(journal: Path, start: Any, first: int) -> None:
    with fairtape.connect(journal, start=start) as tape:
        assert numbers(tape) == list(range(first, 21))
    with fairtape.connect(str(journal), "ABC", start=start) as tape:
        assert numbers(tape) == [number for number in range(first, 21) if trade(number).symbol == "ABC"]


def test_a_start_in_any_time_zone_is_accepted(journal: Path) -> None:
    moment = datetime.fromtimestamp(values.token_at(3) / 10**9, timezone(timedelta(hours=-5)))
    with fairtape.connect(journal, start=moment) as tape:
        assert numbers(tape) == list(range(7, 21))


def test_a_start_before_the_first_entry_of_a_journal_gives_a_gap(tmp_path: Path) -> None:
    write(tmp_path, order(4, first=10))
    with fairtape.connect(tmp_path, start=3) as tape:
        assert next(iter(tape)) == Gap(3, 7, values.STRIPE)
        assert numbers(tape) == [10, 11, 12, 13]
    with fairtape.connect(tmp_path, start="beginning") as tape:
        assert numbers(tape) == [10, 11, 12, 13]


def test_changes_of_formation_are_delivered_in_order(tmp_path: Path) -> None:
    one, two, three = order(3, per_token=1)
    changes = values.formation_change(two, 2), values.formation_change(three, 3, broken=True)
    write(tmp_path, one, changes[0], two, changes[1], three)
    with fairtape.connect(tmp_path, start="beginning") as tape:
        assert [type(record) for record in tape] == [Trade, Reformation, Trade, Break, Trade]
    with fairtape.connect(tmp_path, start=3) as tape:
        assert [type(record) for record in tape] == [Break, Trade]


def test_a_live_start_follows_the_journal(journal: Path) -> None:
    with fairtape.connect(journal) as tape, fairtape.connect(journal, start=19, follow=True) as replay:
        append(journal, *order(6, first=21))
        assert numbers(islice(tape, 6)) == list(range(21, 27))
        assert numbers(islice(replay, 8)) == list(range(19, 27))


def test_a_late_joiner_begins_with_the_last_trade_of_each_symbol(journal: Path) -> None:
    with fairtape.connect(journal, start="snapshot") as tape:
        append(journal, *order(1, first=21))
        records = iter(tape)
        assert next(records) == Snapshot(1, 20, len(SYMBOLS))
        found = [next(records) for _ in range(5)]
        assert numbers(found) == [17, 18, 19, 20, 21]
        assert {symbol: sale.sequence for symbol, sale in tape.snapshot().items()} == {
            trade(number).symbol: number for number in (18, 19, 20, 21)
        }
    with fairtape.connect(journal, ["ABC", "NONE"], start="snapshot") as tape:
        announced, only = islice(tape, 2)
        assert announced == Snapshot(1, 21, 1)
        assert numbers([only]) == [20]


def test_messages_that_are_no_trades_are_records_unless_symbols_are_chosen(tmp_path: Path) -> None:
    write(tmp_path, ordered(1, 1, [[b"hello", b"world"]]), ordered(2, 3, [[b"x"]]))
    with fairtape.connect(tmp_path, start="beginning") as tape:
        assert [record.payload for record in tape if isinstance(record, Message)] == [b"hello", b"world", b"x"]
        assert tape.following == 4
    with fairtape.connect(tmp_path, "ABC", start="beginning") as tape:
        assert list(tape) == []


def test_a_stripe_of_another_journal_has_no_trades(journal: Path) -> None:
    with fairtape.connect(journal, stripes=[values.STRIPE], start="beginning") as tape:
        assert len(numbers(tape)) == 20
    with fairtape.connect(journal, stripes=9, start="beginning") as tape:
        assert numbers(tape) == []


def test_files_of_trades_are_read_like_journals(tmp_path: Path) -> None:
    pq.write_table(trades_to_arrow(trades(1, 9)), tmp_path / "a.parquet")
    (tmp_path / "a.dbn").write_bytes(write_dbn(trades(1, 9)))
    (tmp_path / "a.csv").write_text("time,symbol,price,size\n1750000000000000001,ABC,1.5,2\n")
    for name in ("a.parquet", "a.dbn"):
        with fairtape.connect(tmp_path / name) as tape:
            records = [record for record in tape if isinstance(record, Trade)]
        assert [record.price for record in records] == [trade(number).price for number in range(1, 10)]
        assert [record.symbol for record in records] == [trade(number).symbol for number in range(1, 10)]
        assert [record.traded_at for record in records] == [trade(number).traded_at for number in range(1, 10)]
        assert {record.released_at for record in records} == {None}
        with fairtape.connect(tmp_path / name, start=4) as tape:
            assert numbers(tape) == list(range(4, 10))
        with fairtape.connect(tmp_path / name, start=values.STARTS_AT + 6) as tape:
            assert numbers(tape) == list(range(6, 10))
            assert tape.snapshot()["ABC"].sequence == 8
    with fairtape.connect(tmp_path / "a.csv") as tape:
        (only,) = tape
    assert isinstance(only, Trade)
    assert (only.sequence, only.symbol, only.price, only.quantity, only.venue) == (1, "ABC", 15 * 10**8, 2 * 10**9, "")
    assert only.acknowledged_at is None


def test_a_day_of_itch_is_read_once_its_midnight_is_known(tmp_path: Path) -> None:
    """The timestamps of ITCH count from midnight, and the file contains neither the day nor the venue."""
    (tmp_path / "day.itch").write_bytes(itch_of([10_000, 20_000]))
    midnight = datetime(2026, 7, 1, tzinfo=timezone(timedelta(hours=-4)))
    with fairtape.connect(tmp_path / "day.itch", midnight=midnight, venue="XNAS") as tape:
        first, second = tape
    assert isinstance(first, Trade)
    assert isinstance(second, Trade)
    assert first.traded_at == int(midnight.timestamp()) * 10**9 + 10_000
    assert (first.symbol, first.venue, first.price_decimal) == ("ABC", "XNAS", Decimal("12.5"))
    assert second.traded_at - first.traded_at == 10_000


def test_a_snapshot_of_a_day_of_itch_is_without_its_broken_trades(tmp_path: Path) -> None:
    broken = itch.encode(itch.ItchBrokenTrade(1, 0, 30_000, 2))
    (tmp_path / "day.itch").write_bytes(itch_of([10_000, 20_000]) + frame([broken]))
    with fairtape.connect(tmp_path / "day.itch", midnight=datetime(2026, 7, 1, tzinfo=UTC)) as tape:
        assert tape.snapshot()["ABC"].trade_id == 1


def itch_of(stamps: list[int]) -> bytes:
    """A day with a trade (P) at each of these nanoseconds."""
    table = pa.table(
        {
            "index": list(range(len(stamps))),
            "stock_locate": [1] * len(stamps),
            "tracking_number": [0] * len(stamps),
            "timestamp_ns": stamps,
            "order_reference": [0] * len(stamps),
            "buy_sell": ["B"] * len(stamps),
            "shares": [100] * len(stamps),
            "stock": ["ABC"] * len(stamps),
            "price": [125_000] * len(stamps),
            "match_number": list(range(1, len(stamps) + 1)),
        }
    )
    return from_arrow({"P": table})


def test_what_was_saved_from_a_tape_can_be_published(journal: Path, tmp_path: Path) -> None:
    """Must show 5: no field and no nanosecond is lost on the way to Parquet and back."""
    with fairtape.connect(journal, start="beginning") as tape:
        pq.write_table(tape.to_arrow(), tmp_path / "saved.parquet")
    (read,) = read_trades(tmp_path / "saved.parquet")
    assert read.tobytes() == trades(1, 20).tobytes()


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"target": 5}, "target is 5; name a journal"),
    ({"target": "{folder}/nowhere"}, "target '.*nowhere' does not exist; name a journal"),
    ({"target": "{folder}"}, "holds no journal; there is one in '.*journal'"),
    ({"target": "{folder}/empty"}, "holds no journal; name the directory that a site writes"),
    ({"target": "{folder}/made"}, "no site of deployment .*made runs on this machine; start it with: fairtape up"),
    ({"target": "{folder}/a.txt"}, r"is not named like a trade file; it must end in \.csv"),
    ({"target": "{folder}/bad.csv"}, "has no column traded_at_ns or time"),
    ({"target": "{folder}/bad.dbn"}, "which is not complete DBN metadata"),
    ({"target": "{folder}/day.itch"}, "counts its times from midnight; say which one"),
    ({"target": "{folder}/bad.csv", "start": "snapshot"}, "start is 'snapshot', and file .* has no live end"),
    ({"target": "udp://239.1.1.1:5"}, "target is 'udp://239.1.1.1:5'; an address is such as 'ws://"),
    ({"policy": "drop"}, "policy is 'drop'; give one of 'block', 'skip', 'conflate'"),
    ({"queue_max": 0}, "queue_max is 0; give a number of records from 1"),
    ({"queue_max": True}, "queue_max is True"),
    ({"grade": "gold"}, "grade is 'gold'; give 'guaranteed' or 'best effort'"),
    ({"start": -1}, "start is -1; give an instant after 1970"),
    ({"start": 0}, "start is 0; give an instant after 1970"),
    ({"start": 1 << 63}, "start is 9223372036854775808"),
    ({"start": "yesterday"}, "start is 'yesterday'; give None, 'beginning'"),
    ({"start": 1.5}, "start is 1.5; give None, 'beginning'"),
    ({"start": datetime(2026, 7, 1)}, "start is 2026-07-01 00:00:00, which names no time zone"),  # noqa: DTZ001
    ({"symbols": 5}, "symbols is 5; give a name such as 'ABC'"),
    ({"symbols": [5]}, "symbols has 5; a symbol is text"),
    ({"symbols": []}, "symbols names 0; give from 1"),
    ({"symbols": "A B"}, "symbols: .*'A B'"),
    ({"stripes": "x"}, "stripes has 'x'; a stripe is a whole number"),
    ({"stripes": []}, "stripes names none"),
    ({"stripes": -1}, "stripes has -1"),
    ({"midnight": "noon"}, "midnight is 'noon'; give an instant"),
]


@pytest.mark.parametrize(("options", "sentence"), MISTAKES, ids=lambda value: str(value)[:40])
def test_a_mistake_is_one_sentence(journal: Path, options: dict[str, Any], sentence: str) -> None:
    folder = journal.parent
    (folder / "empty").mkdir()
    create_deployment(folder / "made", Draft(loops=(1,)))
    for name, content in (("a.txt", "x"), ("bad.csv", "x\n1\n"), ("bad.dbn", "x" * 100), ("day.itch", "")):
        (folder / name).write_text(content)
    target = options.get("target", journal)
    named = target.format(folder=folder) if isinstance(target, str) else target
    with pytest.raises(ClientError, match=sentence) as caught:
        fairtape.connect(**{**options, "target": named})
    assert "\n" not in str(caught.value)


def test_a_damaged_journal_is_reported_with_its_place(journal: Path) -> None:
    segment = values.segments(journal)[0]
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    with pytest.raises(ClientError, match="is damaged at byte"), fairtape.connect(journal, start="beginning") as tape:
        list(tape)


def test_everything_before_damage_is_delivered_before_its_error(tmp_path: Path) -> None:
    journal = write(tmp_path / "journal", order(9, per_token=1))
    (segment,) = values.segments(journal)
    with JournalReader.open(journal).entries() as cursor:
        sixth = list(cursor)[5]
    content = bytearray(segment.read_bytes())
    content[sixth.offset + 70] ^= 1
    segment.write_bytes(content)
    found: list[Record] = []
    with fairtape.connect(journal, start="beginning") as tape:
        tape.on(found.append)
        with pytest.raises(ClientError, match="is damaged at byte"):
            tape.run()
    assert numbers(found) == [1, 2, 3, 4, 5]


def test_importing_fairtape_stays_light() -> None:
    program = "import sys, fairtape; sys.exit(len({'numpy', 'pyarrow', 'asyncio'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    assert isinstance(fairtape.client.Tape, type(Tape))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = fairtape.nothing

"""DBN: every field that DBN has is kept, other values are refused, and Databento's library reads our files."""

import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.errors import FormatError
from fairtape.formats.dbn import BadDbn, DbnMissing, read_dbn, write_dbn
from fairtape.market.prices import FIXED_MAX, ONE
from fairtape.market.trades import PublishedTrade
from unit.formats.itch_values import mutated
from unit.formats.trade_values import MIDNIGHT, as_records, same, trades

dbn = pytest.importorskip("databento_dbn")

TRADE = PublishedTrade(1, "AAPL", 189_500_000_001, 100 * ONE, MIDNIGHT + 1, 77, 1)
FILES = st.lists(trades(plain=True), max_size=8).map(as_records)


@given(FILES, st.booleans())
def test_trades_survive_dbn_with_every_field_and_nanosecond(written: np.ndarray, compressed: bool) -> None:
    octets = write_dbn(written)
    read = read_dbn(pa.compress(octets, "zstd", asbytes=True) if compressed else octets)
    assert same(read.trades, written)
    assert (read.received_at == written["traded_at"]).all()


def test_the_library_of_databento_reads_our_files() -> None:
    decoder = dbn.DBNDecoder()
    decoder.write(write_dbn(as_records([TRADE]), received_at=np.array([MIDNIGHT + 5])))
    metadata, record = decoder.decode()
    assert (metadata.dataset, metadata.symbols) == ("FAIRTAPE", ["AAPL XNYS"])
    assert (record.ts_event, record.ts_recv, record.price, record.size) == (
        MIDNIGHT + 1,
        MIDNIGHT + 5,
        189_500_000_001,
        100,
    )
    assert (record.side, record.action, record.sequence, record.instrument_id) == (
        dbn.Side.BID,
        dbn.Action.TRADE,
        77,
        1,
    )


def foreign(**changes: int) -> bytes:
    """A file of another publisher, as its own library writes it."""

    class Interval:
        start_date = np.datetime64(MIDNIGHT, "ns").astype("datetime64[D]").item()
        end_date = (np.datetime64(MIDNIGHT, "ns").astype("datetime64[D]") + 1).item()
        symbol = "5482"

    class Mapping:
        raw_symbol = "ESZ3"
        intervals = (Interval,)

    metadata = dbn.Metadata(
        "GLBX.MDP3", 0, dbn.SType.RAW_SYMBOL, dbn.SType.INSTRUMENT_ID, dbn.Schema.TRADES, mappings=[Mapping]
    )
    values = {"publisher_id": 1, "instrument_id": 5482, "ts_event": MIDNIGHT, "price": -5, "size": 3} | changes
    record = dbn.TradeMsg(**values, action=dbn.Action.TRADE, side=dbn.Side.ASK, depth=0, ts_recv=MIDNIGHT, sequence=8)
    return bytes(metadata) + bytes(record)


def test_a_file_of_another_publisher_is_read_with_its_venue() -> None:
    (trade,) = read_dbn(foreign()).trades
    assert (trade["symbol"], trade["venue"], trade["price"], trade["flags"]) == (b"ESZ3", b"GLBX", -5, 2)
    assert read_dbn(foreign(), venues={1: "XCME"}).trades["venue"] == [b"XCME"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"price": FIXED_MAX}, "price of trade 0 is"),
        ({"size": (1 << 32) - 1}, "size of trade 0 is"),
        ({"ts_event": (1 << 64) - 1}, "ts_event of trade 0 is"),
        ({"instrument_id": 1}, "instrument_id 1 trades on 2023-11-15, but the metadata names no symbol"),
    ],
)
def test_a_record_that_lacks_a_value_is_refused(changes: dict[str, int], sentence: str) -> None:
    with pytest.raises(BadDbn) as refusal:
        read_dbn(foreign(**changes))
    assert sentence in str(refusal.value)


@pytest.mark.parametrize(
    ("trade", "sentence"),
    [
        (
            PublishedTrade(0, "A", 1, ONE // 2, 0),
            "quantity of trade 0 is 0.5; in DBN it must be a whole number up to 4294967294",
        ),
        (PublishedTrade(0, "A", 1, ((1 << 32) - 1) * ONE, 0), "quantity of trade 0 is 4294967295"),
        (
            PublishedTrade(0, "A", 1, ONE, 0, 1 << 32),
            "trade_id of trade 0 is 4294967296; in DBN it must be at most 4294967295",
        ),
        (PublishedTrade(0, "A", FIXED_MAX, ONE, 0), "price of trade 0 is 9223372036.854775807"),
    ],
)
def test_a_trade_that_does_not_fit_into_dbn_is_refused(trade: PublishedTrade, sentence: str) -> None:
    with pytest.raises(BadDbn) as refusal:
        write_dbn(as_records([trade]))
    assert sentence in str(refusal.value)


@given(mutated(FILES.map(write_dbn) | st.just(pa.compress(foreign(), "zstd", asbytes=True))) | st.binary(max_size=40))
def test_hostile_bytes_are_refused_and_nothing_else(octets: bytes) -> None:
    try:
        read_dbn(octets)
    except FormatError:
        return


def test_without_the_library_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "databento_dbn", None)
    with pytest.raises(DbnMissing, match=r"install it with: pip install 'fairtape\[dbn\]'"):
        write_dbn(as_records([TRADE]))

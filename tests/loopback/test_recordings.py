"""Publishing from files of every format, and exporting a journal to them: every field and nanosecond is kept."""

import re
from pathlib import Path

import pytest

from fairtape.core.errors import UserError
from fairtape.market.trades import Trades
from fairtape.storage.trade_files import recorded_trades
from loopback.commands import interrupt, run
from loopback.test_publish_listen import ring

CSV = """traded_at_ns,symbol,price,quantity,venue,trade_id,side
1723161600100000001,ETH,2680.5501,1,XLON,1,buy
1723161600200000002,BTC,61804.7,2,XNYS,2,sell
1723161600300000003,BTC,61804.8,3,XLON,3,
"""
MIDNIGHT = 1_723_161_600_000_000_000


def trades_in(path: Path, venue: str = "") -> Trades:
    (trades,) = recorded_trades(path, time_unit=None, midnight_at=MIDNIGHT, venue=venue)
    return trades


@pytest.mark.alone
def test_trades_go_through_the_ring_from_and_to_every_format(tmp_path: Path) -> None:
    folder, recorded = tmp_path / "ring", tmp_path / "trades.csv"
    recorded.write_text(CSV)
    with ring(folder) as listen:
        assert run("publish", folder, recorded)[0] == 0
        interrupt(listen)
        listen.wait()
    journal = folder / "journals/s1"
    written = {suffix: tmp_path / f"out{suffix}" for suffix in (".parquet", ".csv", ".dbn", ".itch")}
    for path in written.values():
        assert run("journal", "export", journal, path)[:2] == (0, f"3 trades in {path}\n")
    expected = trades_in(recorded)
    for suffix in (".parquet", ".csv", ".dbn"):
        assert trades_in(written[suffix]).tolist() == expected.tolist(), suffix
    itch = trades_in(written[".itch"], venue="XLON")
    for field in ("symbol", "price", "quantity", "traded_at"):
        assert itch[field].tolist() == expected[field].tolist()
    assert itch["trade_id"].tolist() == [1, 2, 3], "the match number, which is the number in the order"
    with ring(tmp_path / "again") as listen:
        for arguments in (
            [written[".dbn"]],
            [written[".itch"], "--midnight", "2024-08-09T00:00:00Z", "--venue", "XLON"],
        ):
            code, output, _ = run("publish", tmp_path / "again", *arguments)
            assert (code, output.split(",")[0]) == (0, "3 trades acknowledged")
        interrupt(listen)
        listen.wait()
    journal = tmp_path / "again/journals/s1"
    assert run("journal", "export", journal, tmp_path / "again.parquet")[0] == 0
    again = trades_in(tmp_path / "again.parquet")
    assert again[:3].tolist() == expected.tolist()
    assert again[3:].tolist() == itch.tolist()


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("day.itch", b"", "counts its times from midnight; say which one: --midnight"),
        ("day.dbn", b"rubbish", "day.dbn cannot be read: "),
        ("none.dbn", None, "none.dbn cannot be read: No such file"),
    ],
)
def test_a_file_that_cannot_be_published_is_named(
    tmp_path: Path, name: str, content: bytes | None, sentence: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=re.escape(sentence)):
        recorded_trades(path, time_unit=None, midnight_at=None, venue="")

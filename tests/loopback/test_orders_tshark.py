"""Order entry as an independent program sees it: tshark dissects our FIX, and our OUCH in SoupBinTCP."""

import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from fairtape.core.instants import SECOND
from fairtape.formats import ouch
from fairtape.formats.fix.order_messages import OrderEntry, write
from fairtape.formats.soupbintcp import SequencedData, UnsequencedData
from fairtape.formats.soupbintcp import encode as in_soup
from fairtape.gateway.session.fix_session import compose, header
from unit.gateway.fix_world import START, order, report

PORT = 17_100
LINKTYPE_RAW = 101
ORDER = ouch.EnterOrder("T1", "B", 100, "MSFT", 1_012_500, ouch.MARKET_HOURS, "FIRM", "Y", "P", "N", 5, "O", "R")
COMMON = ("MSFT", 1_012_500, ouch.MARKET_HOURS, "FIRM", "Y", 77, "P", "N", 5, "O", "L")

# tshark's field names and ours; those that it gives as numbers or as text.
OUR_NAMES = {
    "order_token": "order_token",
    "replacement_order_token": "replacement_token",
    "previous_order_token": "previous_token",
    "order_reference_number": "order_reference",
    "match_number": "match_number",
    "decrement_shares": "decrement_shares",
    "quantity_prevented_from_trading": "quantity_prevented",
    "executed_shares": "executed_shares",
    "execution_price": "execution_price",
    "shares": "shares",
    "price": "price",
    "tif": "time_in_force",
    "min_quantity": "minimum_quantity",
    "stock": "stock",
    "firm": "firm",
}

pytestmark = pytest.mark.skipif(
    shutil.which("tshark") is None, reason="tshark is not installed; apt-get install tshark"
)


def captured(path: Path, segments: Sequence[bytes]) -> Path:
    """A capture of one direction of a connection."""
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65_535, LINKTYPE_RAW))
        number = 1
        for place, payload in enumerate(segments):
            tcp = struct.pack(">HHIIBBHHH", 40_000, PORT, number, 1, 5 << 4, 0x18, 65_535, 0, 0) + payload
            ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0, b"\x7f\0\0\1", b"\x7f\0\0\1")
            file.write(struct.pack("<IIII", place, 0, 20 + len(tcp), 20 + len(tcp)) + ip + tcp)
            number += len(payload)
    return path


def dissected(path: Path, protocol: str, *names: str) -> list[list[str]]:
    """tshark's fields of each segment; none may be malformed."""
    fields = [word for name in ("_ws.malformed", *names) for word in ("-e", name)]
    decode = ["-d", f"tcp.port=={PORT},{protocol}"]
    command = ["tshark", "-n", "-r", str(path), *decode, "-T", "fields", "-E", "separator=;", *fields]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [[cell.rstrip(" ") for cell in line.split(";")] for line in done.stdout.splitlines()]
    assert {row[0] for row in rows} == {""}, "malformed"
    return [row[1:] for row in rows]


def test_tshark_reads_orders_and_reports_as_fix(tmp_path: Path) -> None:
    entries: list[OrderEntry] = [order("A"), report("B")]
    messages = [
        compose(write(entry), header("ANN", "FLOOR", number, START + number * SECOND))
        for number, entry in enumerate(entries, 1)
    ]
    names = ("fix.MsgType", "fix.MsgSeqNum", "fix.SenderCompID", "fix.SendingTime", "fix.ClOrdID", "fix.checksum_good")
    rows = dissected(captured(tmp_path / "fix.pcap", messages), "fix", *names)
    assert [row[:-1] for row in rows] == [
        ["D", "1", "ANN", "20231114-22:13:21.000", "A"],
        ["8", "2", "ANN", "20231114-22:13:22.000", "B"],
    ]
    assert {row[-1] for row in rows} <= {"1", "True"}  # as older and newer versions print it


def test_tshark_reads_client_messages_as_ouch(tmp_path: Path) -> None:
    messages = (
        ORDER,
        ouch.ReplaceOrder("T1", "T2", 90, 1_012_600, ouch.IMMEDIATE, "N", "Y", 3),
        ouch.CancelOrder("T2", 10),
        ouch.ModifyOrder("T2", "S", 9),
    )
    segments = [in_soup(UnsequencedData(ouch.encode(message))) for message in messages]
    names = ("order_token", "existing_order_token", "replacement_order_token", "shares", "price", "tif", "min_quantity")
    rows = dissected(captured(tmp_path / "ouch.pcap", segments), "soupbintcp", *(f"ouch.{name}" for name in names))
    assert rows == [
        ["T1", "", "", "100", "1012500", "99998", "5"],
        ["", "T1", "T2", "90", "1012600", "0", "3"],
        ["T2", "", "", "10", "", "", ""],
        ["T2", "", "", "9", "", "", ""],
    ]


def test_tshark_reads_market_messages_as_ouch(tmp_path: Path) -> None:
    messages = (
        ouch.SystemEvent(1, "S"),
        ouch.Accepted(2, "T1", "B", 100, *COMMON, "N"),
        ouch.OuchReplaced(3, "T2", "B", 100, *COMMON, "T1", "N"),
        ouch.OuchCanceled(4, "T2", 10, "U"),
        ouch.AiqCanceled(5, "T2", 11, "Q", 12, 1_012_500, "A"),
        ouch.Executed(6, "T2", 13, 1_012_500, "R", 88),
        ouch.BrokenTrade(7, "T2", 88, "E"),
        ouch.OuchRejected(8, "T3", "X"),
        ouch.CancelPending(9, "T2"),
        ouch.CancelReject(10, "T2"),
        ouch.OrderPriorityUpdate(11, "T2", 1_012_700, "Y", 78),
        ouch.OrderModified(12, "T2", "S", 14),
    )
    segments = [in_soup(SequencedData(ouch.encode(message))) for message in messages]
    names = [*OUR_NAMES]
    rows = dissected(captured(tmp_path / "ouch.pcap", segments), "soupbintcp", *(f"ouch.{name}" for name in names))
    assert rows == [[str(getattr(message, OUR_NAMES[name], "")) for name in names] for message in messages]

"""The order log: accepted requests survive the process."""

import os
from errno import ENOSPC
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairtape.core.errors import UserError
from fairtape.gateway.storage.order_log import MAGIC, OrderLog


def test_unplaced_requests_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "orders.log"
    log = OrderLog(path)
    for number in (3, 1, 2):
        log.append(number, b"request %d" % number)
    log.sync()
    log.mark_placed([2, 7])
    log.close()
    again = OrderLog(path)
    assert again.unplaced() == [b"request 1", b"request 3"]
    again.mark_placed([1, 3])
    again.close()
    assert OrderLog(path).unplaced() == []


@settings(max_examples=30)
@given(cut=st.integers(0, 200))
def test_a_torn_record_loses_only_what_was_never_answered(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("orders.log") / "file"
    log = OrderLog(path)
    sizes = [len(MAGIC)]
    for number in range(1, 6):
        log.append(number, b"request %d" % number)
        log.sync()
        sizes.append(path.stat().st_size)
    log.close()
    whole = path.read_bytes()
    kept = max(len(whole) - cut, 0)
    path.write_bytes(whole[:kept])
    torn = OrderLog(path)
    expected = sum(kept >= size for size in sizes[1:])
    assert torn.unplaced() == [b"request %d" % number for number in range(1, expected + 1)]
    torn.append(9, b"next")
    torn.close()
    assert OrderLog(path).unplaced()[-1] == b"next"


def test_the_file_stays_small_however_much_passes_through(tmp_path: Path) -> None:
    path = tmp_path / "orders.log"
    log = OrderLog(path, file_max=1_024)
    for number in range(1, 200):
        log.append(number, bytes(50))
        log.sync()
        log.mark_placed([number - 1])
    assert path.stat().st_size < 3 * 1_024
    log.close()
    assert len(OrderLog(path).unplaced()) == 1


def test_a_file_of_another_format_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "orders.log"
    path.write_bytes(b"another format")
    with pytest.raises(UserError, match="is not an order log"):
        OrderLog(path)
    assert path.read_bytes() == b"another format"
    with pytest.raises(UserError, match="cannot be used as an order log"):
        OrderLog(tmp_path / "no" / "folder")


def test_a_partial_write_leaves_no_torn_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "orders.log"
    log = OrderLog(path)
    log.append(1, b"a" * 50)
    log.sync()
    write, room = os.write, [30]

    def scant(file: int, octets: bytes) -> int:
        if not room[0]:
            raise OSError(ENOSPC, "no space left on device")
        written = write(file, octets[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", scant)
    log.append(2, b"b" * 50)
    with pytest.raises(OSError, match="no space left"):
        log.sync()
    room[0] = 20  # a part, and the rest at the next call
    monkeypatch.setattr(os, "write", lambda file, octets: write(file, octets[:20]))
    log.append(3, b"c" * 50)
    log.sync()
    monkeypatch.undo()
    log.close()
    assert OrderLog(path).unplaced() == [b"a" * 50, b"b" * 50, b"c" * 50]

"""FIX stores in memory and in a file: the same behaviour, and the file survives a restart."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from fairtape.core.errors import UserError
from fairtape.gateway.session.fix_session import FixStore
from fairtape.gateway.storage.fix_store import PRUNE_PERIOD, FixFile
from unit.gateway.memory_fix_store import MemoryFixStore

Make = Callable[[Path], FixStore]


def in_memory(_folder: Path) -> FixStore:
    return MemoryFixStore()


def in_a_file(folder: Path) -> FixStore:
    return FixFile(folder / "sessions").session("FLOOR", "ANN")


@pytest.mark.parametrize("make", [in_memory, in_a_file])
def test_a_store_counts_and_keeps(tmp_path: Path, make: Make) -> None:
    store = make(tmp_path)
    assert (store.next_in, store.next_out) == (1, 1)
    for octets in (None, b"two", b"three", None, b"five"):
        store.sent(octets)
    store.expect(7)
    assert (store.next_in, store.next_out) == (7, 6)
    assert list(store.kept(1, 5)) == [(2, b"two"), (3, b"three"), (5, b"five")]
    assert list(store.kept(3, 4)) == [(3, b"three")]
    store.reset()
    assert (store.next_in, store.next_out, list(store.kept(1, 9))) == (1, 1, [])
    store.sent(b"one")
    assert list(store.kept(1, 9)) == [(1, b"one")]


def test_synced_changes_survive_a_restart_and_others_do_not(tmp_path: Path) -> None:
    file = FixFile(tmp_path / "sessions")
    ann, bob = file.session("FLOOR", "ANN"), file.session("FLOOR", "BOB")
    ann.sent(b"one")
    bob.expect(5)
    file.sync()
    ann.sent(b"two")
    ann.expect(9)
    file.close()
    again = FixFile(tmp_path / "sessions")
    ann, bob = again.session("FLOOR", "ANN"), again.session("FLOOR", "BOB")
    assert (ann.next_in, ann.next_out, list(ann.kept(1, 9))) == (1, 2, [(1, b"one")])
    assert (bob.next_in, bob.next_out) == (5, 1)
    again.close()


def test_a_file_keeps_about_as_many_messages_as_it_should(tmp_path: Path) -> None:
    file = FixFile(tmp_path / "sessions", messages_max=10)
    store = file.session("FLOOR", "ANN")
    for _ in range(2 * PRUNE_PERIOD):
        store.sent(b"x")
    assert len(list(store.kept(1, 2 * PRUNE_PERIOD))) <= 10 + PRUNE_PERIOD
    file.close()


def test_memory_keeps_as_many_messages_as_it_should() -> None:
    store = MemoryFixStore(messages_max=3)
    for number in range(9):
        store.sent(b"%d" % number)
    assert [number for number, _ in store.kept(1, 9)] == [7, 8, 9]


def test_only_one_process_opens_the_file(tmp_path: Path) -> None:
    file = FixFile(tmp_path / "sessions")
    with pytest.raises(UserError, match="no other process has open"):
        FixFile(tmp_path / "sessions")
    file.close()
    FixFile(tmp_path / "sessions").close()


def test_a_file_of_another_application_is_refused(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "other")
    other.execute("CREATE TABLE things (name TEXT)")
    other.commit()
    other.close()
    with pytest.raises(UserError, match="another application"):
        FixFile(tmp_path / "other")
    (tmp_path / "text").write_text("no database at all, but long enough to be taken for the head of one" * 4)
    with pytest.raises(UserError, match="cannot hold FIX sessions"):
        FixFile(tmp_path / "text")

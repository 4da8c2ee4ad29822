"""Atomic writes and lock files: readers see whole files, and a lock has one holder."""

import os
import stat
from pathlib import Path

import pytest

from fairtape.storage.files import LockHeld, is_locked, lock_file, write_atomically


@pytest.mark.parametrize("options", [{}, {"sync": True}, {"concurrent": True}])
def test_a_written_file_replaces_the_old_one_and_leaves_nothing_beside_it(
    tmp_path: Path, options: dict[str, bool]
) -> None:
    path = tmp_path / "page.json"
    path.write_bytes(b"old")
    write_atomically(path, b"new ", b"content", **options)
    assert path.read_bytes() == b"new content"
    assert list(tmp_path.iterdir()) == [path]


def test_a_private_file_is_private_although_a_crash_left_a_public_temporary_file(tmp_path: Path) -> None:
    path, partial = tmp_path / "key.json", tmp_path / "key.json.part"
    partial.write_bytes(b"torn")
    partial.chmod(0o644)
    write_atomically(path, b"secret", mode=0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes() == b"secret"


def test_a_write_that_fails_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "page.json"
    path.write_bytes(b"old")
    (tmp_path / "page.json.part").mkdir()
    with pytest.raises(OSError, match=r"page\.json\.part"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_lock_has_one_holder_and_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_locked(path)
    with lock_file(path) as descriptor:
        os.pwrite(descriptor, b"1\n", 0)
        assert is_locked(path)
        with pytest.raises(LockHeld), lock_file(path):
            pass
    assert not is_locked(path)
    with lock_file(path):
        assert is_locked(path)


def test_an_error_of_the_holder_is_not_taken_for_a_held_lock(tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError), lock_file(tmp_path / "lock"):
        raise BlockingIOError

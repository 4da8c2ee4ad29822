"""A journal keeps its identity as long as its directory."""

from pathlib import Path

import pytest

from fairtape.core.errors import UserError
from fairtape.journal.identity import journal_identity
from unit.journal import journal_values as values


def identity_of(directory: Path) -> int:
    with values.open_writer(directory) as writer:
        return writer.recovered.journal


def test_an_identity_outlives_restarts_entries_and_truncations(tmp_path: Path) -> None:
    identity = identity_of(tmp_path)
    assert 0 < identity < 1 << 32
    values.write(tmp_path, values.first(5))
    assert identity_of(tmp_path) == identity
    with values.open_writer(tmp_path) as writer:
        assert writer.truncate_after(0).journal == identity


def test_an_emptied_directory_has_another_identity(tmp_path: Path) -> None:
    identity = identity_of(tmp_path)
    for file in tmp_path.iterdir():
        file.unlink()
    assert identity_of(tmp_path) != identity


def test_a_file_that_a_killed_process_left_unfinished_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "identity.new").write_text("12")
    identity = journal_identity(tmp_path)
    assert journal_identity(tmp_path) == identity
    assert not (tmp_path / "identity.new").exists()


@pytest.mark.parametrize("text", ["", "0000000", "00000000", "zzzzzzzz", "123456789", "-1234567"])
def test_a_file_without_an_identity_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "identity").write_text(text)
    with pytest.raises(UserError, match=r"identity' has '.*' and no identity; remove it"):
        identity_of(tmp_path)

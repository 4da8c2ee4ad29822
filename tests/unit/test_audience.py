"""Which site is heard: one that serves, for as long as it does."""

from pathlib import Path

import pytest

from fairtape.core.errors import UserError
from fairtape.core.instants import SECOND
from fairtape.deployment.config.description import read_deployment
from fairtape.deployment.follow.site_selection import FRESH_PERIOD, SiteSelection
from fairtape.deployment.lock_file import folder_lock
from fairtape.deployment.operations.draft import Draft, create_deployment
from fairtape.deployment.status_files import RunFolder, StatusFile
from unit.deployment.status_values import site_status

NOW = 1_000 * SECOND


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return create_deployment(tmp_path / "new", Draft(loops=(3, 1), profile="wan")).folder


def audience(folder: Path, *, wanted: str | None = None) -> SiteSelection:
    return SiteSelection(read_deployment(folder), wanted=wanted)


def page(folder: Path, number: int, *, released: int, written_at: int = NOW, **others: object) -> None:
    """What a site of this process says."""
    status = site_status(f"s{number}", number, written_at=written_at, released_sequence=released, **others)
    StatusFile(RunFolder(folder), f"s{number}").close(status)


def test_nobody_is_heard_where_nobody_runs(folder: Path) -> None:
    assert audience(folder).choose(None, NOW) is None
    assert audience(folder).is_over()
    with folder_lock(folder):
        assert not audience(folder).is_over()


def test_the_site_that_has_released_most_is_heard_first(folder: Path) -> None:
    page(folder, 1, released=5)
    page(folder, 2, released=7)
    page(folder, 3, released=9, membership_state="observer")
    assert audience(folder).choose(None, NOW) == 2
    assert audience(folder).released_through(2) == 7
    assert audience(folder).choose(1, NOW) == 1
    assert audience(folder).choose(3, NOW) == 2


def test_a_seat_in_a_secondary_loop_is_as_good(folder: Path) -> None:
    page(folder, 4, released=5, membership_state="observer", loops={1: ("s1", "s4")})
    assert audience(folder).choose(None, NOW) == 4


def test_a_site_that_stands_still_or_has_ended_is_left_for_another(folder: Path) -> None:
    page(folder, 1, released=9)
    page(folder, 2, released=5, written_at=NOW + FRESH_PERIOD)
    assert audience(folder).choose(1, NOW + FRESH_PERIOD) == 2
    page(folder, 1, released=9, ended=True)
    assert audience(folder).choose(1, NOW) == 2


def test_a_site_that_is_cut_off_is_left_when_its_lease_has_ended(folder: Path) -> None:
    page(folder, 1, released=9, lease_left_ms=-1.0)
    page(folder, 2, released=5)
    assert not audience(folder).serves(1, NOW)
    assert audience(folder).serves(2, NOW)
    assert not audience(folder).serves(3, NOW)
    assert audience(folder).choose(1, NOW) == 2


def test_nobody_is_left_while_no_other_serves(folder: Path) -> None:
    """During a reformation all sites are fenced for a moment."""
    page(folder, 1, released=9, membership_state="fenced")
    page(folder, 2, released=9, membership_state="fenced")
    assert audience(folder).choose(1, NOW) == 1
    assert audience(folder).choose(3, NOW) == 3
    assert audience(folder).choose(None, NOW) == 1


def test_a_site_that_was_named_is_the_only_one(folder: Path) -> None:
    page(folder, 1, released=9)
    assert audience(folder, wanted="s2").choose(None, NOW) is None
    page(folder, 2, released=1, membership_state="observer")
    assert audience(folder, wanted="s2").choose(2, NOW) == 2
    with pytest.raises(UserError, match=r"--site is 'x1'; .* names s1, s2, s3, s4"):
        audience(folder, wanted="x1")

"""Which site is followed: one that serves, for as long as it does; and what is reported of outages."""

from pathlib import Path

import pytest

from fairtape.core.errors import UserError
from fairtape.core.instants import SECOND
from fairtape.deployment.config.description import read_deployment
from fairtape.deployment.follow.site_failover import (
    CHECK_PERIOD,
    FRESH_PERIOD,
    OUTAGE_MIN,
    SiteChanged,
    SiteFailover,
    SiteRestored,
    SiteSilent,
)
from fairtape.deployment.lock_file import folder_lock
from fairtape.deployment.operations.draft import Draft, create_deployment
from fairtape.deployment.status_files import RunFolder, StatusFile
from unit.deployment.status_values import site_status
from unit.tape.tape_values import order, write

NOW = 1_000 * SECOND


class ManualClock:
    """A clock that is set by hand."""

    def __init__(self, at: int = NOW) -> None:
        self.at = at

    def now(self) -> int:
        return self.at

    def bound(self) -> int:
        return 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return create_deployment(tmp_path / "new", Draft(loops=(3, 1), profile="wan")).folder


def failover(folder: Path, *, only: str | None = None, at: int = NOW) -> SiteFailover:
    return SiteFailover(read_deployment(folder), only=only, clock=ManualClock(at))


def page(folder: Path, number: int, *, released: int, written_at: int = NOW, **others: object) -> None:
    """Write the status file of a site, as this process."""
    status = site_status(f"s{number}", number, written_at=written_at, released_sequence=released, **others)
    StatusFile(RunFolder(folder), f"s{number}").close(status)


def test_no_site_is_chosen_where_none_runs(folder: Path) -> None:
    assert failover(folder).choose() is None
    assert not failover(folder).runs()
    with folder_lock(folder):
        assert failover(folder).runs()


def test_the_site_that_has_released_most_is_chosen_first(folder: Path) -> None:
    page(folder, 1, released=5)
    page(folder, 2, released=7)
    page(folder, 3, released=9, membership_state="observer")
    assert failover(folder).choose() == 2
    assert failover(folder).released_through(2) == 7
    assert failover(folder).choose(1) == 1
    assert failover(folder).choose(3) == 2


def test_a_member_of_a_secondary_loop_serves_as_well(folder: Path) -> None:
    page(folder, 4, released=5, membership_state="observer", loops={1: ("s1", "s4")})
    assert failover(folder).choose() == 4


def test_a_site_that_stands_still_or_has_ended_is_left_for_another(folder: Path) -> None:
    page(folder, 1, released=9)
    page(folder, 2, released=5, written_at=NOW + FRESH_PERIOD)
    assert failover(folder, at=NOW + FRESH_PERIOD).choose(1) == 2
    page(folder, 1, released=9, ended=True)
    assert failover(folder).choose(1) == 2


def test_a_site_that_is_cut_off_is_left_when_its_lease_has_ended(folder: Path) -> None:
    page(folder, 1, released=9, lease_left_ms=-1.0)
    page(folder, 2, released=5)
    assert not failover(folder).serves(1)
    assert failover(folder).serves(2)
    assert not failover(folder).serves(3)
    assert failover(folder).choose(1) == 2


def test_a_site_is_kept_while_no_other_serves(folder: Path) -> None:
    """During a reformation all sites are fenced for a moment."""
    page(folder, 1, released=9, membership_state="fenced")
    page(folder, 2, released=9, membership_state="fenced")
    assert failover(folder).choose(1) == 1
    assert failover(folder).choose(3) == 3
    assert failover(folder).choose() == 1


def test_a_site_that_was_named_is_the_only_choice(folder: Path) -> None:
    page(folder, 1, released=9)
    assert failover(folder, only="s2").choose() is None
    page(folder, 2, released=1, membership_state="observer")
    assert failover(folder, only="s2").choose(2) == 2
    with pytest.raises(UserError, match=r"--site is 'x1'; .* names s1, s2, s3, s4"):
        failover(folder, only="x1")


def test_an_outage_is_reported_once_and_so_is_its_end(folder: Path) -> None:
    write(folder / "journals" / "s1", order(3))
    write(folder / "journals" / "s2", order(3))
    clock = ManualClock()
    chooser = SiteFailover(read_deployment(folder), clock=clock)
    assert list(chooser.check()) == [], "no site is watched yet"
    follower = chooser.follow(1)
    page(folder, 1, released=3)
    assert list(chooser.check()) == []
    assert not chooser.is_over
    served_at = clock.at
    clock.at += FRESH_PERIOD + OUTAGE_MIN
    assert list(chooser.check()) == [SiteSilent(1, served_at)]
    assert chooser.is_silent
    clock.at += CHECK_PERIOD
    assert list(chooser.check()) == []
    page(folder, 1, released=3, written_at=clock.at)
    assert list(chooser.check()) == [], "the next check is not due"
    clock.at += CHECK_PERIOD
    assert list(chooser.check()) == [SiteRestored(1)]
    clock.at += CHECK_PERIOD
    page(folder, 1, released=3, written_at=clock.at, ended=True)
    page(folder, 2, released=3, written_at=clock.at)
    assert list(chooser.check()) == [SiteChanged(1, 2)]
    assert (chooser.site, follower.site) == (2, 2)
    follower.close()


def test_a_deployment_is_over_when_no_process_of_it_runs_here(folder: Path) -> None:
    write(folder / "journals" / "s1", order(3))
    clock = ManualClock()
    chooser = SiteFailover(read_deployment(folder), clock=clock)
    chooser.follow(1).close()
    list(chooser.check())
    assert chooser.is_over
    clock.at += CHECK_PERIOD
    with folder_lock(folder):
        list(chooser.check())
        assert not chooser.is_over

"""What a site reports of its own punctuality, and when it does not."""

from fairtape.core.instants import MILLISECOND, SECOND, Duration
from fairtape.core.timing import PROFILES, Timing
from fairtape.nodes.punctuality import (
    ELSEWHERE,
    IN_TIME_PERIOD,
    REMEDY,
    SLOW_REMEDY,
    WINDOW,
    Punctuality,
    SlowMembers,
    stall_max,
)
from fairtape.ring.load import SiteLoad

METRO = PROFILES["metro"].with_resilience(1)
LAN = PROFILES["lan"].with_resilience(1)
FORMATION = 1


class Watched:
    """A site of one formation, whose windows follow one another."""

    def __init__(self) -> None:
        self.now = SECOND
        self.sequence = self.late = 0
        self.punctuality = Punctuality()
        assert self.notice() is None  # it enters the formation

    def notice(self, *, timing: Timing = METRO, formation: int = FORMATION) -> str | None:
        return self.punctuality.notice(
            formation=formation, timing=timing, sequence=self.sequence, late=self.late, now=self.now
        )

    def window(self, *, late: int, waited: Duration, timing: Timing = METRO) -> str | None:
        """A window of 5,000 messages."""
        self.punctuality.woken(waited)
        self.now += WINDOW
        self.sequence += 5_000
        self.late += late
        return self.notice(timing=timing)


def test_a_site_that_had_to_wait_for_a_processor_names_the_remedy() -> None:
    assert Watched().window(late=159, waited=500 * MILLISECOND) == (
        "159 of 5,000 messages (3.2%) were released late here in 10 s, and this site had to wait for up to 500.0 ms to"
        f" run (the guaranteed delay is 35 ms): {REMEDY}"
    )


def test_a_site_that_only_waited_for_another_site_does_not_blame_its_machine() -> None:
    assert Watched().window(late=119, waited=2_300_000) == (
        "119 of 5,000 messages (2.4%) were released late here in 10 s, although this site never had to wait for more"
        f" than 2.3 ms to run (the guaranteed delay is 35 ms): {ELSEWHERE}"
    )


def test_a_wait_that_is_short_for_a_slow_profile_is_long_for_a_fast_one() -> None:
    notice = Watched().window(late=119, waited=2_300_000, timing=LAN)
    assert notice is not None
    assert notice.endswith(REMEDY)


def test_a_few_late_messages_are_not_reported() -> None:
    assert Watched().window(late=25, waited=500 * MILLISECOND) is None
    assert Watched().window(late=9, waited=500 * MILLISECOND) is None


def test_a_stall_is_reported_at_once() -> None:
    site = Watched()
    site.punctuality.woken(stall_max(METRO) + MILLISECOND)
    site.now += MILLISECOND
    notice = site.notice()
    assert notice is not None
    assert notice.startswith("this site did not run for 504 ms, and counts as failed after 1,005 ms")
    assert notice.endswith(REMEDY)


def test_trouble_that_lasts_is_reported_once_and_again_after_a_time_without_it() -> None:
    site = Watched()
    assert site.window(late=159, waited=SECOND // 2) is not None
    assert [site.window(late=159, waited=SECOND // 2) for _ in range(10)] == [None] * 10
    for _ in range(IN_TIME_PERIOD // WINDOW):
        assert site.window(late=0, waited=0) is None
    assert site.window(late=159, waited=SECOND // 2) is not None


def test_a_site_that_is_no_member_reports_nothing() -> None:
    site = Watched()
    site.notice(formation=0)
    site.punctuality.woken(SECOND)
    site.now += WINDOW
    assert site.notice(formation=0) is None


SLOW = (2, SiteLoad(release_lag=4 * MILLISECOND, backlog=1_500_000))
REPORTS = 50  # in a window


class FormationMember:
    """A site, with the reports of the other members."""

    def __init__(self) -> None:
        self.now = SECOND
        self.slow_members = SlowMembers()

    def window(self, *, slowing: int, formation: int = FORMATION) -> list[str]:
        """The notices of a window in whose last reports member 2 slows the sources."""
        notices = []
        for number in range(REPORTS + 1):
            slowest = SLOW if number > REPORTS - slowing else None
            notice = self.slow_members.notice(formation=formation, slowest=slowest, now=self.now)
            notices += [] if notice is None else [notice]
            self.now += WINDOW // REPORTS
        return notices


def test_a_member_that_slows_the_sources_all_the_time_is_named() -> None:
    (notice,) = FormationMember().window(slowing=REPORTS)
    assert notice == (
        f"site 2 slows the sources: it reports a release lag of 4.0 ms and a backlog of 1.5 ms; {SLOW_REMEDY}"
    )


def test_a_flood_that_is_regulated_names_no_one() -> None:
    assert FormationMember().window(slowing=REPORTS // 2) == []


def test_a_member_is_named_once_until_it_was_fast_for_a_while() -> None:
    member = FormationMember()
    assert len(member.window(slowing=REPORTS)) == 1
    assert sum(len(member.window(slowing=REPORTS)) for _ in range(9)) == 0
    assert sum(len(member.window(slowing=0)) for _ in range(IN_TIME_PERIOD // WINDOW)) == 0
    assert len(member.window(slowing=REPORTS)) == 1


def test_outside_of_a_formation_no_one_is_named() -> None:
    assert FormationMember().window(slowing=REPORTS, formation=0) == []

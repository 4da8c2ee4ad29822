"""Decision 51, Pace: when the token is slowed and sped up, and what stays as it is.  T-RMP §4."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.instants import SECOND, Instant
from fairtape.core.timing import PROFILES, Timing
from fairtape.nodes.coordinator.pace import (
    LATE_MIN,
    QUIET_FACTOR_MAX,
    WINDOWS_LATE,
    PaceControl,
    describe_change,
    pace_of,
    paced,
    slower,
)
from fairtape.nodes.coordinator.planned_change import PACE_LEAD, plan_change
from fairtape.nodes.coordinator.primary_loop import Phase, PrimaryLoopCoordinator
from fairtape.nodes.coordinator.reformation import next_layout
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.layout import decode_formation
from fairtape.ring.membership.reconfiguration import retime, take_over
from fairtape.ring.membership.topology import PACE_MAX, PACES, LoopTopology, PaceRule, Topology
from fairtape.wire.frames import NodeId
from fairtape.wire.membership import Install, MembershipState, SiteReport
from unit.ring.loop_values import TIMING, formation_of, report_of

NOW: Instant = 100 * SECOND
RULE = PaceRule()
SITES = (1, 2, 3)
IN_A_WINDOW = 1_000  # messages


def topology(pace: PaceRule | None = RULE, *, timed: bool = True) -> Topology:
    loops = (LoopTopology(number=0, tour=SITES, timing=TIMING),)
    return Topology(loops=loops, resilience=1, pace=pace, timed=timed)


class Windows:
    """A loop whose members report at the end of every window."""

    def __init__(self, policy: Topology | None = None, *, pace: int = 1) -> None:
        self.policy = policy or topology()
        self.control = PaceControl(self.policy)
        self.now = NOW
        self.timing = TIMING
        self._sequence = 1
        self._late = dict.fromkeys(SITES, 0)
        self._incarnations = dict.fromkeys(SITES, 1)
        self.control.lead()
        self.change(pace)

    def change(self, pace: int) -> None:
        """A formation of this pace begins."""
        self.timing = paced(TIMING, self.policy, pace)
        self.control.begin(self.timing, self.now)
        self.control.count(self._reports(), self.now)

    def pass_window(self, *, late: int = 0, site: NodeId = 2, messages: int = IN_A_WINDOW) -> None:
        self.now += RULE.window
        self._sequence += messages
        self._late[site] += late
        self.control.count(self._reports(), self.now)

    def restart(self, site: NodeId) -> None:
        self._late[site] = 0
        self._incarnations[site] += 1

    def _reports(self) -> list[SiteReport]:
        return [
            report_of(site, sequence=self._sequence, late=self._late[site], incarnation=self._incarnations[site])
            for site in SITES
        ]

    @property
    def wanted(self) -> int | None:
        return self.control.wanted(self.timing, self.now)


def test_a_loop_in_time_keeps_its_pace() -> None:
    loop = Windows()
    for _ in range(10):
        loop.pass_window()
    assert loop.wanted == 1


def test_a_loop_in_which_a_site_is_late_for_some_windows_is_slowed() -> None:
    loop = Windows()
    for _ in range(WINDOWS_LATE):
        assert loop.wanted == 1
        loop.pass_window(late=6)
    assert loop.wanted == 2
    assert loop.control.cause == "0.6 % of the releases of site 2 were late"


def test_one_hiccup_is_no_reason() -> None:
    loop = Windows()
    for late in (900, 0, 900, 0):
        loop.pass_window(late=late)
        assert loop.wanted == 1


def test_half_a_percent_may_be_late_and_so_may_a_few_messages() -> None:
    for late, messages in ((5, IN_A_WINDOW), (LATE_MIN - 1, 10)):
        loop = Windows()
        for _ in range(10):
            loop.pass_window(late=late, messages=messages)
        assert loop.wanted == 1


def test_the_token_is_slowed_to_three_times_its_period_and_no_further() -> None:
    loop = Windows()
    for expected in (2, 3, 3):
        for _ in range(WINDOWS_LATE):
            loop.pass_window(late=100)
        assert loop.wanted == expected
        loop.change(expected)
    assert PACE_MAX == 3


def test_a_formation_begins_with_nothing_counted() -> None:
    loop = Windows()
    for _ in range(WINDOWS_LATE):
        loop.pass_window(late=100)
    loop.change(2)
    assert loop.wanted == 2


def test_a_restarted_site_counts_from_its_next_report_on() -> None:
    loop = Windows()
    for _ in range(2 * WINDOWS_LATE):
        loop.restart(2)
        loop.pass_window(late=100)
    assert loop.wanted == 1


def pass_quiet_time(loop: Windows, share: float = 1.0) -> None:
    for _ in range(int(share * RULE.quiet_period / RULE.window)):
        loop.pass_window()


def test_after_a_long_quiet_time_the_token_is_sped_up_by_one_step() -> None:
    loop = Windows(pace=3)
    pass_quiet_time(loop, 0.99)
    assert loop.wanted == 3
    pass_quiet_time(loop, 0.02)
    assert loop.wanted == 2
    assert loop.control.cause == "after a quiet time"
    loop.change(2)
    assert loop.wanted == 2


def test_a_few_late_releases_end_the_quiet_but_do_not_slow_the_token() -> None:
    loop = Windows(pace=2)
    for _ in range(10):
        pass_quiet_time(loop, 0.5)
        loop.pass_window(late=2)
    assert loop.wanted == 2


def test_where_the_token_was_sped_up_too_soon_the_next_quiet_time_is_longer() -> None:
    loop = Windows(pace=2)
    for factor in (1, 2, 4, 8, QUIET_FACTOR_MAX):
        pass_quiet_time(loop, factor - 0.01)
        assert loop.wanted == 2
        pass_quiet_time(loop, 0.02)
        assert loop.wanted == 1
        loop.change(1)
        for _ in range(WINDOWS_LATE):
            loop.pass_window(late=100)
        loop.change(2)


def test_a_clock_that_was_set_back_extends_no_window_and_no_quiet_time() -> None:
    loop = Windows(pace=2)
    loop.now -= 3_600 * SECOND
    pass_quiet_time(loop, 1.01)
    assert loop.wanted == 1


def test_a_fixed_pace_is_that_of_the_operator() -> None:
    loop = Windows(topology(None), pace=3)
    for _ in range(WINDOWS_LATE):
        loop.pass_window(late=100)
    assert loop.wanted == 1
    assert loop.control.cause == "its pace is fixed"


def test_a_token_without_a_schedule_and_a_foreign_period_have_no_pace() -> None:
    assert Windows(topology(timed=False)).wanted is None
    loop = Windows()
    assert loop.control.wanted(replace(TIMING, token_period=TIMING.token_period * 4), NOW) is None


# The timing of a pace.


@given(st.sampled_from(list(PROFILES.values())), st.sampled_from(PACES), st.integers(0, 3))
def test_a_pace_changes_the_token_period_and_the_commit_delay_and_nothing_else(
    profile: Timing, pace: int, resilience: int
) -> None:
    """Δ_R does not shrink, and a commit has the time of one more token after the K that it waits for."""
    timing = profile.with_resilience(resilience)
    slowed = timing.slowed(pace, resilience)
    assert slowed.token_period == pace * timing.token_period
    assert slowed.commit_delay >= max(timing.commit_delay, (resilience + (pace > 1)) * slowed.token_period)
    assert (slowed.commit_delay - timing.commit_delay) % timing.token_period == 0
    assert slowed.reform_delay == timing.reform_delay
    assert replace(slowed, token_period=timing.token_period, commit_delay=timing.commit_delay) == timing
    assert timing.slowed(1, resilience) == timing


def test_at_a_slower_pace_the_turns_of_request_sets_are_longer() -> None:
    """(K + k_p - 1) token periods of the pace, and the time for one late token (decision 49, Commit delay and K)."""
    timing = TIMING.with_resilience(1, request_sets=3)
    policy = Topology(loops=(LoopTopology(number=0, tour=SITES, timing=timing, request_sets=3),), resilience=1)
    for pace in PACES[1:]:
        slow = paced(timing, policy, pace)
        assert slow.commit_delay >= (1 + 2 + 1) * slow.token_period


def test_the_pace_of_a_formation_is_read_from_its_timing() -> None:
    """So a new leader continues with it, and retries are not touched (decision 28, Retry adaptation)."""
    policy = topology()
    raised = replace(TIMING, retries_max=2 * TIMING.retries_max)
    for pace in PACES:
        timing = paced(raised, policy, pace)
        assert pace_of(timing, policy) == pace
        assert timing.retries_max == raised.retries_max
        assert paced(timing, policy, 1) == raised


def test_a_notice_names_the_guaranteed_delay_before_and_after() -> None:
    lan = PROFILES["lan"].with_resilience(1)
    assert describe_change(lan, lan.slowed(2, 1), "site 2 was late") == (
        "the token is slowed from 1 to 2 ms (site 2 was late); the guaranteed delay is 6.7 ms instead of 3.7 ms"
    )
    assert describe_change(lan.slowed(3, 1), lan, "after a quiet time").startswith(
        "the token is sped up from 3 to 1 ms"
    )


@given(st.sampled_from(PACES), st.sampled_from(PACES), st.integers(0, 3), st.integers(30, 60))
def test_no_token_commits_before_the_one_that_precedes_it(before: int, after: int, resilience: int, token: int) -> None:
    """Back to a faster pace the schedule pauses once, because the commit delay becomes shorter."""
    present = retime(formation_of(1, 2, 3), TIMING.slowed(before, resilience))
    following = take_over(retime(present, TIMING.slowed(after, resilience)), number=4, present=present, at_token=token)
    assert following.commit_at(token) >= present.commit_at(token - 1) + following.timing.token_period * (
        after <= before
    )
    assert following.commit_at(token) > present.commit_at(token - 1)
    assert following.starts_at >= present.scheduled_at(token)


# The coordinator.


def test_a_needless_reformation_slows_the_token_where_the_operator_allows_it() -> None:
    """T-RMP §4: when the receivers initiate unnecessary reformations."""
    answered = {site: report_of(site, membership_state=MembershipState.FENCED) for site in SITES}
    for policy, pace in ((topology(), 2), (topology(None), 1)):
        layout = next_layout(formation_of(*SITES), answered, answered, policy, retired=(), suspected=True)
        assert pace_of(layout.timing, policy) == pace
        assert layout.timing.retries_max > TIMING.retries_max
        assert layout.timing.reform_delay > TIMING.reform_delay
        restarted = next_layout(formation_of(*SITES), answered, answered, policy, retired=(), suspected=False)
        assert restarted.timing == TIMING
    assert slower(TIMING.slowed(PACE_MAX, 1), topology()) == TIMING.slowed(PACE_MAX, 1)


def test_sites_have_time_to_prepare_for_another_pace() -> None:
    """They are late already: a change that fails would stop them."""
    present = formation_of(*SITES)
    now = present.scheduled_at(20)
    reports = {site: report_of(site) for site in SITES}
    change = plan_change(
        present, reports, topology(), retired=(), quiet_since=now, failures=0, now=now, pace=2, pace_cause="late"
    )
    assert change is not None
    assert change.formation.timing == paced(TIMING, topology(), 2)
    assert change.formation.starts_at >= now + PACE_LEAD
    assert change.prepared_by > now + PACE_LEAD // 2
    assert change.cause.startswith("the token is slowed from ")


class Led:
    """A coordinator that leads a formation of this pace."""

    def __init__(self, pace: int = 1) -> None:
        self.policy = topology()
        self.loop = PrimaryLoopCoordinator(self.policy, me=101, stripe=0, clock_bound=lambda: 0)
        self.formation: Formation = retime(formation_of(*SITES, resilience=1), paced(TIMING, self.policy, pace))
        self.loop.lead(self.formation, 4, NOW)
        self.now = NOW
        self._sequence = 1
        self._late = 0

    def report(self, windows: int, *, late: int, **changes: object) -> None:
        """Every site reports several times in each window, so that it keeps its lease; until the phase changes."""
        phase = self.loop.phase
        for _ in range(windows * 60):
            self.now += RULE.window // 60
            self._sequence += 10
            self._late += late
            for site in SITES:
                report = report_of(
                    site, formation=self.formation.number, sequence=self._sequence, late=self._late,
                    complete_through=self.formation.first_token + 1, **changes,
                )  # fmt: skip
                self.loop.receive_report(report, self.now)
            if self.loop.phase is not phase:
                return

    def proposed(self) -> Formation:
        layouts = [message.layout for _, message in self.loop.outbox if isinstance(message, Install)]
        return decode_formation(layouts[-1])


def test_late_sites_are_given_a_slower_token_by_a_planned_change() -> None:
    led = Led()
    led.report(WINDOWS_LATE + 1, late=1)
    assert led.loop.phase is Phase.PLANNING
    assert led.proposed().timing == paced(TIMING, led.policy, 2)


def test_a_new_leader_continues_with_the_pace_of_the_formation() -> None:
    led = Led(pace=2)
    led.report(WINDOWS_LATE + 1, late=1)
    assert led.proposed().timing == paced(TIMING, led.policy, 3)
    quiet = Led(pace=3)
    quiet.report(WINDOWS_LATE + 1, late=0)
    assert quiet.loop.phase is Phase.STEADY


def test_a_failed_change_of_the_pace_is_followed_by_a_pause() -> None:
    """Decision 32, Failed planned change: the reformation keeps the pace, and the next change waits."""
    led = Led()
    led.report(WINDOWS_LATE + 1, late=1)
    led.report(1, late=1)
    assert led.loop.phase is Phase.FENCING
    led.report(1, late=0, membership_state=MembershipState.FENCED)
    assert led.loop.proposal is not None
    assert pace_of(led.loop.proposal.timing, led.policy) == 1
    assert led.loop.proposal.timing.retries_max == TIMING.retries_max


@pytest.mark.parametrize("pace", PACES)
def test_a_reformation_keeps_the_pace(pace: int) -> None:
    answered = {site: report_of(site, membership_state=MembershipState.FENCED) for site in (1, 2)}
    present = retime(formation_of(*SITES), paced(TIMING, topology(), pace))
    layout = next_layout(present, answered, answered, topology(), retired=(), suspected=True)
    assert layout.members == (1, 2)
    assert layout.timing == present.timing

"""Overloads: the guarantees hold, late is marked, everything arrives after the calm; the measure of slowed sources."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache

import pytest

from fairtape.cli import run
from fairtape.cli.check import check
from fairtape.core.effects import Ordered, Reason, Release, Report
from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND, Duration, Instant
from fairtape.net.node_runtime import stamped
from fairtape.simulation import world
from fairtape.simulation.checkers import LATE_AFTER
from fairtape.simulation.cluster_run import RunOutcome
from fairtape.simulation.overload import FIXED_SHARE_MAX, RANGES, draw
from fairtape.simulation.overload_checkers import Expectation, LateIsMarked, SlowedWithinASecond
from fairtape.simulation.overload_run import OverloadRun, run_overload
from fairtape.simulation.processors import SLICE_MAX, SLICE_UNBOUNDED
from fairtape.simulation.world import Violation
from fairtape.wire.frames import NodeId

SMOKE_SEEDS = range(1, 13)
TWICE = (5, 16)
COMMIT_AT = 1_000 * SECOND


@cache
def outcome_of(seed: int) -> RunOutcome:
    return run_overload(seed)


@pytest.mark.parametrize("seed", SMOKE_SEEDS)
def test_every_guarantee_holds_in_the_overload_of_seed(seed: int) -> None:
    """Safety, LateIsMarked, and SlowedWithinASecond."""
    outcome = outcome_of(seed)
    assert not outcome.failed, outcome.text


@pytest.mark.parametrize("seed", SMOKE_SEEDS)
def test_after_the_overload_everything_published_is_delivered(seed: int) -> None:
    """A ring of one formation ends with a declared failure; a deployment heals, and then nothing is missing."""
    outcome = outcome_of(seed)
    assert outcome.messages > 0
    assert outcome.all_delivered or (outcome.reforming and not draw(seed).healing)


@pytest.mark.parametrize("seed", [98, 63])
def test_a_pace_that_changes_under_overload_starves_no_source(seed: int) -> None:
    """Sites know the formation of the slower token long before its first token."""
    overload = OverloadRun(draw(seed))
    overload.run()
    assert len({each.timing.token_period for each in overload.checkers.formations()}) > 1
    assert overload.slowed.missed() is None


def test_one_seed_is_one_history_whatever_the_hash_seed() -> None:
    program = f"from fairtape.simulation.overload_run import run_overload as r; print([r(seed) for seed in {TWICE}])"
    outputs = []
    for hash_seed in ("0", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment, check=True)
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    assert outputs[0].count(b"digest=") == len(TWICE)


def test_overloads_cover_every_kind_of_world() -> None:
    drawn = [draw(seed) for seed in range(200)]
    assert {each.profile for each in drawn} == set(RANGES)
    assert {each.healing for each in drawn} == {True, False}
    assert {len(each.sites) for each in drawn} == {1, 2, 3, 4, 5}
    assert {len(each.sources) for each in drawn} == {1, 2, 3, 4}
    assert {len({each.placed[site] for site in each.sites}) for each in drawn} == {1, 2, 3}
    assert {each.resilience for each in drawn} == {0, 1, 2}
    assert {0.3, 4.0, None} <= {each.load for each in drawn}
    assert any(each.loss for each in drawn)
    assert any(load.busy_slice for each in drawn for load in each.loads)
    assert any(load.stalls for each in drawn for load in each.loads)
    assert any(each.placed[each.sites[0]] == each.placed[each.sources[0]] for each in drawn)


@pytest.mark.parametrize("seed", range(50))
def test_costs_are_drawn_so_that_an_idle_world_keeps_its_schedule(seed: int) -> None:
    drawn = draw(seed)
    assert drawn == draw(seed)
    assert max(map(drawn.fixed_share, range(drawn.processors))) <= FIXED_SHARE_MAX
    least, most = RANGES[drawn.profile].capacity
    assert 0.8 * least < drawn.capacity * drawn.message_size < 1.3 * most
    assert 1_999 <= drawn.costs.kib_received < 100 * MICROSECOND  # for a kibibyte


@pytest.mark.parametrize("seed", [4, 10, 11])
def test_sources_well_below_the_capacity_are_carried_in_time(seed: int) -> None:
    """What the measure demands can be kept: at 0.4 of the capacity no message is late."""
    outcome = run_overload(seed, load=0.4)
    assert not outcome.failed, outcome.text
    assert outcome.reforming == 0


UNBOUNDED_SEED = 120


@pytest.mark.parametrize(("slice_max", "missed"), [(SLICE_MAX, None), (SLICE_UNBOUNDED, "were released late")])
def test_an_unbounded_turn_is_noticed(slice_max: int, missed: str | None) -> None:
    """The fault "an unbounded turn": a site that empties its sockets first hands over late, and is caught.

    At a fixed pace: a slower token would hide it.
    """
    overload = OverloadRun(replace(draw(UNBOUNDED_SEED, slice_max=slice_max), pace=None))
    overload.run()
    found = overload.slowed.missed()
    assert (found is None) if missed is None else (missed in (found or ""))


def test_a_mark_that_is_never_set_at_the_hand_over_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault "late and silent", at the hand-over: LateIsMarked fires."""

    def unmarked(release: Release, released_at: Instant) -> Release:
        return replace(stamped(release, released_at), late=release.late)

    monkeypatch.setattr(world, "stamped", unmarked)
    found = (run_overload(seed).guarantee for seed in SMOKE_SEEDS)
    assert next(filter(None, found)) in ("LateIsMarked", "ReleasedTogether")


# The command.


def test_check_runs_overloads(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--overload", "--seeds", "2", "--jobs", "1", "--json"], check) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["worlds"], found["failures"]) == ("overload", [])


def test_check_names_a_world_whose_sources_were_not_slowed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlowedWithinASecond, "missed", lambda _: "everything was late")
    assert run(["--overload", "--seed", "1"], check) == 1
    output = capsys.readouterr().out
    assert output.startswith("seed 1: lan, a deployment, 2 sites and 1 sources on 2 processors")
    assert "SlowedWithinASecond: everything was late" in output
    assert "SlowedWithinASecond was broken in 1 world; the first: fairtape check --seed 1 --overload" in output


# The checkers, on histories made by hand.


def ordered(token: int, count: int = 1) -> Ordered:
    return Ordered(0, 1, token, token, count, COMMIT_AT - SECOND, ())


def handed_over(behind: Duration, *, late: bool, known_after: Duration | None = None, leases: bool = False) -> None:
    """Site 1 hands Msg(1) over; it knew one more holder `known_after` its commit instant."""
    checker = LateIsMarked(resilience=1, leases=leases)
    now = COMMIT_AT + behind
    checker.appended(1, ordered(1), COMMIT_AT - MILLISECOND)
    if known_after is not None:
        checker.appended(1, ordered(2), COMMIT_AT + known_after)
    checker.delivered(1, ordered(1), Release(1, 1, 1, COMMIT_AT, now, late, 0), now)


def test_late_hand_overs_must_be_marked_and_hand_overs_in_time_must_not() -> None:
    handed_over(LATE_AFTER, late=False, known_after=-1)
    handed_over(LATE_AFTER + 1, late=True, known_after=-1)
    with pytest.raises(Violation, match="ms late and not marked"):
        handed_over(LATE_AFTER + 1, late=False, known_after=-1)
    with pytest.raises(Violation, match="in time and marked late"):
        handed_over(LATE_AFTER, late=True, known_after=-1)


def test_a_site_that_was_not_ready_in_time_is_late_however_small_the_delay() -> None:
    handed_over(1, late=True, known_after=1)
    handed_over(1, late=True, known_after=None)
    handed_over(1, late=True, known_after=-1, leases=True)  # its lease may have been renewed too late


def test_a_release_is_dated_by_its_hand_over() -> None:
    checker = LateIsMarked(resilience=0, leases=False)
    with pytest.raises(Violation, match="is marked as released at"):
        checker.delivered(1, ordered(1), Release(1, 1, 1, COMMIT_AT, COMMIT_AT, False, 0), COMMIT_AT + 1)


BEGINS_AT = 10 * SECOND
EXPECTED = Expectation(
    begins_at=BEGINS_AT, calms_at=BEGINS_AT + 3 * SECOND, messages_per_s=1_000, commit_delay=10 * MILLISECOND
)


class Overloaded:
    """Two sites that release a message every millisecond, from the beginning to the calm."""

    def __init__(self, expected: Expectation = EXPECTED) -> None:
        self.measure = SlowedWithinASecond(expected, (1, 2))

    def release(self, site: NodeId, since: Duration, until: Duration, *, late: bool = False, every: int = 1) -> None:
        for at in range(BEGINS_AT + since, BEGINS_AT + until, every * MILLISECOND):
            self.measure.delivered(site, ordered(1), Release(1, 1, 1, at, at, late, 0), at)

    @property
    def missed(self) -> str:
        return self.measure.missed() or ""


def test_sites_that_release_in_time_what_they_can_carry_keep_the_measure() -> None:
    world = Overloaded()
    for site in (1, 2):
        world.release(site, 0, 3 * SECOND)
    assert world.missed == ""
    assert world.measure.carried_share == 1.0


def test_the_first_second_is_not_measured() -> None:
    world = Overloaded()
    for site in (1, 2):
        world.release(site, 0, SECOND, late=True)
        world.release(site, SECOND, 3 * SECOND)
    assert world.missed == ""


def test_one_percent_of_the_messages_may_be_late_and_no_more() -> None:
    for late, missed in ((20, ""), (21, "1.1% of the messages were released late; at most 1.0% may")):
        world = Overloaded()
        world.release(1, SECOND, SECOND + 2 * late * MILLISECOND, late=True)
        world.release(1, SECOND + 2 * late * MILLISECOND, 3 * SECOND)
        world.release(2, SECOND, 3 * SECOND)
        assert world.missed == missed


def test_no_site_may_be_declared_failed_and_nothing_may_be_reformed() -> None:
    world = Overloaded()
    for site in (1, 2):
        world.release(site, SECOND, 3 * SECOND)
    world.measure.reformations = 2
    assert world.missed == "2 reformations, although no node had failed"
    world.measure.reported(1, Report(2, 7, Reason.ACK_SILENT, BEGINS_AT), BEGINS_AT)
    assert world.missed == "site 1 declared site 2 failed: its acknowledgment did not come in time"


def test_every_site_must_release_a_share_of_what_could_be_carried() -> None:
    world = Overloaded()
    world.release(1, SECOND, 3 * SECOND)
    world.release(2, SECOND, 3 * SECOND, every=3)
    assert world.missed == ""
    world = Overloaded()
    world.release(1, SECOND, 3 * SECOND)
    world.release(2, SECOND, 3 * SECOND, every=4)
    assert world.missed == "0.25 of what could be carried was released; at least 0.30 must"


def test_what_is_late_because_a_processor_stopped_is_not_counted() -> None:
    stalled = replace(EXPECTED, stalls=((BEGINS_AT + 2 * SECOND, 50 * MILLISECOND),))
    for expected, late in ((stalled, 0), (EXPECTED, 100)):
        world = Overloaded(expected)
        world.release(1, 2 * SECOND, 2 * SECOND + 100 * MILLISECOND, late=True)
        assert world.measure.late == late
    world = Overloaded(stalled)
    world.release(1, 2 * SECOND + 200 * MILLISECOND, 3 * SECOND, late=True)
    assert world.measure.late == 800

"""Exhaustive exploration of the membership: it is repeatable, and finds what no random schedule found."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from fairtape.cli import run
from fairtape.cli.explore import explore
from fairtape.nodes.coordinator import primary_loop
from fairtape.nodes.coordinator.leadership import Lead
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.topology import Excess
from fairtape.simulation.exploration import Exploration, Findings, Limits
from fairtape.simulation.exploration_starts import STARTS
from fairtape.simulation.explored_deployment import (
    FAULTS,
    Deployment,
    DeploymentState,
    Size,
    Step,
    StepKind,
    possible_steps,
)
from fairtape.simulation.world import Violation

SMALL = Size(sites=2, resilience=0)
TINY = ("--sites", "2", "--resilience", "0", "--steps", "3", "--faults", "1", "--start", "settled", "--json")


def schedule(text: str) -> list[Step]:
    return [Step.parse(each) for each in text.split()]


def explored(size: Size, start: str, limits: Limits) -> Findings:
    deployment = Deployment(size)
    return Exploration(deployment, limits).run([(start, STARTS[start](deployment))])


def after(deployment: Deployment, start: str, steps: str) -> DeploymentState:
    state = STARTS[start](deployment)
    for step in schedule(steps):
        state = deployment.apply(state, step)
    return state


def test_equal_explorations_see_equal_states_whatever_the_hash_seed() -> None:
    found = []
    for seed in ("1", "2"):
        command = (sys.executable, "-m", "fairtape", "explore", *TINY)
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        printed = subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout
        fields = json.loads(printed)
        del fields["seconds"]
        found.append(fields)
    assert found[0] == found[1]
    assert found[0]["depth"] == 3
    assert found[0]["failures"] == []
    assert found[0]["states"] == sum(found[0]["by_depth"]) > 200


def test_steps_that_do_not_touch_one_another_lead_to_one_state() -> None:
    deployment = Deployment(SMALL)
    numbers: dict[object, int] = {}
    one = after(deployment, "settled", "crash-1 delay-2 cut-store-11 time-1").key(numbers)
    other = after(deployment, "settled", "cut-store-11 delay-2 crash-1 time-1").key(numbers)
    assert one == other
    assert one != after(deployment, "settled", "cut-store-12 delay-2 crash-1 time-1").key(numbers)


def test_transitions_that_were_computed_before_give_what_they_would_give_now() -> None:
    steps = "cut-2 time-4 crash-1 time-4 rejoin-2 restart-1 time-4 time-4"
    fresh = after(Deployment(Size(sites=3)), "settled", steps)
    deployment = Deployment(Size(sites=3))
    start = STARTS["settled"](deployment)
    Exploration(deployment, Limits(steps=2, faults=2)).run([("settled", start)])
    looked_up = deployment.states.looked_up
    again = after(deployment, "settled", steps)
    assert deployment.states.looked_up > looked_up
    assert (again.now, again.journals, again.store, again.history.digest) == (
        fresh.now,
        fresh.journals,
        fresh.store,
        fresh.history.digest,
    )
    assert set(again.history.formations[-1].members) == {1, 2, 3}  # it has healed


def test_fewer_faults_on_the_way_to_a_state_let_more_follow() -> None:
    """A state that is reached with one fault first, and without any later, is expanded again."""
    without = explored(SMALL, "settled", Limits(steps=2, faults=0))
    assert without.by_depth == [1, 2, 3]  # one unit of time, four, and their sums
    one = explored(SMALL, "settled", Limits(steps=2, faults=1))
    assert one.states > without.states
    assert one.transitions >= one.states - 1


def test_only_the_chosen_faults_are_explored() -> None:
    deployment = Deployment(SMALL)
    state = STARTS["settled"](deployment)
    possible = [step for step, cost in possible_steps(deployment, state, 1) if cost]
    assert {step.kind for step in possible} == FAULTS
    found = explored(SMALL, "settled", Limits(steps=1, faults=1, only=frozenset({StepKind.CRASH})))
    assert found.states == 1 + 2 + len(deployment.nodes)


def test_an_exploration_without_faults_in_the_machines_finds_nothing() -> None:
    kinds = frozenset({StepKind.CRASH, StepKind.CUT, StepKind.CUT_STORE})
    found = explored(Size(sites=3), "ahead", Limits(steps=3, faults=2, only=kinds))
    assert (found.depth, found.failing, found.ended_by) == (3, {}, "steps")
    assert found.states > 500


def test_a_site_that_is_prepared_for_another_proposal_with_this_number_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Decision 53, Digest of a proposal: without it, two proposals of one number are taken for one."""

    def number(formation: Formation) -> int:
        return formation.number

    monkeypatch.setattr("fairtape.nodes.coordinator.planned_change.proposal_digest", number)
    monkeypatch.setattr("fairtape.nodes.site.proposal_digest", number)
    deployment = Deployment(Size(sites=2, resilience=0, excess=Excess.CONTINUE))
    leaderless = after(deployment, "lost-proposal", "crash-11")
    found = Exploration(deployment, Limits(steps=5, faults=0, failures=1)).run([("lost-proposal", leaderless)])
    [failure] = found.failures
    assert failure.guarantee == "Fenced"
    steps = ",".join(map(str, (Step(StepKind.CRASH, 11), *failure.steps)))
    arguments = ["--sites", "2", "--resilience", "0", "--excess", "continue", "--start", "lost-proposal"]
    arguments += ["--replay", steps]
    assert run(arguments, explore) == 1
    assert "which formation" in capsys.readouterr().out.splitlines()[-1]
    monkeypatch.undo()
    assert run(arguments, explore) == 0
    assert capsys.readouterr().out.endswith("every guarantee held\n")


def test_a_refused_claim_that_extends_the_lead_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader whose renewal was carried out, and the answer lost, must not count its lease from the next claim."""
    show = Lead.show

    def extend(lead: Any, shown: Any, now: int) -> None:
        show(lead, shown, now)
        mine = shown is not None and (shown.leader, shown.term) == (lead._me, lead.term)
        if mine and lead._claims:
            lead.until = max(lead._claims.values()) + shown.lease

    def explore_renewals() -> Findings:
        """The renewals of a leader fall into other ticks of a unit from each of these starts."""
        deployment = Deployment(SMALL)
        starts = [(name, after(deployment, "settled", steps)) for name, steps in renewals.items()]
        kinds = frozenset({StepKind.LOSE_ANSWER, StepKind.CUT_STORE})
        return Exploration(deployment, Limits(steps=5, faults=1, failures=1, only=kinds)).run(starts)

    renewals = {"now": "lose-answer-11", "later": "time-1 lose-answer-11"}
    assert explore_renewals().failing == {}
    monkeypatch.setattr(Lead, "show", extend)
    assert explore_renewals().failing.keys() == {"OneLeader"}


LOST_JOURNAL = "crash-101 crash-1 crash-2 rejoin-3 rejoin-4 time-1 restart-1.1 time-4"


def test_eight_steps_show_what_an_empty_journal_that_counts_as_an_answer_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decision 52, Identity of a journal: without it, a member with an empty journal answers for what it held."""
    halted = after(Deployment(Size()), "ahead", LOST_JOURNAL)
    assert [formation.number for formation in halted.history.formations] == [1]

    def any_journal(formation: Formation, site: int, identity: int) -> bool:
        return True

    def never(*_reports: object) -> bool:
        return False

    monkeypatch.setattr(Formation, "has_journal", any_journal)
    monkeypatch.setattr(primary_loop, "lost_journal", never)  # the leader would remember what it held
    with pytest.raises(Violation) as broken:
        after(Deployment(Size()), "ahead", LOST_JOURNAL)
    assert broken.value.guarantee == "CommittedSurvives"


def test_mistakes_are_refused_with_a_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    mistakes = (
        (("--sites", "1"), "--sites is 1; give from 2"),
        (("--resilience", "3"), "give from 0 to 2"),
        (("--seconds", "nan"), "--seconds is nan"),
        (("--replay", "time-1"), "add one --start"),
        (("--start", "settled", "--replay", "sleep-1"), "'sleep-1'; give steps such as"),
        (("--start", "settled", "--replay", "rejoin-1"), "'rejoin-1', which is not possible then"),
        (("--resilience", "0", "--start", "proposal"), "choose other starts"),
    )
    for arguments, expected in mistakes:
        assert run(["explore", *arguments]) == 2
        assert expected in capsys.readouterr().err


def test_an_exploration_ends_at_its_limits(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--sites", "2", "--resilience", "0", "--start", "settled", "--states", "10"], explore) == 0
    printed = capsys.readouterr().out
    assert "ended by the limit of states" in printed
    assert "complete to 0 steps: every guarantee held" in printed
    assert explored(SMALL, "settled", Limits(seconds=0)).ended_by == "seconds"

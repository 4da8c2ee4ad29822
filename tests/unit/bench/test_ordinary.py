"""`fairtape bench ordinary`: which results miss a goal, which are invalid, and what the lines of `up` mean."""

import pytest

from fairtape.bench.ordinary import LISTENED, REFORMING, REPACED, TICKER, problems_of, shortfalls_of
from fairtape.bench.results import Result, Results
from fairtape.cli import run
from fairtape.core.timing import PROFILES
from fairtape.nodes.coordinator.pace import describe_change

GOOD: Results = {
    "published": True,
    "trades": 100,
    "listened": 100,
    "late_fraction": 0.005,
    "reformations": 0,
    "guaranteed_delay_ms": 60.0,
    "web_overloads": 0,
    "web_missing": 0,
}


def test_results_at_their_goals_are_neither_short_nor_invalid() -> None:
    assert (problems_of(GOOD), shortfalls_of(GOOD)) == ([], [])


@pytest.mark.parametrize(
    ("name", "result", "goal"),
    [
        ("late_fraction", 0.006, "0.005"),
        ("reformations", 1, "0"),
        ("guaranteed_delay_ms", 61.0, "60"),
        ("web_overloads", 2, "0"),
    ],
)
def test_a_missed_goal_is_reported(name: str, result: Result, goal: str) -> None:
    assert shortfalls_of(GOOD | {name: result}) == [f"{name} is {result:g}; the goal is at most {goal}"]


@pytest.mark.parametrize(("name", "result"), [("published", False), ("web_missing", 7), ("listened", 99)])
def test_lost_trades_make_the_results_invalid(name: str, result: Result) -> None:
    assert len(problems_of(GOOD | {name: result})) == 1


def test_a_reformation_is_not_mistaken_for_another_pace() -> None:
    timing = PROFILES["metro"].with_resilience(1)
    stamp = "2026-07-01T14:30:00.000+00:00 x1: "
    reforming = f"{stamp}reforming after formation 3: s2 is silent"
    reformed = f"{stamp}formation 4 of s1, s3, without s2: s2 is silent"
    repaced = f"{stamp}formation 5 of s1, s3: {describe_change(timing, timing.slowed(2, 1), 'late')}"
    lines = (reforming, reformed, repaced)
    assert [bool(REFORMING.search(line)) for line in lines] == [True, False, False]
    assert [bool(REPACED.search(line)) for line in lines] == [False, False, True]


def test_trades_and_the_address_of_the_ticker_are_found_in_the_lines_of_commands() -> None:
    listened = (
        "formation 1 of s1\n        1  14:30:00  XNYS  XNYS  AAPL  1 1\n       12  14:30:00  XNYS  XNYS  AAPL  1 1\n"
    )
    assert len(LISTENED.findall(listened)) == 2
    found = TICKER.search("the ticker of site s1 is at http://127.0.0.1:40123/; Ctrl-C ends it")
    assert found is not None
    assert found[1] == "127.0.0.1:40123"


@pytest.mark.parametrize("option", ["--minutes", "--sites"])
def test_wrong_options_are_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "ordinary", option, "0"]) == 2
    assert option in capsys.readouterr().err

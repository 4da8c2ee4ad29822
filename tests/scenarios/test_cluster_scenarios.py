"""Scenarios: bare rings with the whole expected trace, and deployments with the expected log of each seed."""

from pathlib import Path

import pytest

from scenarios.cluster_scenario import play
from scenarios.scenario_text import RULE_LINE, BadScenario, parts

FILES = [file for kind in ("clusters", "rings") for file in sorted((Path(__file__).parent / kind).glob("*.txt"))]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_scenario_gives_the_expected_log_or_trace(file: Path, request: pytest.FixtureRequest) -> None:
    commands, expected = parts(file.read_text())
    log = play(commands)
    if request.config.getoption("--rewrite", default=False):
        file.write_text(f"{commands}{RULE_LINE}\n{log}")
    else:
        assert log == expected


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("dance 1 2", "none of cluster, ring"),
        ("ring 1 2 tempo=3", "unknown option 'tempo'"),
        ("drop 2:3 Ack", "no link"),
        ("cluster 1 2 tempo=3", "unknown option 'tempo'"),
        ("crash 1", "'at'"),
        ("run fast", "no duration"),
        ("excess shrug", "not a valid Excess"),
    ],
)
def test_a_command_that_cannot_be_parsed_is_named(line: str, complaint: str) -> None:
    with pytest.raises(BadScenario, match=complaint):
        play(line)

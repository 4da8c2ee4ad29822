"""Cluster scenarios: ten seeds for every kind of fault, each with the log that is expected."""

from pathlib import Path

import pytest

from scenarios.cluster_scenario import play_cluster
from scenarios.ring_scenario import RULE_LINE, BadScenario, parts

FILES = sorted((Path(__file__).parent / "clusters").glob("*.txt"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_cluster_scenario_gives_the_expected_log(file: Path, request: pytest.FixtureRequest) -> None:
    commands, expected = parts(file.read_text())
    log = play_cluster(commands)
    if request.config.getoption("--rewrite", default=False):
        file.write_text(f"{commands}{RULE_LINE}\n{log}")
    else:
        assert log == expected


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("dance 1 2", "none of cluster, loop"),
        ("cluster 1 2 tempo=3", "unknown option 'tempo'"),
        ("crash 1", "'at'"),
        ("run fast", "no duration"),
        ("excess shrug", "not a valid Excess"),
    ],
)
def test_a_command_that_cannot_be_parsed_is_named(line: str, complaint: str) -> None:
    with pytest.raises(BadScenario, match=complaint):
        play_cluster(line)

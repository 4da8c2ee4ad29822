"""Ring scenarios: each file has a script above the line and the whole expected trace below it."""

from pathlib import Path

import pytest

from scenarios.ring_scenario import RULE_LINE, BadScenario, parts, play

FILES = sorted((Path(__file__).parent / "rings").glob("*.txt"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_ring_scenario_gives_the_expected_trace(file: Path, request: pytest.FixtureRequest) -> None:
    commands, expected = parts(file.read_text())
    trace = play(commands)
    if request.config.getoption("--rewrite", default=False):
        file.write_text(f"{commands}{RULE_LINE}\n{trace}")
    else:
        assert trace == expected


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("dance 1 2", "none of ring, sources"),
        ("ring 1 2 tempo=3", "unknown option 'tempo'"),
        ("run fast", "no duration"),
        ("drop 2:3 Ack", "no link"),
    ],
)
def test_a_line_that_cannot_be_parsed_is_named(line: str, complaint: str) -> None:
    with pytest.raises(BadScenario, match=complaint):
        play(line)

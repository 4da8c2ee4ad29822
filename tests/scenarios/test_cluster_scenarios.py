"""Ten seeds for every kind of fault, each of them a story that an operator could read in the logs."""

from pathlib import Path

import pytest

from scenarios.cluster_scenario import tell
from scenarios.ring_scenario import RULE_LINE, BadScenario, parts

STORIES = sorted((Path(__file__).parent / "clusters").glob("*.txt"))


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.stem)
def test_the_chronicle_goes_as_it_is_told(story: Path, request: pytest.FixtureRequest) -> None:
    commands, expected = parts(story.read_text())
    told = tell(commands)
    if request.config.getoption("--rewrite", default=False):
        story.write_text(f"{commands}{RULE_LINE}\n{told}")
    else:
        assert told == expected


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("dance 1 2", "none of realm, loop"),
        ("realm 1 2 tempo=3", "unknown option 'tempo'"),
        ("crash 1", "'at'"),
        ("run fast", "no duration"),
        ("excess shrug", "not a valid Excess"),
    ],
)
def test_a_command_that_cannot_be_understood_is_named(line: str, complaint: str) -> None:
    with pytest.raises(BadScenario, match=complaint):
        tell(line)

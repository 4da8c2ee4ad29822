"""Each file tells a small story above the line and the whole trace that it must give below it."""

from pathlib import Path

import pytest

from scenarios.ring_scenario import RULE_LINE, BadScenario, parts, play

STORIES = sorted((Path(__file__).parent / "rings").glob("*.txt"))


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.stem)
def test_the_story_goes_as_it_is_told(story: Path, request: pytest.FixtureRequest) -> None:
    commands, expected = parts(story.read_text())
    trace = play(commands)
    if request.config.getoption("--rewrite", default=False):
        story.write_text(f"{commands}{RULE_LINE}\n{trace}")
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
def test_a_line_that_cannot_be_understood_is_named(line: str, complaint: str) -> None:
    with pytest.raises(BadScenario, match=complaint):
        play(line)

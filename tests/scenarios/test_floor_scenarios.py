"""Stories of a floor: what becomes of its trades when N sites are lost, and when one more is."""

from pathlib import Path

import pytest

from scenarios.floor_scenario import tell_floor
from scenarios.ring_scenario import RULE_LINE, BadScenario, parts

STORIES = sorted((Path(__file__).parent / "floors").glob("*.txt"))


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.stem)
def test_the_floor_fares_as_it_is_told(story: Path, request: pytest.FixtureRequest) -> None:
    commands, expected = parts(story.read_text())
    told = tell_floor(commands)
    if request.config.getoption("--rewrite", default=False):
        story.write_text(f"{commands}{RULE_LINE}\n{told}")
    else:
        assert told == expected


def test_with_n_sites_lost_no_committed_trade_is_void_and_with_one_more_some_are() -> None:
    told = {story.stem: parts(story.read_text())[1] for story in STORIES}
    assert "which was committed, is void" not in told["n_sites_lost"]
    assert "which was tentative, is void" in told["n_sites_lost"]
    assert "which was committed, is void" in told["n_plus_one_sites_lost"]
    assert all("the same at all 5 replicas" in story for story in told.values())


def test_a_story_that_does_not_begin_with_its_floor_is_refused() -> None:
    with pytest.raises(BadScenario, match="expected floor passes=N"):
        tell_floor("realm 1 2 3\n")

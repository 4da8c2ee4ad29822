"""Floor scenarios: what happens to trades when sites are lost, or alone hold the last token of a formation."""

from pathlib import Path

import pytest

from scenarios.floor_scenario import play_floor
from scenarios.scenario_text import RULE_LINE, BadScenario, parts

FILES = sorted((Path(__file__).parent / "floors").glob("*.txt"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_floor_scenario_gives_the_expected_log(file: Path, request: pytest.FixtureRequest) -> None:
    commands, expected = parts(file.read_text())
    log = play_floor(commands)
    if request.config.getoption("--rewrite", default=False):
        file.write_text(f"{commands}{RULE_LINE}\n{log}")
    else:
        assert log == expected


def test_with_n_sites_lost_no_committed_trade_is_void_and_with_one_more_some_are() -> None:
    logs = {file.stem: parts(file.read_text())[1] for file in FILES}
    assert "which was committed, is void" not in logs["n_sites_lost"]
    assert "which was tentative, is void" in logs["n_sites_lost"]
    assert "which was committed, is void" in logs["n_plus_one_sites_lost"]
    assert all("the same at all 5 replicas" in log for log in logs.values())


def test_a_script_that_does_not_begin_with_its_floor_is_refused() -> None:
    with pytest.raises(BadScenario, match="expected floor passes=N"):
        play_floor("cluster 1 2 3\n")

"""Which profile follows from which measurements, and how they are printed."""

import os
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from fairtape.cli.init import measured_table
from fairtape.core.timing import PROFILES
from fairtape.deployment.config.capacity import candidate_profiles
from fairtape.deployment.operations.draft import Draft
from fairtape.deployment.operations.profile_measurement import (
    IDLE_SHARE_MAX,
    ProfileRun,
    choose_profile,
    measure_profile,
    too_fast,
)

BOTH = ("lan", "metro")
LAN = ProfileRun(
    profile="lan", delay_max=3_700_000, messages=4_000, idle_share=0.1, load_share=0.2, flood_rate=500_000.0
)
METRO = ProfileRun(profile="metro", delay_max=35_000_000, messages=4_000, idle_share=0.05, load_share=0.1)


def test_the_fastest_profile_is_taken_where_it_leaves_no_doubt() -> None:
    choice = choose_profile([LAN], BOTH)
    assert choice is not None
    assert (choice.profile, choice.reason) == ("lan", "this machine sustains lan")


@pytest.mark.parametrize(
    ("found", "doubt"),
    [
        ({"late": 5}, "0.1% of its messages were late"),
        ({"late": 47}, "1.2% of its messages were late"),
        ({"pauses": 1}, "a site stalled for more than 50 ms"),
        ({"reformations": 1}, "the ring was reformed although nothing had failed"),
        ({"idle_share": IDLE_SHARE_MAX + 0.05}, "it takes 30% of the processors without any message"),
        ({"flood_late_share": 0.021}, "2.1% were late of trades that were published as fast as possible"),
        ({"flood_rate": None}, "no time was left to publish trades as fast as possible"),
        ({"trouble": "its sites formed no ring within 5 s"}, "its sites formed no ring within 5 s"),
    ],
)
def test_a_doubt_means_the_slower_profile(found: dict[str, int], doubt: str) -> None:
    doubtful = replace(LAN, **found)  # type: ignore[arg-type]
    assert choose_profile([doubtful], BOTH) is None
    choice = choose_profile([doubtful, METRO], BOTH)
    assert choice is not None
    assert (choice.profile, choice.reason) == ("metro", f"this machine sustains metro, and not lan: {doubt}")


def test_some_lateness_and_requests_are_no_doubt() -> None:
    assert choose_profile([replace(LAN, late=4, requests=50, flood_late_share=0.01)], BOTH) is not None


def test_the_last_candidate_is_given_up_for_overload_only() -> None:
    """The profile after it has 1.5 s of delay: better a few late releases than that."""
    late = replace(LAN, late=100)
    some = choose_profile([late, replace(METRO, late=40, pauses=1, idle_share=0.4, flood_late_share=0.1)], BOTH)
    many = choose_profile([late, replace(METRO, late=41)], BOTH)
    assert some is not None
    assert some.profile == "metro"
    assert many is not None
    assert many.profile == "wan"
    assert many.reason == (
        "this machine sustains only wan, and not lan: 2.5% of its messages were late; metro: 1.0% of its messages were"
        " late"
    )


def test_the_only_candidate_is_taken_and_the_slowest_profile_is_none() -> None:
    assert candidate_profiles(3, 2) == BOTH
    assert candidate_profiles(5, 2) == ("metro",)
    assert candidate_profiles(90, 2) == ()
    choice = choose_profile([METRO], ("metro",))
    assert choice is not None
    assert choice.profile == "metro"


def test_a_profile_that_is_too_fast_to_be_measured_is_named() -> None:
    assert too_fast("lan", sites=3, cores=2) == ""
    assert too_fast("metro", sites=5, cores=2) == (
        "; lan was not measured, because 5 sites are too many for it on 2 cores"
    )


def test_too_many_sites_for_every_candidate_are_not_measured() -> None:
    choice = measure_profile(Draft(loops=(len(os.sched_getaffinity(0)) * 9,)), lambda _: None)
    assert (choice.profile, choice.runs) == ("wan", ())
    assert "leaves time for messages with" in choice.reason


def test_where_nothing_can_be_measured_the_slower_profile_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    choice = measure_profile(Draft(loops=(1,)), lambda _: None)
    assert (choice.profile, choice.runs) == ("metro", ())
    assert choice.reason.startswith("nothing was measured ([Errno 2] No such file or directory")
    assert choice.reason.endswith(", so the slower profile metro is taken")


def test_the_table_has_a_row_for_each_profile_and_dashes_where_nothing_was_measured() -> None:
    trouble = ProfileRun(profile="lan", delay_max=PROFILES["lan"].delay_max, trouble="its sites formed no ring")
    flooded = replace(METRO, late=3, requests=2, flood_rate=241_500.0, flood_late_share=0.0012)
    heading, *rows = (re.split(" {2,}", line) for line in measured_table([trouble, METRO, flooded]))
    assert heading[-2:] == ["with messages", "as many trades as possible"]
    assert rows == [
        ["lan", "2.7 ms", *"------"],
        ["metro", "35 ms", "0 of 4,000", "0", "0", "5%", "10%", "-"],
        ["metro", "35 ms", "3 of 4,000", "0", "2", "5%", "10%", "241,500/s, 0.1% late"],
    ]

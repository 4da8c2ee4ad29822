"""`fairtape bench ring`: journals are trimmed during a run, and invalid results are reported."""

from pathlib import Path

import pytest

from fairtape.bench.journal_trim import SEGMENTS_KEPT, trim, trimming
from fairtape.bench.results import Results
from fairtape.bench.ring import GOALS, problems_of, shortfalls_of
from fairtape.journal.format import segment_name


def test_only_the_last_segments_of_a_journal_are_kept(tmp_path: Path) -> None:
    names = [segment_name(sequence) for sequence in (1, 9, 10, 1_000, 20_000)]
    for name in (*names, "lock"):
        (tmp_path / name).touch()
    trim(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"lock", *names[-SEGMENTS_KEPT:]}


def test_a_missing_journal_is_ignored_by_trimming(tmp_path: Path) -> None:
    with trimming([tmp_path / "later"]):
        trim(tmp_path / "later")


SOUND: Results = {
    "messages_per_s": 1_000_000,
    "bare_packets_per_s": 60_000,
    "one_order": True,
    "single_releases": 500,
    "single_late_releases": 0,
    "failures": [],
}


def test_valid_results_have_no_problems() -> None:
    assert problems_of(SOUND) == []


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        ({"one_order": False}, "one_order is false: not every receiver delivered all published messages"),
        ({"one_order_1kb": False}, "one_order_1kb is false"),
        ({"messages_per_s": 0}, "messages_per_s is 0: nothing was delivered in the measured time"),
        ({"bare_packets_per_s": 0}, "bare_packets_per_s is 0: nothing arrived in the measured time"),
        ({"single_releases": 0}, "single_releases is 0: nothing arrived in the measured time"),
        ({"failures": ["site 2: silent"]}, "a failure was declared (failures), site 2: silent"),
    ],
)
def test_invalid_results_are_explained_in_a_sentence(broken: Results, sentence: str) -> None:
    (problem,) = problems_of(SOUND | broken)
    assert problem.startswith(sentence)


REACHED: Results = {"receivers": 3, "message_bytes": 64, **{name: least for name, (least, _) in GOALS.items()}}


def test_a_missed_goal_is_a_sentence_where_the_goal_applies() -> None:
    assert shortfalls_of(REACHED, 2) == shortfalls_of({"receivers": 3, "message_bytes": 64}, 2) == []
    missed: Results = {"on_time_messages_per_s": 900_000, "lan_idle_core_share": 0.2}
    assert shortfalls_of(REACHED | missed, 2) == [
        "on_time_messages_per_s is 900,000; the goal is at least 1,000,000",
        "lan_idle_core_share is 0.2; the goal is at most 0.1",
    ]
    assert shortfalls_of(REACHED | missed, 1) == shortfalls_of(REACHED | missed | {"receivers": 8}, 2) == []


def test_requests_under_a_flood_are_a_shortfall_only_where_nothing_was_lost() -> None:
    requests: Results = {"flood_requests": 7, "flood_datagrams_dropped": 0}
    (shortfall,) = shortfalls_of(REACHED | requests, 2)
    assert shortfall.startswith("flood_requests is 7 although no datagram was dropped")
    assert shortfalls_of(REACHED | requests | {"flood_datagrams_dropped": 1}, 2) == []

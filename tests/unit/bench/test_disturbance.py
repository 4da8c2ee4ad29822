"""The share of other programs, and which rounds count."""

import os
from pathlib import Path

import pytest

from fairtape.bench.disturbance import (
    ATTEMPTS_MAX,
    DISCARDED_MAX,
    OTHERS_MAX,
    ProcessTime,
    ProgramTimes,
    QuietRounds,
    parse_stat,
    problems_of_disturbance,
    ticks_of_others,
)


def test_a_stat_file_is_parsed_whatever_the_name_of_the_process() -> None:
    times = "0 0 0 0 100 20 3 4"  # faults; user, system, and both of ended children
    text = f"42 (a (strange) name) S 7 42 42 0 -1 {0x00200040} {times} 20 0 1 0 99"
    assert parse_stat(text) == ProcessTime(42, 7, of_kernel=True, ticks=127)


def test_this_process_is_found_in_its_own_stat_file() -> None:
    found = parse_stat(Path("/proc/self/stat").read_text())
    assert (found.pid, found.parent, found.of_kernel) == (os.getpid(), os.getppid(), False)


PROCESSES = [
    ProcessTime(1, 0, of_kernel=False, ticks=1),
    ProcessTime(2, 0, of_kernel=True, ticks=10),
    ProcessTime(50, 1, of_kernel=False, ticks=100),  # the benchmark
    ProcessTime(60, 50, of_kernel=False, ticks=1_000),
    ProcessTime(61, 60, of_kernel=False, ticks=10_000),
    ProcessTime(70, 1, of_kernel=False, ticks=100_000),
    ProcessTime(71, 70, of_kernel=False, ticks=1_000_000),
    ProcessTime(80, 79, of_kernel=False, ticks=10_000_000),  # its parent ended while the table was read
]


def test_other_programs_are_neither_descendants_nor_threads_of_the_kernel() -> None:
    assert ticks_of_others(PROCESSES, 50) == 1 + 100_000 + 1_000_000 + 10_000_000
    assert ticks_of_others(PROCESSES[::-1], 50) == ticks_of_others(PROCESSES, 50)
    assert ticks_of_others(PROCESSES, 1) == 10_000_000


def test_the_share_of_others_covers_the_time_between_two_reads() -> None:
    before = ProgramTimes(100, 1_000)
    assert ProgramTimes(110, 1_200).others_since(before) == 0.05
    assert ProgramTimes(90, 1_200).others_since(before) == 0.0
    assert before.others_since(before) == 0.0
    assert ProgramTimes.read().total > 0


class Machine:
    """Programs that use these shares of the processors, one in each attempt."""

    def __init__(self, *shares: float) -> None:
        self._times = [ProgramTimes(0, 0)]
        for share in shares:
            last = self._times[-1]
            self._times += [ProgramTimes(last.others + round(1_000 * share), last.total + 1_000)] * 2
        self.attempts = 0

    def read(self) -> ProgramTimes:
        return self._times.pop(0)

    def work(self) -> int:
        self.attempts += 1
        return self.attempts


def rounds_on(machine: Machine) -> QuietRounds:
    return QuietRounds(lambda _: None, machine.read)


def test_a_quiet_round_counts_at_once() -> None:
    machine = Machine(OTHERS_MAX)
    rounds = rounds_on(machine)
    assert rounds.run("flood", machine.work) == 1
    assert (rounds.shares, rounds.discarded, rounds.disturbed) == ([OTHERS_MAX], 0, [])
    assert problems_of_disturbance(rounds.results()) == []


def test_a_disturbed_round_is_discarded_and_repeated() -> None:
    machine = Machine(0.3, 0.1, 0.01)
    rounds = rounds_on(machine)
    assert rounds.run("flood", machine.work) == 3
    results = rounds.results()
    assert results["other_programs_share"] == 0.01
    assert (results["rounds_discarded"], results["rounds_disturbed"]) == (2, [])


def test_a_round_that_is_disturbed_in_every_attempt_makes_the_results_invalid() -> None:
    machine = Machine(*[0.2] * ATTEMPTS_MAX)
    rounds = rounds_on(machine)
    assert rounds.run("flood", machine.work) == ATTEMPTS_MAX
    assert (rounds.discarded, rounds.disturbed) == (ATTEMPTS_MAX - 1, ["flood"])
    (problem,) = problems_of_disturbance(rounds.results())
    assert problem == (
        "other programs used more than 5% of the processors in every attempt of 1 rounds (flood);"
        " stop them and measure again"
    )


def test_a_busy_machine_ends_the_repetitions() -> None:
    machine = Machine(*[0.2] * 100)
    rounds = rounds_on(machine)
    for number in range(20):
        rounds.run(f"round {number}", machine.work)
    assert rounds.discarded == DISCARDED_MAX
    assert machine.attempts == 20 + DISCARDED_MAX
    assert len(rounds.disturbed) == 20


@pytest.mark.parametrize("results", [{}, {"rounds_disturbed": []}])
def test_results_without_disturbance_have_no_problem(results: dict[str, list[str]]) -> None:
    assert problems_of_disturbance(dict(results)) == []

"""What a table lacks, compared with sets of numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="the extra `pipeline` (PySpark) is not installed")

from fairtape.pipeline.source.partitions import Offset, Offsets, PartitionName
from fairtape.pipeline.tables.jobs import is_continuation, new_in_order, new_in_partitions

SITES = 4
partitions = st.dictionaries(
    st.integers(1, SITES), st.tuples(st.integers(1, 30), st.integers(0, 20), st.integers(0, 20)), min_size=1
)  # of each site: the first number, how many were there before, and how many came


@given(partitions, st.sets(st.integers(1, SITES)))
def test_new_numbers_are_those_that_a_partition_gained_and_none_had(
    partitions: dict[int, tuple[int, int, int]], late: set[int]
) -> None:
    had: dict[int, set[int]] = {}
    before: Offsets = {}
    now: Offsets = {}
    has: dict[int, set[int]] = {}
    for site, (first, length, more) in partitions.items():
        name = PartitionName(0, site)
        end = first + length + more
        has[site] = set(range(first, end))
        now[name] = Offset(end, "b")
        if site not in late:
            had[site] = set(range(first, first + length))
            before[name] = Offset(first + length, "b" if not more else "a")
    firsts = {PartitionName(0, site): first for site, (first, _, _) in partitions.items()}
    spans = new_in_order(before, now, firsts).get(0, [])
    found = [number for begin, end in spans for number in range(begin, end)]
    held = set().union(*had.values()) if had else set()
    gained = set().union(*has.values())
    assert len(found) == len(set(found))
    assert set(found) & gained == gained - held
    assert is_continuation(before, now)
    for name, (begin, end) in new_in_partitions(before, now).items():
        new = has[name.site] - had.get(name.site, set())
        assert {number for number in range(begin, end) if number in has[name.site]} == new


def test_other_numbers_do_not_continue_a_table() -> None:
    name, other = PartitionName(0, 1), PartitionName(0, 2)
    assert is_continuation({name: Offset(5, "a")}, {name: Offset(5, "a"), other: Offset(3, "c")})
    assert not is_continuation({name: Offset(5, "a")}, {name: Offset(5, "b")})
    assert not is_continuation({name: Offset(5, "a")}, {name: Offset(4, "a")})
    assert not is_continuation({name: Offset(5, "a")}, {other: Offset(9, "a")})

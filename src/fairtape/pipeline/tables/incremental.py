"""What a table lacks: the numbers that came into `deliveries` since the table was made of it.

A lane only grows at its end, and its mark says how far a table has taken it in. So what a lane brought since lies
between two marks. A number of the *order* is new when no lane had it before: a site that is behind the others brings
numbers that another one told already. Everything here follows from marks, and from where lanes begin.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from fairtape.pipeline.source.partitions import Offsets, PartitionName

Span = tuple[int, int]  # the first number, and the one after the last

_LANES_DDL: Final = "stripe INT, site LONG, begin LONG, behind LONG"
_ORDER_DDL: Final = "stripe INT, begin LONG, behind LONG"


def has_grown(before: Offsets, now: Offsets) -> bool:
    """Whether what a table was made of is a beginning of what there is now."""
    return all(name in now and (mark == now[name] or mark.next < now[name].next) for name, mark in before.items())


def new_of_lanes(before: Offsets, now: Offsets) -> dict[PartitionName, Span]:
    """What each lane brought."""
    spans = {name: (before[name].next if name in before else 0, mark.next) for name, mark in now.items()}
    return {name: span for name, span in spans.items() if span[0] < span[1]}


def new_in_order(before: Offsets, now: Offsets, firsts: Mapping[PartitionName, int]) -> dict[int, list[Span]]:
    """By stripe: the numbers that some lane brought and none had, as spans that do not touch one another."""
    found: dict[int, list[Span]] = {}
    for stripe in sorted({name.stripe for name in now}):
        had = _joined(
            (firsts.get(name, mark.next), mark.next) for name, mark in before.items() if name.stripe == stripe
        )
        brought = _joined(span for name, span in new_of_lanes(before, now).items() if name.stripe == stripe)
        if left := list(_without(brought, had)):
            found[stripe] = left
    return found


def _joined(spans: Iterable[Span]) -> list[Span]:
    """The same numbers in spans that ascend and do not touch."""
    joined: list[Span] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def _without(spans: Iterable[Span], others: Iterable[Span]) -> Iterator[Span]:
    """What is in the first and in none of the others; both ascend."""
    others = list(others)
    for begin, end in spans:
        for other_begin, other_end in others:
            if begin < other_begin < end:
                yield begin, other_begin
            if other_begin < end:
                begin = max(begin, min(other_end, end))
        if begin < end:
            yield begin, end


def lane_rows(spark: SparkSession, deliveries: DataFrame, spans: Mapping[PartitionName, Span]) -> DataFrame:
    """The deliveries in these spans of lanes. Files that end before all of them are not opened."""
    rows = [(name.stripe, name.site, *span) for name, span in spans.items()]
    return _chosen(deliveries, spark.createDataFrame(rows, _LANES_DDL), ["stripe", "site"], rows)


def order_rows(spark: SparkSession, deliveries: DataFrame, spans: Mapping[int, list[Span]]) -> DataFrame:
    """The deliveries with these numbers, of whichever site."""
    rows = [(stripe, *span) for stripe, of_stripe in spans.items() for span in of_stripe]
    return _chosen(deliveries, spark.createDataFrame(rows, _ORDER_DDL), ["stripe"], rows)


def _chosen(deliveries: DataFrame, spans: DataFrame, keys: list[str], rows: Sequence[tuple[int, ...]]) -> DataFrame:
    least = min((row[-2] for row in rows), default=0)
    within = (F.col("sequence") >= F.col("begin")) & (F.col("sequence") < F.col("behind"))
    recent = deliveries.where(F.col("sequence") >= least)
    return recent.join(F.broadcast(spans), keys).where(within).drop("begin", "behind")

"""Hypothesis strategies for all control messages, over the whole width of every field."""

from hypothesis import strategies as st

from fairtape.wire.frames import (
    ACK_PARTS_MAX,
    COUNT_MAX,
    FORMATION_MAX,
    LOAD_MAX,
    NODE_MAX,
    NUMBER_MAX,
    RANGE_COUNT_MAX,
    STRIPE_MAX,
    Ack,
    BlockFrame,
    Control,
    Flag,
    Hole,
    Progress,
    Range,
    Request,
    TokenAck,
)
from fairtape.wire.seals import KEY_SIZE, MARK_SIZE

RANGES_MAX = 8  # per message: enough for order and boundaries, few enough to be fast

nodes = st.integers(0, NODE_MAX)
numbers = st.integers(0, NUMBER_MAX)
ordinals = st.integers(1, NUMBER_MAX)  # of tokens and sequence numbers: they start at 1
firsts = st.integers(1, NUMBER_MAX - 1)
stripes = st.integers(0, STRIPE_MAX)
formations = st.integers(0, FORMATION_MAX)
serials = numbers
keys = st.binary(min_size=KEY_SIZE, max_size=KEY_SIZE)
marks = st.binary(min_size=MARK_SIZE, max_size=MARK_SIZE)


@st.composite
def ranges(draw: st.DrawFn) -> Range:
    first = draw(firsts)
    count = draw(st.integers(1, min(RANGE_COUNT_MAX, NUMBER_MAX - first)))
    return Range(draw(nodes), draw(numbers), first, count)


range_lists = st.lists(ranges(), max_size=RANGES_MAX).map(tuple)


@st.composite
def blocks(draw: st.DrawFn) -> BlockFrame:
    flags = draw(st.sampled_from([0, int(Flag.FRAGMENT)]))
    first = draw(firsts)
    count = 1 if flags else draw(st.integers(1, min(COUNT_MAX, NUMBER_MAX - first)))
    return BlockFrame(flags, draw(stripes), draw(nodes), draw(numbers), first, count)


@st.composite
def acks(draw: st.DrawFn) -> Ack:
    named = draw(range_lists)
    parts = draw(st.integers(1, ACK_PARTS_MAX))
    return Ack(
        stripe=draw(stripes),
        formation=draw(formations),
        sender=draw(nodes),
        token=draw(ordinals),
        sequence=draw(st.integers(1, NUMBER_MAX - sum(r.count for r in named))),
        sent_at=draw(numbers),
        clock_bound=draw(numbers),
        part=draw(st.integers(0, parts - 1)),
        parts=parts,
        ranges=named,
        marks=tuple(draw(marks) for _ in named),
        release_lag_us=draw(st.integers(0, LOAD_MAX)),
        backlog_us=draw(st.integers(0, LOAD_MAX)),
        relayed=draw(st.booleans()),
    )


requests = st.builds(
    Request, stripes, formations, nodes, st.lists(ordinals, max_size=RANGES_MAX).map(tuple), range_lists
).filter(lambda request: bool(request.tokens or request.ranges))
holes = st.builds(Hole, stripes, formations, nodes, ranges())
progresses = ordinals.flatmap(
    lambda following: st.builds(
        Progress, stripes, formations, nodes, numbers, st.just(following), numbers, st.integers(1, following)
    )
)
token_acks = st.builds(TokenAck, stripes, formations, nodes, ordinals)

controls: st.SearchStrategy[Control] = st.one_of(acks(), requests, holes, progresses, token_acks)

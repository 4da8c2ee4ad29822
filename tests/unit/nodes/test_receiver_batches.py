"""A batch of datagrams leaves a receiver in exactly the same state as the datagrams one by one."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from fairtape.wire.frames import NodeId
from unit.nodes.hostile_values import snapshot
from unit.ring.ring_values import OTHER_SOURCE, SOURCE, STARTS_AT, block, receiver

NOW = STARTS_AT


def blocks_of(node: NodeId, incarnation: int, chance: Random) -> list[bytes]:
    """Consecutive blocks: uniform, mixed, fragments, and a body that contradicts its header."""
    datagrams: list[bytes] = []
    first = 1
    for _ in range(chance.randint(1, 12)):
        match chance.randrange(8):
            case 0:
                datagrams.append(
                    block(first, [b"x"], node=node, incarnation=incarnation, fragment=True, body=bytes(20))
                )
                first += 1
            case 1:
                messages = [bytes(chance.randint(1, 9)) for _ in range(3)]
                datagrams.append(block(first, messages, node=node, incarnation=incarnation))
                first += 3
            case 2:
                datagrams.append(block(first, [b"x"] * 2, node=node, incarnation=incarnation, body=b"\0\5no"))
            case _:
                count = chance.randint(1, 5)
                datagrams.append(block(first, [b"same"] * count, node=node, incarnation=incarnation))
                first += count
    return datagrams


def disturbed(datagrams: list[bytes], chance: Random) -> list[bytes]:
    """Loss, duplication, reordering and damage."""
    kept = [each for each in datagrams if chance.random() > 0.1]
    kept += [each for each in datagrams if chance.random() < 0.1]
    if chance.random() < 0.5 and len(kept) > 1:
        one = chance.randrange(len(kept) - 1)
        kept[one], kept[one + 1] = kept[one + 1], kept[one]
    if kept and chance.random() < 0.5:
        victim = chance.randrange(len(kept))
        damaged = bytearray(kept[victim])
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        kept[victim] = bytes(damaged)[: chance.choice((len(damaged), 40, 3, 0))]
    return kept


def interleaved(streams: list[list[bytes]], chance: Random) -> list[bytes]:
    """The datagrams of several sources as a network mixes them: each stream keeps its order."""
    left = [list(reversed(stream)) for stream in streams if stream]
    arrived: list[bytes] = []
    while left:
        stream = chance.choice(left)
        arrived.append(stream.pop())
        left = [each for each in left if each]
    return arrived


@given(st.randoms(use_true_random=False))
def test_a_batch_is_equivalent_to_single_datagrams(chance: Random) -> None:
    streams = [
        disturbed(blocks_of(node, incarnation, chance), chance)
        for node, incarnation in ((SOURCE, 1), (OTHER_SOURCE, 1), (SOURCE, 2))
    ]
    arrived = interleaved(streams, chance) if chance.random() < 0.5 else [each for stream in streams for each in stream]
    together, alone = receiver(1), receiver(1)
    for start in range(0, len(arrived), 7):
        turn = arrived[start : start + 7]
        together.receive_all(turn, NOW + start)
        for datagram in turn:
            alone.receive(datagram, NOW + start)
        assert together.counts == alone.counts
        assert together.drain() == alone.drain()
        assert together.deadline() == alone.deadline()
        assert list(together._buffer._unacked) == list(alone._buffer._unacked)  # sources in order of arrival
    without = frozenset({"seal", "_markers", "_keys", "_authenticator"})
    assert snapshot(together, without=without) == snapshot(alone, without=without)

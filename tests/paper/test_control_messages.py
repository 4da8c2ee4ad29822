"""When there are no losses there is one control message per token, independent of the number of receivers."""

from collections import Counter
from dataclasses import replace

import pytest

from fairtape.core.effects import Channel, Ordered, Release, Report
from fairtape.core.instants import Instant
from fairtape.core.link_faults import LinkFaults
from fairtape.simulation.world import Observer
from fairtape.wire.frames import Kind, NodeId, kind_of
from unit.ring.ring_values import SOURCE, Ring
from unit.ring.ring_values import TIMING as IMPATIENT

TOKENS = 60
TIMING = replace(IMPATIENT, retries_max=12)


class Count(Observer):
    """An observer that counts what was sent, by kind and by address."""

    def __init__(self) -> None:
        self.kinds: Counter[Kind] = Counter()
        self.addressed: Counter[bool] = Counter()
        self.delivered_by: Counter[NodeId] = Counter()

    def sent(self, _node: NodeId, to: NodeId | Channel, datagram: bytes, _at: Instant, /) -> None:
        self.kinds[kind_of(datagram)] += 1
        self.addressed[isinstance(to, Channel)] += 1

    def appended(self, _node: NodeId, _ordered: Ordered, _now: Instant, /) -> None:
        pass

    def delivered(self, node: NodeId, ordered: Ordered, _release: Release, _now: Instant, /) -> None:
        self.delivered_by[node] += ordered.count

    def reported(self, _node: NodeId, report: Report, _now: Instant, /) -> None:
        raise AssertionError(report)

    def fault_event(self, _node: NodeId, _what: str, _now: Instant, /) -> None:
        pass


def ran(receivers: int, *, messages: int, loss: float = 0.0) -> Count:
    ring = Ring(receivers, timing=TIMING, sources=2, link_faults=LinkFaults(delay=TIMING.retry_period // 4, loss=loss))
    count = Count()
    ring.world.observers.append(count)
    for number in range(messages):
        at = ring.layout.scheduled_at(1) + number * TIMING.token_period // 3
        ring.publish(SOURCE + number % 2, [b"trade %d" % number], at)
    ring.run((TOKENS + 1) * TIMING.token_period - 1)
    return count


@pytest.mark.parametrize("receivers", range(2, 51))
def test_without_loss_there_is_one_control_message_per_token(receivers: int) -> None:
    """As few as one control message, independent of the number of receivers, counted on the network.  T-RMP §2."""
    count = ran(receivers, messages=40)
    assert count.kinds == {Kind.ACK: TOKENS, Kind.BLOCK: 40}
    assert count.addressed[False] == 0
    assert count.delivered_by == dict.fromkeys(range(1, receivers + 1), 40)


def test_a_ring_without_messages_sends_the_same_one_control_message_per_token() -> None:
    """Acknowledgments are transmitted by the token site at scheduled times, whatever there is.  T-RMP §3."""
    assert ran(5, messages=0).kinds == {Kind.ACK: TOKENS}


def test_one_control_message_acknowledges_many_source_messages() -> None:
    """When tokens are slower than messages, the efficiency of T-RMP is higher than RMP's.  T-RMP §1."""
    count = ran(3, messages=120)
    assert count.kinds[Kind.ACK] == TOKENS < 120
    assert sum(count.kinds.values()) == TOKENS + 120


def test_losses_are_what_costs_more() -> None:
    """No control messages are sent unless a missing message is detected: the count above is no blindness.  T-RMP §2."""
    kinds = ran(5, messages=40, loss=0.05).kinds
    assert kinds[Kind.REQUEST] > 0
    assert kinds[Kind.ACK] > TOKENS


def test_a_ring_that_fell_behind_catches_up_without_a_request() -> None:
    """The acknowledgment after a late one has only just become possible: it is not requested before a hop's time."""
    ring = Ring(5, timing=TIMING, link_faults=LinkFaults(delay=TIMING.retry_period // 4))
    count = Count()
    ring.world.observers.append(count)
    stops_at, goes_on_at = ring.layout.scheduled_at(20), ring.layout.scheduled_at(36)
    ring.world.at(stops_at, lambda: ring.world.pause(1))
    ring.world.at(goes_on_at, lambda: ring.world.resume(1))
    ring.world.at(goes_on_at + TIMING.retry_period // 2, count.kinds.clear)
    ring.run((TOKENS + 1) * TIMING.token_period - 1)
    late = TOKENS - 20
    assert count.kinds == {Kind.ACK: count.kinds[Kind.ACK]}
    assert count.kinds[Kind.ACK] > late // 2

"""Simulated processors: turns take time, nodes share cores, and sockets overflow."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

import pytest

from fairtape.core.effects import Append, Deliver, Effect, Ordered, Release
from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND, Duration, Instant
from fairtape.ring.receiver.release import LATE_AFTER
from fairtape.simulation.clocks import DriftingClock, Piece
from fairtape.simulation.processors import (
    DATAGRAM_OVERHEAD,
    SLICE_MAX,
    SLICE_UNBOUNDED,
    SOCKET_MAX,
    BusyProgram,
    CompetingLoad,
    Costs,
    Placement,
    Processor,
    SocketBuffer,
    start_load,
)
from fairtape.simulation.world import EPOCH, Observer, Spinning, World
from fairtape.wire.frames import NodeId
from simulation.scripted_machine import DELAY, ScriptedMachine, fault_free_world, send_at

COSTS = Costs(
    turn=10 * MICROSECOND,
    datagram=100 * MICROSECOND,
    kib_received=0,
    kib_sent=1_024 * MICROSECOND,  # a microsecond per byte
    message=50 * MICROSECOND,
    append=300 * MICROSECOND,
)
TURN = COSTS.turn
BYTES = 1_000


class Releases(Observer):
    """Records what nodes append and release, with the true time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.appended_at: list[Instant] = []
        self.releases: list[tuple[Instant, Release]] = []
        self.delays: list[Duration] = []
        world.observers.append(self)

    def appended(self, _node: NodeId, _ordered: Ordered, _now: Instant, /) -> None:
        self.appended_at.append(self._world.now)

    def delivered(self, _node: NodeId, _ordered: Ordered, release: Release, _now: Instant, /) -> None:
        self.releases.append((self._world.now, release))

    def delayed(self, _node: NodeId, period: Duration, _now: Instant, /) -> None:
        self.delays.append(period)


class Work:
    """A task with turns of one length."""

    def __init__(self, processor: Processor, world: World, period: Duration, turns: int = 1) -> None:
        self.began_at: list[Instant] = []
        self.ended_at: list[Instant] = []
        self._world = world
        self._period = period
        self._turns = turns
        processor.ready(self)

    def turn(self) -> Iterator[Duration]:
        self.began_at.append(self._world.now - EPOCH)
        yield self._period

    def turn_ended(self) -> bool:
        self.ended_at.append(self._world.now - EPOCH)
        self._turns -= 1
        return self._turns > 0


def msg(token: int, count: int = 1) -> Ordered:
    return Ordered(0, 1, token, token, count, EPOCH, ())


def release(token: int, at: Duration, count: int = 1) -> tuple[Instant, Effect]:
    commit_at = EPOCH + at
    return commit_at, Deliver(msg(token, count), Release(token, token, count, commit_at, commit_at, False, 0))


def place(
    world: World,
    node: NodeId,
    machine: ScriptedMachine,
    processor: Processor,
    *,
    slice_max: int = SLICE_MAX,
    socket_max: int = SOCKET_MAX,
) -> None:
    placement = Placement(processor=processor, costs=COSTS, slice_max=slice_max, socket_max=socket_max)
    world.add(node, machine, placement=placement)


def test_tasks_are_served_in_the_order_in_which_they_became_ready_and_share_a_processor_in_turn() -> None:
    world = fault_free_world()
    processor = Processor(world)
    first, second = Work(processor, world, 3, turns=2), Work(processor, world, 5, turns=2)
    world.run(EPOCH + SECOND)
    assert (first.began_at, second.began_at) == ([0, 8], [3, 11])
    assert (first.ended_at, second.ended_at) == ([3, 11], [8, 16])
    assert processor.busy == 16


def test_a_stall_prolongs_the_running_turn_and_delays_the_next() -> None:
    world = fault_free_world()
    processor = Processor(world)
    running, waiting = Work(processor, world, 10), Work(processor, world, 10)
    world.at(EPOCH + 4, lambda: processor.stall(100))
    world.at(EPOCH + 50, lambda: processor.stall(7))
    world.run(EPOCH + SECOND)
    assert (running.ended_at, waiting.began_at, waiting.ended_at) == ([117], [117], [127])
    assert (processor.busy, processor.stalled) == (20, 107)


def test_a_stall_of_an_idle_processor_delays_what_becomes_ready() -> None:
    world = fault_free_world()
    processor = Processor(world)
    processor.stall(30)
    work = Work(processor, world, 10)
    world.run(EPOCH + SECOND)
    assert (work.began_at, work.ended_at) == ([30], [40])


def test_a_busy_program_gets_its_share_of_an_idle_processor_until_it_ends() -> None:
    world = fault_free_world()
    processor = Processor(world)
    load = CompetingLoad(processor=0, busy_slice=MILLISECOND, busy_share=0.25, stalls=((EPOCH + SECOND, 5),))
    start_load(world, processor, load, EPOCH + SECOND)
    world.run(EPOCH + 2 * SECOND)
    assert processor.busy == SECOND // 4
    assert processor.stalled == 5


def test_a_share_of_the_whole_processor_is_refused() -> None:
    world = fault_free_world()
    with pytest.raises(AssertionError, match="share is 1"):
        BusyProgram(world, Processor(world), busy_slice=1, share=1.0, ends_at=EPOCH)


def test_a_socket_loses_what_exceeds_its_limit_and_counts_it() -> None:
    buffer = SocketBuffer(2 * (BYTES + DATAGRAM_OVERHEAD))
    for number in range(3):
        buffer.put(bytes([number]) * BYTES)
    assert (len(buffer), buffer.lost) == (2, 1)
    assert [datagram[0] for datagram in buffer.take(BYTES)] == [0]
    buffer.put(bytes([3]) * BYTES)
    assert [datagram[0] for datagram in buffer.take(2 * BYTES)] == [1, 3]


def test_a_slice_has_at_least_one_datagram() -> None:
    buffer = SocketBuffer(10_000)
    buffer.put(bytes(BYTES))
    assert len(buffer.take(1)) == 1
    assert buffer.take(1) == []


def test_datagrams_that_arrive_together_are_read_in_slices_and_a_turn_takes_its_time() -> None:
    world, receiver = fault_free_world(), ScriptedMachine()
    place(world, 1, receiver, Processor(world), slice_max=2 * BYTES)
    for _ in range(3):
        world.inject(1, b"\0" * BYTES, MILLISECOND)
    world.run(EPOCH + SECOND)
    first = MILLISECOND + TURN
    assert [at - EPOCH for at, _ in receiver.received] == [first, first, first + 2 * COSTS.datagram + TURN]
    assert world.deliveries == 3


def test_sends_leave_at_the_end_of_the_turn_that_made_them() -> None:
    world, receiver = fault_free_world(), ScriptedMachine()
    place(world, 1, ScriptedMachine(send_at(MILLISECOND, b"x" * 7, to=2)), Processor(world))
    world.add(2, receiver)
    world.run(EPOCH + SECOND)
    assert [at - EPOCH for at, _ in receiver.received] == [MILLISECOND + TURN + 7 * MICROSECOND + DELAY]


def test_a_release_is_handed_over_and_stamped_at_the_instant_that_the_turn_reaches() -> None:
    world = fault_free_world()
    seen = Releases(world)
    script = [(EPOCH, Append(msg(1))), release(1, 0, count=2), release(2, 0)]
    place(world, 1, ScriptedMachine(*script), Processor(world))
    world.run(EPOCH + SECOND)
    first = EPOCH + TURN + COSTS.append
    assert seen.appended_at == [first]
    assert [at for at, _ in seen.releases] == [first, first + 2 * COSTS.message]
    assert [each.released_at for _, each in seen.releases] == [at for at, _ in seen.releases]
    assert not any(each.late for _, each in seen.releases)


def test_a_release_is_stamped_with_the_clock_of_its_node() -> None:
    world = fault_free_world()
    seen = Releases(world)
    ahead = DriftingClock([Piece(0, MILLISECOND, 0)], bound=MILLISECOND)
    placement = Placement(processor=Processor(world), costs=COSTS)
    world.add(1, ScriptedMachine(release(1, 5 * MILLISECOND)), clock=ahead, placement=placement)
    world.run(EPOCH + SECOND)
    ((at, stamped),) = seen.releases
    assert at == EPOCH + 4 * MILLISECOND + TURN
    assert stamped.released_at == at + MILLISECOND


def test_a_release_that_its_processor_delays_too_long_is_marked_late() -> None:
    world = fault_free_world()
    seen, processor = Releases(world), Processor(world)
    place(world, 1, ScriptedMachine(release(1, MILLISECOND), release(2, SECOND)), processor)
    world.at(EPOCH + MILLISECOND, lambda: processor.stall(LATE_AFTER))
    world.at(EPOCH + SECOND, lambda: processor.stall(LATE_AFTER - TURN))
    world.run(EPOCH + 2 * SECOND)
    assert [each.late for _, each in seen.releases] == [True, False]
    assert seen.delays == [LATE_AFTER + TURN, LATE_AFTER]


def test_a_release_waits_for_one_slice_and_in_an_unbounded_turn_for_all() -> None:
    """The fault "an unbounded turn": what is due comes before the next slice, but not before what is being read."""
    behind = []
    for slice_max in (BYTES, SLICE_UNBOUNDED):
        world, machine = fault_free_world(), ScriptedMachine(release(1, MILLISECOND + 2 * TURN))
        seen = Releases(world)
        place(world, 1, machine, Processor(world), slice_max=slice_max)
        for _ in range(200):
            world.inject(1, b"\0" * BYTES, MILLISECOND)
        world.run(EPOCH + SECOND)
        assert len(machine.received) == 200
        ((at, _),) = seen.releases
        behind.append(at - EPOCH - MILLISECOND - 2 * TURN)
    bounded, unbounded = behind
    assert bounded <= COSTS.datagram + 2 * TURN
    assert unbounded >= 200 * COSTS.datagram - TURN


def test_a_crash_ends_a_turn_and_frees_the_processor() -> None:
    world = fault_free_world()
    seen, processor = Releases(world), Processor(world)
    place(world, 1, ScriptedMachine(release(1, 0)), processor)
    place(world, 2, ScriptedMachine(release(2, 0)), processor)
    world.at(EPOCH + 1, lambda: world.crash(1))
    world.at(EPOCH + MILLISECOND, lambda: world.restart(1, ScriptedMachine(release(3, 0))))
    world.run(EPOCH + SECOND)
    assert [(at - EPOCH, each.token) for at, each in seen.releases] == [(1 + TURN, 2), (MILLISECOND + TURN, 3)]


def test_a_paused_node_is_not_served_and_loses_what_its_sockets_cannot_hold() -> None:
    world, machine = fault_free_world(), ScriptedMachine(send_at(2 * MILLISECOND, b""))
    place(world, 1, machine, Processor(world), socket_max=BYTES + DATAGRAM_OVERHEAD)
    world.at(EPOCH + MILLISECOND, lambda: world.pause(1))
    for _ in range(3):
        world.inject(1, b"\0" * BYTES, 2 * MILLISECOND)
    world.at(EPOCH + SECOND, lambda: world.resume(1))
    world.run(EPOCH + 2 * SECOND)
    assert [at for at, _ in machine.received] == [EPOCH + SECOND + TURN]
    assert machine.woken == [EPOCH + SECOND + TURN + COSTS.datagram]  # a timeout is decided after reading
    assert world.datagrams_lost() == 2


def test_an_application_calls_its_machine_in_a_turn_of_the_node() -> None:
    world = fault_free_world()
    processor = Processor(world)
    place(world, 1, ScriptedMachine(), processor)
    called: list[Instant] = []
    world.at(EPOCH + MILLISECOND, lambda: processor.stall(MILLISECOND))
    world.at(EPOCH + MILLISECOND, lambda: world.touch(1, called.append))
    world.run(EPOCH + SECOND)
    assert called == [EPOCH + 2 * MILLISECOND + TURN]


def test_a_producer_gives_its_machine_work_in_turns_of_the_node() -> None:
    class Ticks:
        def __init__(self) -> None:
            self.woken: list[Instant] = []

        def deadline(self) -> Instant | None:
            return EPOCH + (len(self.woken) + 1) * MILLISECOND if len(self.woken) < 3 else None

        def wake(self, now: Instant) -> None:
            self.woken.append(now)

    world, ticks = fault_free_world(), Ticks()
    world.add(1, ScriptedMachine(), placement=Placement(processor=Processor(world), costs=COSTS, producer=ticks))
    world.run(EPOCH + SECOND)
    assert ticks.woken == [EPOCH + each * MILLISECOND + TURN for each in (1, 2, 3)]


def test_a_machine_on_a_processor_whose_deadline_never_advances_is_detected() -> None:
    class Spinner(ScriptedMachine):
        def deadline(self) -> Instant | None:
            return EPOCH

    world = fault_free_world()
    place(world, 1, Spinner(), Processor(world))
    with pytest.raises(Spinning, match="node 1"):
        world.run(EPOCH + SECOND)


def test_costs_are_positive_and_drawn_within_what_was_measured() -> None:
    with pytest.raises(AssertionError, match="turn is 0"):
        replace(COSTS, turn=0)
    with pytest.raises(AssertionError, match="append is -1"):
        replace(COSTS, append=-1)
    drawn: Sequence[Costs] = [Costs.draw(Random(seed)) for seed in range(200)]
    blocks = [costs.receiving(1, 1_400) for costs in drawn]
    assert 5 * MICROSECOND < min(blocks) < max(blocks) < 40 * MICROSECOND
    tokens = [3 * costs.turn + costs.receiving(1, 200) + costs.append for costs in drawn]
    assert 60 * MICROSECOND < min(tokens) < max(tokens) < 400 * MICROSECOND

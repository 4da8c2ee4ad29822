"""The world drives machines as their contract says."""

import pytest

from fairtape.core.effects import Effect
from fairtape.core.instants import MILLISECOND, SECOND, Instant
from fairtape.simulation.clocks import DriftingClock, Piece
from fairtape.simulation.world import EPOCH, Spinning
from simulation.scripted_machine import DELAY, ScriptedMachine, add_machines, fault_free_world, send_at


def test_datagrams_arrive_after_their_delay_and_in_the_order_of_the_effects() -> None:
    world, sender, receiver = (
        fault_free_world(),
        ScriptedMachine(send_at(MILLISECOND, b"one", b"two"), send_at(MILLISECOND, b"three", to=2)),
        ScriptedMachine(),
    )
    add_machines(world, {1: sender, 2: receiver})
    world.run(EPOCH + SECOND)
    arrives_at = EPOCH + MILLISECOND + DELAY
    assert receiver.received == [(arrives_at, b"one"), (arrives_at, b"two"), (arrives_at, b"three")]
    assert sender.received == []
    assert world.deliveries == 3


def test_a_machine_is_woken_at_its_deadline_by_its_own_clock() -> None:
    world, sleeper = fault_free_world(), ScriptedMachine(send_at(SECOND, b"x"))
    fast = DriftingClock([Piece(EPOCH, 7 * MILLISECOND, 100_000)], bound=SECOND)
    world.add(1, sleeper, clock=fast)
    world.run(EPOCH + 2 * SECOND)
    assert sleeper.woken == [EPOCH + SECOND]
    assert fast.when(EPOCH + SECOND, EPOCH) < EPOCH + SECOND - 6 * MILLISECOND


def test_a_paused_node_gets_everything_late_and_nothing_twice() -> None:
    world, sender, sleeper = (
        fault_free_world(),
        ScriptedMachine(send_at(MILLISECOND, b"one"), send_at(2 * MILLISECOND, b"two")),
        ScriptedMachine(send_at(3 * MILLISECOND, b"")),
    )
    add_machines(world, {1: sender, 2: sleeper})
    world.pause(2)
    world.at(EPOCH + SECOND, lambda: world.resume(2))
    world.run(EPOCH + 2 * SECOND)
    assert sleeper.received == [(EPOCH + SECOND, b"one"), (EPOCH + SECOND, b"two")]
    assert sleeper.woken == [EPOCH + SECOND]


def test_a_crashed_node_receives_and_sends_nothing() -> None:
    world, sender, receiver = fault_free_world(), ScriptedMachine(send_at(SECOND, b"never")), ScriptedMachine()
    add_machines(world, {1: sender, 2: receiver})
    world.at(EPOCH + MILLISECOND, lambda: world.crash(1))
    world.run(EPOCH + 2 * SECOND)
    assert receiver.received == []
    assert not world.is_up(1)


def test_a_restarted_node_is_a_new_machine_in_the_same_place() -> None:
    world, old, new, sender = (
        fault_free_world(),
        ScriptedMachine(),
        ScriptedMachine(),
        ScriptedMachine(send_at(0, b"one"), send_at(SECOND, b"two")),
    )
    add_machines(world, {1: old, 2: sender})
    world.at(EPOCH + SECOND // 2, lambda: world.restart(1, new))
    world.run(EPOCH + 2 * SECOND)
    assert [datagram for _, datagram in old.received] == [b"one"]
    assert [datagram for _, datagram in new.received] == [b"two"]


def test_equal_seeds_give_equal_digests_and_other_seeds_others() -> None:
    digests = []
    for seed in (1, 1, 2):
        world = fault_free_world(seed=seed)
        add_machines(world, {1: ScriptedMachine(send_at(seed, b"text")), 2: ScriptedMachine()})
        world.run(EPOCH + SECOND)
        digests.append(world.digest)
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


def test_a_machine_whose_deadline_never_advances_is_detected() -> None:
    class Spinner(ScriptedMachine):
        def deadline(self) -> Instant | None:
            return EPOCH

        def drain(self) -> list[Effect]:
            return []

    world = fault_free_world()
    with pytest.raises(Spinning, match="node 1"):
        world.add(1, Spinner())

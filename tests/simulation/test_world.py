"""The world turns toy machines exactly as the contract says."""

import pytest

from fairtape.core.effects import Effect
from fairtape.core.instants import MILLISECOND, SECOND, Instant
from fairtape.simulation.clocks import Piece, WanderingClock
from fairtape.simulation.world import EPOCH, Spinning
from simulation.scripted_machine import DELAY, Toy, calm_world, say, seat


def test_datagrams_arrive_after_their_delay_and_in_the_order_of_the_effects() -> None:
    world, speaker, hearer = (
        calm_world(),
        Toy(say(MILLISECOND, b"one", b"two"), say(MILLISECOND, b"three", to=2)),
        Toy(),
    )
    seat(world, {1: speaker, 2: hearer})
    world.run(EPOCH + SECOND)
    arrives_at = EPOCH + MILLISECOND + DELAY
    assert hearer.heard == [(arrives_at, b"one"), (arrives_at, b"two"), (arrives_at, b"three")]
    assert speaker.heard == []
    assert world.deliveries == 3


def test_a_machine_is_woken_at_its_deadline_by_its_own_clock() -> None:
    world, sleeper = calm_world(), Toy(say(SECOND, b"x"))
    fast = WanderingClock([Piece(EPOCH, 7 * MILLISECOND, 100_000)], bound=SECOND)
    world.add(1, sleeper, clock=fast)
    world.run(EPOCH + 2 * SECOND)
    assert sleeper.woken == [EPOCH + SECOND]
    assert fast.when(EPOCH + SECOND, EPOCH) < EPOCH + SECOND - 6 * MILLISECOND


def test_a_paused_node_gets_everything_late_and_nothing_twice() -> None:
    world, speaker, sleeper = (
        calm_world(),
        Toy(say(MILLISECOND, b"one"), say(2 * MILLISECOND, b"two")),
        Toy(say(3 * MILLISECOND, b"")),
    )
    seat(world, {1: speaker, 2: sleeper})
    world.pause(2)
    world.at(EPOCH + SECOND, lambda: world.resume(2))
    world.run(EPOCH + 2 * SECOND)
    assert sleeper.heard == [(EPOCH + SECOND, b"one"), (EPOCH + SECOND, b"two")]
    assert sleeper.woken == [EPOCH + SECOND]


def test_a_crashed_node_hears_and_says_nothing() -> None:
    world, speaker, hearer = calm_world(), Toy(say(SECOND, b"never")), Toy()
    seat(world, {1: speaker, 2: hearer})
    world.at(EPOCH + MILLISECOND, lambda: world.crash(1))
    world.run(EPOCH + 2 * SECOND)
    assert hearer.heard == []
    assert not world.is_up(1)


def test_a_restarted_node_is_a_new_machine_in_the_same_place() -> None:
    world, old, new, speaker = calm_world(), Toy(), Toy(), Toy(say(0, b"one"), say(SECOND, b"two"))
    seat(world, {1: old, 2: speaker})
    world.at(EPOCH + SECOND // 2, lambda: world.restart(1, new))
    world.run(EPOCH + 2 * SECOND)
    assert [datagram for _, datagram in old.heard] == [b"one"]
    assert [datagram for _, datagram in new.heard] == [b"two"]


def test_equal_seeds_give_equal_digests_and_other_seeds_others() -> None:
    digests = []
    for seed in (1, 1, 2):
        world = calm_world(seed=seed)
        seat(world, {1: Toy(say(seed, b"text")), 2: Toy()})
        world.run(EPOCH + SECOND)
        digests.append(world.digest)
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


def test_a_machine_that_never_sleeps_is_found_out() -> None:
    class Restless(Toy):
        def deadline(self) -> Instant | None:
            return EPOCH

        def drain(self) -> list[Effect]:
            return []

    world = calm_world()
    with pytest.raises(Spinning, match="node 1"):
        world.add(1, Restless())

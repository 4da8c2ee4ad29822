"""Baselines of `fairtape bench ring`: what they count, never how fast they are."""

from pathlib import Path

from fairtape.bench.ring_baselines import BlockCosts, TrainOutcome, block_costs, disk_bytes_per_s, messages_per_packet


def test_a_full_datagram_has_as_many_messages_as_fit() -> None:
    assert messages_per_packet(64) == 21
    assert messages_per_packet(1_000) == 1


def test_the_floor_of_a_ring_is_one_seal_and_the_work_of_every_receiver() -> None:
    costs = BlockCosts(seal_us=1.0, open_us=2.0, hash_us=0.5, write_us=0.25)
    trains = TrainOutcome(packets_per_s=1e6, sent_us=0.5, received_us=0.25)
    assert costs.floor_us(trains, 3) == 1.5 + 3 * 3.0


def test_primitives_and_disk_leave_nothing_behind(tmp_path: Path) -> None:
    costs = block_costs(tmp_path, 64)
    assert min(costs.seal_us, costs.open_us, costs.hash_us, costs.write_us) > 0
    assert disk_bytes_per_s(tmp_path, files=2, seconds=0.01) > 0
    assert list(tmp_path.iterdir()) == []

"""Whether this machine can run a deployment is checked before anything is started."""

from pathlib import Path

import pytest

from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, Duration, Instant
from fairtape.deployment.operations.doctor import check_ready, check_store_speed, store_notice
from fairtape.deployment.operations.draft import Draft, create_deployment
from fairtape.net.udp import bind
from fairtape.simulation.simulated_store import MemoryFormationStore


class SlowStore(MemoryFormationStore):
    """A store whose writes take as long as told, by its own clock."""

    def __init__(self, *periods: Duration, fails_after: int | None = None) -> None:
        super().__init__()
        self.now: Instant = 0
        self.probes = 0
        self._periods = periods
        self._fails_after = fails_after

    def probe(self) -> bool:
        self.now += self._periods[self.probes % len(self._periods)]
        self.probes += 1
        return self._fails_after is None or self.probes <= self._fails_after

    def clock(self) -> Instant:
        return self.now


def test_a_deployment_of_this_machine_is_ready_and_nothing_stays_bound(tmp_path: Path) -> None:
    deployment = create_deployment(tmp_path / "new", Draft(loops=(3,), edge=1))
    check_ready(deployment)
    check_ready(deployment)


def test_a_port_that_another_program_uses_is_named_with_its_field(tmp_path: Path) -> None:
    deployment = create_deployment(tmp_path / "new", Draft(loops=(3,)))
    taken = deployment.sites[1]
    with (
        bind(taken.host, taken.port),
        pytest.raises(
            UserError, match=rf"sites\.s2\.address cannot be used here: port is {taken.port} .*another program"
        ),
    ):
        check_ready(deployment)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"hosts": ("192.0.2.1",)}, r"sites\.s1\.address .*not an address of this machine.*fairtape node DIR NAME"),
        ({"store": "sqlite:/nowhere/at/all.db"}, r"'/nowhere/at' is not a folder that can be written"),
        ({"store": "etcd:http://127.0.0.1:9/market"}, r"no etcd answers; start one there"),
    ],
)
def test_what_this_machine_lacks_is_one_sentence(tmp_path: Path, options: dict[str, object], sentence: str) -> None:
    deployment = create_deployment(tmp_path / "new", Draft(loops=(1,), **options))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=sentence) as raised:
        check_ready(deployment)
    assert "\n" not in str(raised.value)


def test_a_store_whose_writes_fit_into_no_lease_four_times_is_refused_by_name(tmp_path: Path) -> None:
    """Decision 68, Leader's lease: at least four times the 99th percentile of a request, and at most four seconds."""
    deployment = create_deployment(tmp_path / "new", Draft(loops=(3,), profile="lan"))
    slow = SlowStore(1_001 * MILLISECOND)
    with pytest.raises(
        UserError, match=r"store\.url is 'sqlite:.*formations\.db', where a write takes 1,001\.0 ms"
    ) as raised:
        check_store_speed(deployment, slow, clock=slow.clock)
    assert "longest lease of a reformation server is 4,000.0 ms, so a write may take 1,000.0 ms" in str(raised.value)
    assert slow.probes == 2
    at_the_limit = SlowStore(1_000 * MILLISECOND)
    assert check_store_speed(deployment, at_the_limit, clock=at_the_limit.clock) == 1_000 * MILLISECOND


def test_one_slow_write_of_a_store_counts(tmp_path: Path) -> None:
    deployment = create_deployment(tmp_path / "new", Draft(loops=(3,), profile="lan"))
    store = SlowStore(MILLISECOND, 350 * MILLISECOND)
    assert check_store_speed(deployment, store, clock=store.clock) == 350 * MILLISECOND
    assert store.now <= 1_500 * MILLISECOND


def test_the_first_write_after_a_start_does_not_count(tmp_path: Path) -> None:
    deployment = create_deployment(tmp_path / "new", Draft(loops=(3,), profile="lan"))
    store = SlowStore(5_000 * MILLISECOND, *[MILLISECOND] * 100)
    assert check_store_speed(deployment, store, clock=store.clock) == MILLISECOND


def test_a_store_that_makes_leases_longer_is_noticed(tmp_path: Path) -> None:
    deployment = create_deployment(tmp_path / "new", Draft(loops=(3,), profile="lan"))
    assert store_notice(deployment, deployment.leader_lease // 4) is None
    notice = store_notice(deployment, 350 * MILLISECOND)
    assert notice is not None
    assert "a write to the store takes 350.0 ms" in notice
    assert "is 1,400.0 ms instead of 300.0 ms" in notice


def test_a_store_that_carries_out_no_write_is_refused(tmp_path: Path) -> None:
    deployment = create_deployment(tmp_path / "new", Draft(loops=(3,)))
    full = SlowStore(MILLISECOND, fails_after=2)
    with pytest.raises(UserError, match="does not carry out a write"):
        check_store_speed(deployment, full, clock=full.clock)


@pytest.mark.parametrize("options", [{"hosts": ('a"b',)}, {"hosts": ("999.1.1.1",)}, {"store": "sqlit:x"}])
def test_an_impossible_draft_leaves_no_files(tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(UserError):
        create_deployment(tmp_path / "new", Draft(loops=(1,), **options))  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()


def test_a_quotation_mark_in_a_file_name_is_kept(tmp_path: Path) -> None:
    deployment = create_deployment(tmp_path / "new", Draft(loops=(1,), store='sqlite:a"b.db'))
    assert deployment.store.endswith('/a"b.db')
    check_ready(deployment)

"""Whether this machine can run a deployment is checked before anything is started."""

from pathlib import Path

import pytest

from fairtape.core.errors import UserError
from fairtape.deployment.operations.doctor import check_ready
from fairtape.deployment.operations.draft import Draft, create_deployment
from fairtape.net.udp import bind


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


@pytest.mark.parametrize("options", [{"hosts": ('a"b',)}, {"hosts": ("999.1.1.1",)}, {"store": "sqlit:x"}])
def test_an_impossible_draft_leaves_no_files(tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(UserError):
        create_deployment(tmp_path / "new", Draft(loops=(1,), **options))  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()


def test_a_quotation_mark_in_a_file_name_is_kept(tmp_path: Path) -> None:
    deployment = create_deployment(tmp_path / "new", Draft(loops=(1,), store='sqlite:a"b.db'))
    assert deployment.store.endswith('/a"b.db')
    check_ready(deployment)

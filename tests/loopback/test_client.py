"""The Python client of a deployment of real processes: one order, though the followed site is killed."""

import os
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

import fairtape
from fairtape.client import Merged, Record, Reformation, Skipped, Snapshot, Trade
from fairtape.deployment.config.description import read_deployment
from fairtape.deployment.follow.site_failover import SiteFailover
from loopback.commands import PATIENCE, interrupt, run
from loopback.test_deployment import await_members, deployment
from unit.tape.tape_values import order, write


def numbers(records: list[Record]) -> list[int]:
    return [record.sequence for record in records if isinstance(record, Trade)]


def trades_of(tape: fairtape.client.Tape, count: int) -> list[Record]:
    """Records up to this many trades, each of which was delivered or is accounted for."""
    found: list[Record] = []
    for record in tape:
        found.append(record)
        count -= record.count if isinstance(record, Skipped | Merged) else isinstance(record, Trade)
        if count <= 0:
            break
    return found


@pytest.mark.alone
@pytest.mark.timeout(300)
def test_clients_read_one_order_though_their_site_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "deployment"
    with deployment(folder, "--sites", 3, "--profile", "metro", "--reformers", 1) as process:
        pages = await_members(folder, "s1", "s2", "s3")
        followed = SiteFailover(read_deployment(folder)).choose()
        with (
            fairtape.connect(folder) as live,
            fairtape.connect(folder, policy="skip", queue_max=500) as skipping,
            fairtape.connect(folder, policy="conflate", queue_max=500) as conflating,
        ):
            assert run("publish", folder, "--generate", 2_000)[0] == 0
            first = trades_of(live, 2_000)
            os.kill(pages[f"s{followed}"]["pid"], signal.SIGKILL)
            assert run("publish", folder, "--generate", 20_000)[0] == 0
            second = trades_of(live, 20_000)
            assert numbers(first + second) == list(range(1, 22_001))
            assert any(isinstance(record, Reformation) for record in second)
            for slow in (skipping, conflating):
                assert slow.waiting <= 500
                got = trades_of(slow, 22_000)
                left_out = sum(record.count for record in got if isinstance(record, Skipped | Merged))
                assert len(numbers(got)) + left_out == 22_000
                assert left_out == slow.skipped + slow.merged > 0
        check_late_comers(folder, second)
        interrupt(process)


def check_late_comers(folder: Path, order_read: list[Record]) -> None:
    """A snapshot, a resumed tape and a journal: all have the same order."""
    last = {record.symbol: record.sequence for record in order_read if isinstance(record, Trade)}
    with fairtape.connect(folder, start="snapshot") as late:
        opening = next(iter(late))
        assert isinstance(opening, Snapshot)
        assert opening.through == 22_000
        sales = [record for record in islice(late, opening.count) if isinstance(record, Trade)]
        found = {sale.symbol: sale.sequence for sale in sales}
        assert found == found | last
    with fairtape.connect(folder, start=21_000) as resumed:
        again = trades_of(resumed, 1_001)
    assert [record[:13] for record in again if isinstance(record, Trade)] == [
        record[:13] for record in order_read[-1_001:] if isinstance(record, Trade)
    ]
    survivor = next(iter(sorted((folder / "journals").iterdir())))
    with fairtape.connect(survivor, start="beginning") as journal:
        assert journal.to_arrow()["sequence"].to_pylist()[:2_000] == list(range(1, 2_001))


PROGRAM = """
import sys, fairtape
found = []
with fairtape.connect(sys.argv[1], start="beginning", follow=True) as tape:
    try:
        for record in tape:
            found.append(record.sequence)
            if len(found) == 30:
                sys.stdout.write("reading\\n")
                sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stdout.write(f"{len(found)} {tape.following}\\n")
"""


def test_a_ctrl_c_ends_a_reader_that_waits_for_more(tmp_path: Path) -> None:
    write(tmp_path / "journal", order(30))
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "journal")]
    reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert reader.stdout is not None
    assert reader.stdout.readline() == "reading\n"
    reader.send_signal(signal.SIGINT)
    output, _ = reader.communicate(timeout=PATIENCE)
    assert (reader.returncode, output) == (0, "30 31\n")

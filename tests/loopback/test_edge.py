"""The edge of a whole deployment: customers receive everything once and in order, whatever happens to the sites."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fairtape.deployment.config.description import read_deployment
from fairtape.deployment.config.process_names import edge_names
from fairtape.deployment.status import encode_status
from fairtape.deployment.status_files import RunFolder
from fairtape.edge.service.stripe_plans import read_plan
from fairtape.formats import soupbintcp as soup
from fairtape.market.stripe_files import to_toml
from fairtape.market.stripes import StripePlan, plan_by_rate
from loopback.commands import await_line, finish, interrupt, run, start
from loopback.test_deployment import PATIENCE, deployment
from simulation.edge_region import sequence_of

SITES = ("s1", "s2", "s3")
POLL_PERIOD = 0.05  # seconds


@contextmanager
def hearing(folder: Path, *options: object) -> Iterator["subprocess.Popen[str]"]:
    process = start("hear", folder, "--json", *options)
    try:
        await_line(process, "receiving")
        yield process
    finally:
        process.kill()
        process.communicate()


def publish(folder: Path, count: int, *options: object) -> None:
    code, _, errors = run("publish", folder, "--generate", count, *options)
    assert code == 0, errors


def pages_of(folder: Path) -> dict[str, Any]:
    """What `fairtape status` shows, without starting a process."""
    found = read_deployment(folder)
    statuses = RunFolder(folder).statuses([*found.nodes, *edge_names(found)])
    return {name: encode_status(status) for name, status in statuses.items()}


def await_publishers(folder: Path, *names: str, plan: int = 1) -> dict[str, Any]:
    """Wait until these edge publishers send, and their retransmit servers have the plan."""
    give_up_at = time.monotonic() + PATIENCE
    while time.monotonic() < give_up_at:
        pages = pages_of(folder)
        publishers = [(pages.get(name) or {}).get("edge") or {} for name in names]
        beside = [pages.get(f"{name}.edge") or {} for name in names]
        active = all((pages.get(name) or {}).get("posture") == "member" for name in names)
        speaks = all(page.get("speaks") for page in publishers) and all(page.get("plan") == plan for page in beside)
        if active and speaks:
            return pages
        time.sleep(POLL_PERIOD)
    raise AssertionError(f"{names} are not on the air: {pages}")


def await_restart(folder: Path, before: int) -> None:
    """Wait until the first site is another process."""
    give_up_at = time.monotonic() + PATIENCE
    while (pages_of(folder).get("s1") or {"pid": before})["pid"] == before:
        assert time.monotonic() < give_up_at
        time.sleep(POLL_PERIOD)


def heard(process: "subprocess.Popen[str]") -> list[dict[str, Any]]:
    """Everything that a customer printed before it ended; it must have missed nothing."""
    code, output, errors = finish(process)
    assert code == 0, errors
    return [json.loads(line) for line in output.splitlines()]


def check_order(lines: list[dict[str, Any]], sequences: range) -> None:
    """Each trade once; in each stripe in the order; each number of a session once and without a hole."""
    trades = [line for line in lines if line["kind"] in ("trade", "opaque")]
    assert sorted(line["sequence"] for line in trades) == list(sequences)
    following: dict[str, tuple[int, int]] = {}
    for line in trades:
        number, sequence = following.get(line["session"], (0, 0))
        assert line["number"] > number
        assert line["sequence"] > sequence
        following[line["session"]] = line["number"], line["sequence"]
    assert not [line for line in lines if line["kind"] in ("gap", "break", "unread")]


def next_plan(folder: Path) -> Path:
    """The symbols of the first plan on three stripes instead of two."""
    before: StripePlan = read_plan(folder / "plans" / "00001.toml")
    rates = {symbol: 1 + place for place, symbol in enumerate(s for stripe in before.edge for s in stripe.symbols)}
    planned = plan_by_rate(
        rates,
        3,
        before.edge[0].bits_per_s_max,
        version=2,
        midnight_at=before.midnight_at,
        venues=before.edge[0].venues,
        base=before.core[0].at,
    )
    path = folder.parent / "next.toml"
    path.write_text(to_toml(planned.plan))
    return path


@pytest.mark.alone
@pytest.mark.timeout(300)
def test_customers_miss_nothing_though_a_site_is_killed_and_the_plan_changes(tmp_path: Path) -> None:
    folder = tmp_path / "deployment"
    with deployment(folder, "--sites", 3, "--profile", "metro", "--reformers", 1, "--edge", 2) as process:
        pages = await_publishers(folder, *SITES)
        with hearing(folder, "--trades", 9_500, "--from", 1, "--grade", "guaranteed") as whole:
            publish(folder, 2_000)
            with hearing(folder, "--trades", 7_500, "--grade", "guaranteed") as late:
                load = start("publish", folder, "--generate", 4_000, "--rate", 2_000)
                os.kill(pages["s1"]["pid"], signal.SIGKILL)  # under load
                assert finish(load)[0] == 0
                RunFolder(folder).ask_for_start("s1")
                await_restart(folder, pages["s1"]["pid"])
                await_publishers(folder, *SITES)
                load = start("publish", folder, "--generate", 3_000, "--rate", 1_500)
                code, output, errors = run("operate", folder, "plan", next_plan(folder))
                assert code == 0, errors
                assert output.startswith("plan 2: the plan is in force: formation ")
                assert finish(load)[0] == 0
                publish(folder, 500)
                assert run("operate", folder, "plan", next_plan(folder))[0] == 2  # it is in force
                lines = heard(whole)
                check_order(lines, range(1, 9_501))
                assert {line["session"][2:5] for line in lines if line["kind"] == "trade"} == {"001", "002"}
                check_order(heard(late), range(2_001, 9_501))
        await_publishers(folder, *SITES, plan=2)
        check_resumption(folder, lines)
        check_replay(folder, lines)
        interrupt(process)
        assert finish(process)[0] == 0


def check_resumption(folder: Path, lines: list[dict[str, Any]]) -> None:
    """A customer that was away requests what it missed, in a session that has ended meanwhile."""
    left = next(line for line in lines if line["kind"] == "trade" and line["sequence"] > 3_000 and line["stripe"] == 1)
    rest = [line["sequence"] for line in lines if line.get("stripe") == 1 and line["kind"] == "trade"]
    rest = rest[rest.index(left["sequence"]) + 1 :]
    options = ("--from", left["number"] + 1, "--session", left["session"], "--stripe", 1, "--trades", len(rest))
    with hearing(folder, *options, "--grade", "guaranteed") as resumed:
        again = [line["sequence"] for line in heard(resumed) if line["kind"] == "trade"]
    assert again == rest


def check_replay(folder: Path, lines: list[dict[str, Any]]) -> None:
    """The same over SoupBinTCP, by a login with a number."""
    settings = read_deployment(folder).edge
    assert settings is not None
    session = next(line["session"] for line in lines if line["kind"] == "trade")
    with socket.create_connection(settings.publishers["s2"].replays, timeout=PATIENCE) as client:
        client.sendall(soup.encode(soup.LoginRequest("alice", "", session, 1)))
        stream = soup.SoupStream(allowed=soup.FROM_SERVER)
        packets: list[soup.Packet] = []
        while octets := client.recv(65_536):
            packets += stream.feed(octets)
    messages = [packet.message for packet in packets if isinstance(packet, soup.SequencedData)]
    numbers = [number for number in map(sequence_of, messages) if number is not None]
    assert numbers == [line["sequence"] for line in lines if line.get("session") == session and line["kind"] == "trade"]
    assert isinstance(packets[-1], soup.EndOfSession)

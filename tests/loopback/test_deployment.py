"""Deployments through their commands: created, run, inspected, published into, drilled and stopped."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from loopback.commands import await_line, finish, interrupt, lines_of, run, start

PATIENCE = 60.0  # seconds, for a busy machine


@contextmanager
def deployment(folder: Path, *options: object) -> Iterator["Popen[str]"]:
    """A new deployment that runs."""
    code, output, _ = run("init", folder, *options)
    assert code == 0
    assert f"fairtape up {folder}" in output
    process = start("up", folder)
    try:
        await_line(process, "fairtape status")
        yield process
    finally:
        process.kill()
        process.communicate()


def status(folder: Path) -> dict[str, Any]:
    _, output, _ = run("status", folder, "--json")
    nodes: dict[str, Any] = json.loads(output)["nodes"]
    return nodes


def await_members(folder: Path, *names: str) -> dict[str, Any]:
    """Wait until these sites, and no others, are members of one formation."""
    give_up_at = time.monotonic() + PATIENCE
    while time.monotonic() < give_up_at:
        nodes = status(folder)
        leading = [node for node in nodes.values() if node.get("leads")]
        active = {name for name, node in nodes.items() if node.get("posture") == "member"}
        if leading and set(leading[0]["members"]) == active == set(names):
            return nodes
    raise AssertionError(f"{names} are not the members: {nodes}")


@pytest.mark.alone
@pytest.mark.timeout(300)
def test_a_killed_site_comes_back_and_every_journal_is_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "deployment"
    assert run("init", folder, "--sites", 3, "--profile", "metro", "--reformers", 1)[0] == 0
    code, output, errors = run("drill", folder, "kill", "token", "--seconds", 1, "--rate", 2_000, "--json")
    assert code == 0, errors
    result = json.loads(output)
    assert (result["lost"], result["one_order"], result["breaks"]) == (0, True, 0)
    assert result["published"] > 0
    assert result["formations"][0]["silent"] == result["sites"]
    assert run("journal", "verify", *sorted((folder / "journals").iterdir()))[0] == 0


@pytest.mark.alone
@pytest.mark.timeout(300)
def test_an_operator_retires_and_admits_a_site_while_trades_are_published(tmp_path: Path) -> None:
    folder = tmp_path / "deployment"
    with deployment(folder, "--loops", "2,1", "--profile", "metro", "--reformers", 2) as process:
        nodes = await_members(folder, "s1", "s2")
        assert nodes["s1"]["clock_bound_us"] >= 0
        code, output, _ = run("operate", folder, "retire", "s2")
        assert (code, output.startswith("s2 is retired: formation ")) == (0, True)
        await_members(folder, "s1")
        code, output, _ = run("publish", folder, "--generate", 2_000, "--source", "XLON")
        assert code == 0
        assert output.startswith("2,000 trades acknowledged, published as XLON")
        assert run("operate", folder, "admit", "s2")[0] == 0
        nodes = await_members(folder, "s1", "s2")
        assert {node["sequence"] for node in nodes.values() if node["kind"] == "site"} == {2_000}
        assert run("operate", folder, "resume")[1].startswith("the ring was not halted")
        assert run("up", folder)[2].endswith("is running already; stop it first\n")
        interrupt(process)
        code, output, errors = finish(process)
        assert code == 0, errors
        assert "formation 1 of s1 s2: the first formation" in output
    assert run("status", folder)[0] == 1
    code, output, _ = run("journal", "verify", *sorted((folder / "journals").iterdir()))
    assert code == 0


@pytest.mark.alone
@pytest.mark.timeout(300)
def test_no_process_outlives_the_command_that_runs_it(tmp_path: Path) -> None:
    folder = tmp_path / "deployment"
    with deployment(folder, "--sites", 1, "--profile", "metro", "--reformers", 1) as process:
        await_members(folder, "s1")
        process.send_signal(signal.SIGKILL)
        process.wait()
        give_up_at = time.monotonic() + PATIENCE
        while status(folder):
            assert time.monotonic() < give_up_at


@pytest.mark.alone
@pytest.mark.timeout(300)
def test_a_listener_reads_one_order_although_its_site_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "deployment"
    with deployment(folder, "--sites", 3, "--profile", "metro", "--reformers", 1) as process:
        nodes = await_members(folder, "s1", "s2", "s3")
        listener, blocked = start("listen", folder, "--json", "--from-seq", 1), start("listen", folder)
        followed = await_line(listener, "following site").split()[2]
        await_line(blocked, "following site")
        assert run("publish", folder, "--generate", 2_000)[0] == 0
        os.kill(nodes[followed]["pid"], signal.SIGKILL)
        await_line(listener, f"site {followed} no longer serves; following site")
        assert run("publish", folder, "--generate", 20_000)[0] == 0  # more lines than fit into a pipe
        lines = [json.loads(line) for line in lines_of(listener, 22_000, '"kind":"trade"')]
        interrupt(listener)
        code, output, errors = finish(listener)
        assert (code, output) == (0, ""), errors
        assert "22,000 trades in one order" in errors
        numbers = [line["sequence"] for line in lines if line["kind"] == "trade"]
        assert numbers == list(range(1, 22_001))
        formations = [line for line in lines if line["kind"] == "formation"]
        assert formations[0]["members"] == ["s1", "s2", "s3"]
        assert set(formations[1]["members"]) == {"s1", "s2", "s3"} - {followed}
        assert not any(line["broken"] for line in formations)
        interrupt(blocked)
        assert blocked.wait(PATIENCE) == 0
        blocked.communicate()
        late = start("listen", folder, "--site", "s1" if followed != "s1" else "s2")
        await_line(late, "following site")
        interrupt(process)
        finish(process)
        code, output, errors = finish(late)
        assert (code, output) == (1, "")
        assert errors.endswith("fairtape: the deployment has stopped\n")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("init", "{new}", "--sites", 0), "--sites is 0; give from 1 to 96"),
        (("init", "{new}", "--sites", 3, "--loops", "3"), "--sites is 3 and --loops is '3'; give one of them"),
        (("init", "{new}", "--loops", "3,x"), "--loops is '3,x'; give numbers of sites, such as 3,2,2"),
        (("init", "{new}", "--resilience", "some"), "--resilience is 'some'; give a number, \"majority\" or \"all\""),
        (("init", "{made}"), "folder '{made}' holds a deployment already; name another folder, or remove that one"),
        (("up", "{new}"), "folder '{new}' holds no deployment; make one with: fairtape init {new}"),
        (("node", "{made}", "s9"), "NAME is 's9'; {made}/deployment.toml names s1, x1, x2, XNYS, XLON, XTKS"),
        (("node", "{made}", "s1", "--load", 5), "--load is 5, and s1 is a site; only sources publish"),
        (("drill", "{made}", "kill", "XNYS"), "SITE is 'XNYS'; {made}/deployment.toml names s1, x1, x2"),
        (("drill", "{made}", "kill", "s1", "--rate", 0), "--rate is 0; give from 1 to 1,000,000 messages per second"),
        (("operate", "{made}", "retire"), "retire needs a SITE; name the site"),
        (("operate", "{made}", "retire", "s1"), "no reformation server of '{made}' leads; start it with: fairtape up"),
        (("listen", "{made}"), "no site of the deployment in '{made}' runs on this machine; start it with: "),
        (("listen", "{made}", "--site", "s1"), "--site is 's1', which does not run on this machine; name one that"),
        (("listen", "{made}", "--site", "s7"), "--site is 's7'; {made}/deployment.toml names s1"),
        (("listen", "{made}", "--sites", 4), "--sites is given, and {made}/deployment.toml already describes a"),
        (("listen", "{made}", "--from-seq", 0), "--from-seq is 0; give from 1 to "),
        (("listen", "{new}", "--site", "s1"), "--site is given, and folder '{new}' holds no deployment; leave it out"),
        (("publish", "{made}", "--generate", 1), "the ring in '{made}' is not running; start it with: fairtape up"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(tmp_path: Path, arguments: tuple[object, ...], error: str) -> None:
    places = {"new": tmp_path / "new", "made": tmp_path / "made"}
    assert run("init", places["made"], "--sites", 1, "--profile", "metro")[0] == 0
    code, output, errors = run(*(str(word).format(**places) for word in arguments))
    assert (code, output) == (2, "")
    assert errors.startswith(f"fairtape: {error.format(**places)}")
    assert errors.count("\n") == 1

"""`fairtape hear` as a customer runs it: with nothing but the file of a plan, and with mistakes."""

import json
from pathlib import Path

import pytest

from fairtape import cli
from fairtape.core.effects import FormationChange
from fairtape.edge.service.replay_archive import ReplayArchive
from fairtape.edge.service.retransmit_server import RetransmitServer
from fairtape.edge.service.stripe_plans import StripePlanStore
from fairtape.market.stripe_files import to_toml
from fairtape.net.clock import SharedClock
from fairtape.net.transports import LOOPBACK
from loopback.commands import await_line, finish, start
from loopback.edge_sockets import Groups, until
from loopback.test_edge_publisher import publishing_site
from unit.edge.edge_journals import SETTINGS, history, plan_store


def test_the_file_of_a_plan_a_tag_and_a_server_are_all_that_a_customer_needs(tmp_path: Path) -> None:
    groups = Groups()
    plan, second = groups.plan(), groups.plan(2, stripes=3)
    entries = history(second=second)
    plans = plan_store(tmp_path, plan, second)
    with publishing_site(tmp_path, plans) as site:
        archive = ReplayArchive(tmp_path / "s1", SETTINGS, StripePlanStore(tmp_path, 0))
        server = RetransmitServer(SETTINGS, SETTINGS.publishers["s1"], archive, SharedClock(), interface=LOOPBACK)
        (host, port), _ = server.addresses
        asked = ("--server", f"{host}:{port}", "--grade", "guaranteed")
        process = start("hear", plans.path(1), "--tag", "FT", "--feeds", "A", "--trades", 240, "--json", *asked)
        try:
            await_line(process, "receiving 3 stripes of plan 1")
            until(lambda: len(site.publisher.status().marks) == 2 and site.is_sending, site.wake)
            for each in entries:
                site.feed_entry(each)
            until(lambda: process.poll() is not None, site.wake, server.run_once)
        finally:
            process.kill()
            code, output, errors = finish(process)
            server.close()
    assert code == 0, errors
    assert errors.startswith("240 trades, 0 missing, ")
    lines = [json.loads(line) for line in output.splitlines()]
    trades = [line for line in lines if line["kind"] == "trade"]
    assert sorted(line["sequence"] for line in trades) == list(range(1, 241))
    assert {line["session"][:5] for line in trades} == {"FT001", "FT002"}
    told_of = [line["kind"] for line in lines if line["kind"] != "trade"]
    assert told_of.count("planchange") == 1
    assert told_of.count("ended") == 3
    changed = {each.formation for each in entries if isinstance(each, FormationChange)}
    assert {line["formation"] for line in lines if line["kind"] == "reformation"} == changed


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("hear", "{plan}"), "TARGET is a plan file, which does not name its deployment; give the"),
        (("hear", "{folder}"), "TARGET is '{folder}', which is not a deployment; make one"),
        (("hear", "{folder}/none.toml", "--tag", "FT"), "{folder}/none.toml cannot be read"),
        (("hear", "{plan}", "--tag", "FT", "--stripe", "9"), "--stripe is 9; plan 1 has 1, 2, 3"),
        (("hear", "{plan}", "--tag", "FT", "--feeds", "A,Z"), "--feeds names 'Z'; plan 1 has A, B"),
        (("hear", "{plan}", "--tag", "FT", "--server", "here"), "--server is 'here'; expected HOST:PORT"),
        (("hear", "{plan}", "--tag", "FT", "--grade", "guaranteed"), "--grade is guaranteed, which needs"),
        (("hear", "{plan}", "--tag", "FT", "--session", "x"), "--session is 'x'; expected ten letters and digits"),
        (("hear", "{plan}", "--tag", "FT", "--seconds", "0"), "--seconds is 0; give from"),
        (("hear", "{made}", "--tag", "FT"), "--tag is given, and {made}/deployment.toml has"),
        (("hear", "{made}"), "{made} has no edge; list the publishers in its file"),
        (("edge", "{made}", "s1"), "{made} has no edge; list the publishers in its file"),
        (("edge", "{made}", "s9"), "SITE is 's9'; {made}/deployment.toml names s1"),
        (("operate", "{made}", "plan"), "plan needs a FILE; name a stripe plan"),
        (("operate", "{made}", "plan", "{plan}"), "{made} has no edge; list the publishers in its file"),
        (("plan", "stripes", "{folder}/none.csv"), "{folder}/none.csv"),
        (("init", "{folder}/new", "--edge", "0"), "--edge is 0; give from 1 to 32"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], complaint: str
) -> None:
    places = {"plan": tmp_path / "plan.toml", "folder": tmp_path, "made": tmp_path / "made"}
    places["plan"].write_text(to_toml(Groups().plan()))
    assert cli.run(["init", str(places["made"]), "--sites", "1", "--profile", "metro"]) == 0
    capsys.readouterr()
    assert cli.run([each.format(**places) for each in arguments]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"fairtape: {complaint.format(**places)}")
    assert errors.count("\n") == 1


def test_a_plan_is_worked_out_from_a_file_of_trades(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        f"{symbol},XNYS,10.5,100,{1_750_000_000_000_000_000 + place * 10**8}" for place, symbol in enumerate("ABAC")
    ]
    (tmp_path / "trades.csv").write_text("\n".join(["symbol,venue,price,quantity,traded_at_ns", *rows]) + "\n")
    out = tmp_path / "plan.toml"
    words = ["plan", "stripes", str(tmp_path / "trades.csv"), "--stripes", "2", "--version", "3", "--out", str(out)]
    assert cli.run([*words, "--cap", "2000"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == ["stripe", "symbols", "bits/s", "cap", "load"]
    assert all(row.endswith("above its cap") for row in table[1:])
    assert cli.run([*words, "--json"]) == 0
    loads = json.loads(capsys.readouterr().out)["stripes"]
    assert sum(load["symbols"] for load in loads) == 3
    assert 'venues = [\n    "XNYS",\n]' in out.read_text()

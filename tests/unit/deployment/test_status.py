"""Status files: the JSON keeps its keys, every kind of status is read back, and a damaged file counts as none."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairtape.deployment.status import (
    ArbiterStatus,
    BadJson,
    DecisionStatus,
    DrillControls,
    EdgeStatus,
    EndedStatus,
    GatewayStatus,
    Status,
    TokenSchedule,
    decode_status,
    encode_status,
)
from fairtape.deployment.status_files import RunFolder, StatusFile, cpu_seconds, incarnation_of
from fairtape.edge.status import PublisherStatus, RemulticastCounts, ReplayCounts, RetransmitStatus, RetransmitterCounts
from unit.deployment.status_values import load_status, reformer_status, site_status

PUBLISHER = PublisherStatus(
    feed="A",
    feeds=("A", "B"),
    speaks=True,
    reason="",
    plan=1,
    marks=(9,),
    counts=RemulticastCounts(messages=3),
    sent=4,
    unsent=0,
)
SILENCED = PublisherStatus(feed="A", speaks=False, reason="no socket", plan=None, marks=(), unsent=2)
SERVER = RetransmitStatus(
    feed="A",
    reason="",
    plan=0,
    sequence=5,
    restarts=0,
    forgets=False,
    connections=0,
    waiting_bytes=0,
    connections_refused=0,
    guaranteed_refused=0,
    requests=RetransmitterCounts(floods=1),
    replays=ReplayCounts(),
    unsent=0,
)
SITE = site_status(
    "s1",
    1,
    written_at=5,
    edge=PUBLISHER,
    loops={1: ("s4",)},
    streams={101: (7, 41)},
    pauses=((1, 2),),
    schedule=TokenSchedule(first_token=1, starts_at=2, token_period=3, delay_max=4),
)
DECISION = DecisionStatus(
    loop=0, formation=2, members=("s1",), broken=False, cause="silence", began_at=1, decided_at=2, silent=("s3",)
)
STATUSES: list[Status] = [
    SITE,
    site_status("s1", 1, written_at=5, edge=SILENCED, ended=True),
    reformer_status("x1", 901, written_at=5, decisions=(DECISION,)),
    load_status("XNYS", 101, written_at=5, controls=DrillControls(deaf_to=(1, 2), skew_ns=-3, quiet=True)),
    EdgeStatus(name="s1.edge", node=1, written_at=5, server=SERVER),
    ArbiterStatus(name="s1.arbiter", node=101, written_at=5, reports=1, accusations=0, token=2, trades=3, tentative=4),
    GatewayStatus(
        name="XLON.gateway",
        node=102,
        written_at=5,
        addresses={"fix": "127.0.0.1:9102"},
        token=1,
        trades=2,
        tentative=3,
        pending=4,
        ledger_stopped=False,
        ledger_waiting=None,
        logins_old=False,
    ),
    EndedStatus(name="XLON.gateway"),
]

PROCESS = {"pid", "life", "name"}
RUNNING = PROCESS | {"node", "kind", "written_at_ns"}
PUBLISHER_KEYS = {"feed", "speaks", "words", "plan", "marks", "unsent"}
KEYS = [
    RUNNING
    | {
        "orders",
        "home",
        "posture",
        "incarnation",
        "formation",
        "resilience",
        "members",
        "loops",
        "schedule",
        "token",
        "behind",
        "suspect",
        "sequence",
        "released_sequence",
        "digest",
        "streams",
        "lease_left_ms",
        "clock_bound_us",
        "clock_steps",
        "messages",
        "late",
        "released_at_ns",
        "silences_ns",
        "counts",
        "edge",
    },
    None,
    RUNNING
    | {
        "orders",
        "leads",
        "leader",
        "term",
        "phase",
        "formation",
        "resilience",
        "plan",
        "members",
        "retired",
        "rulings",
        "counts",
    },
    RUNNING | {"orders", "incarnation", "published", "acknowledged", "settled", "idle", "quiet", "resent", "counts"},
    RUNNING
    | {
        "feed",
        "words",
        "plan",
        "sequence",
        "restarts",
        "forgets",
        "connections",
        "waiting_bytes",
        "connections_refused",
        "guaranteed_refused",
        "requests",
        "replays",
        "unsent",
    },
    RUNNING | {"reports", "accusations", "token", "trades", "tentative"},
    RUNNING
    | {"addresses", "token", "trades", "tentative", "pending", "ledger_stopped", "ledger_waiting", "logins_old"},
    PROCESS | {"ended"},
]


@pytest.mark.parametrize("status", STATUSES, ids=lambda status: status.name)
def test_a_status_is_read_back_from_its_json(status: Status) -> None:
    assert decode_status(json.loads(json.dumps(encode_status(status)))) == status


@pytest.mark.parametrize(
    ("status", "keys"), [(status, keys) for status, keys in zip(STATUSES, KEYS, strict=True) if keys is not None]
)
def test_the_json_of_a_status_has_its_keys(status: Status, keys: set[str]) -> None:
    assert set(encode_status(status)) == keys


def test_nested_objects_have_their_keys() -> None:
    site, silenced = encode_status(SITE), encode_status(STATUSES[1])
    assert site["orders"] == {"deaf_to": [], "skew_ns": 0, "quiet": False}
    schedule = {"first_token": 1, "starts_at_ns": 2, "token_period_ns": 3, "guaranteed_delay_ns": 4}
    assert site["schedule"] == schedule
    assert (silenced["schedule"], silenced["ended"]) == ({}, True)
    assert (site["loops"], site["streams"], site["silences_ns"]) == ({"1": ["s4"]}, {"101": [7, 41]}, [[1, 2]])
    counts = {"messages", "packets", "heartbeats", "overruns", "dropped", "strayed"}
    assert set(site["edge"]) == PUBLISHER_KEYS | counts | {"feeds", "sent"}
    assert set(silenced["edge"]) == PUBLISHER_KEYS
    (decision,) = encode_status(STATUSES[2])["rulings"]
    assert set(decision) == {
        "loop",
        "formation",
        "members",
        "broken",
        "cause",
        "began_at_ns",
        "decided_at_ns",
        "silent",
    }


def test_a_posted_status_names_this_process_and_is_found(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    StatusFile(run, "s1").close(SITE)
    mine = replace(SITE, pid=os.getpid(), process_incarnation=incarnation_of(os.getpid()))
    assert run.status("s1") == mine
    assert run.statuses(["s1", "s2"]) == {"s1": mine}
    assert run.statuses_of(EdgeStatus, ["s1"]) == {}


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b'{"kind": "site"}',
        b'{"kind": "ghost", "name": "s1"}',
        b'{"kind": [], "name": "s1"}',
        b"{}",
    ],
)
def test_a_damaged_status_file_counts_as_none(tmp_path: Path, damage: bytes) -> None:
    run = RunFolder(tmp_path)
    (run.path / "s1.json").write_bytes(damage)
    assert run.status("s1") is None


def test_a_field_of_another_type_is_refused_in_a_status() -> None:
    content: dict[str, Any] = encode_status(SITE)
    for key in ("written_at_ns", "members", "schedule", "edge", "lease_left_ms"):
        with pytest.raises(BadJson):
            decode_status(content | {key: "nonsense"})


def test_a_status_of_a_process_that_is_gone_counts_as_none(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    content = encode_status(replace(SITE, pid=os.getpid(), process_incarnation="1"))
    (run.path / "s1.json").write_text(json.dumps(content))
    assert run.status("s1") is None


def test_a_process_is_silent_since_it_last_wrote_its_status(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert run.silence("s1") == 0
    StatusFile(run, "s1").close(SITE)
    os.utime(run.path / "s1.json", (0, 0))
    assert run.silence("s1") > 1e9


@pytest.mark.parametrize("damage", [None, "{", "[]", '{"deaf_to": [], "skew_ns": "x", "quiet": false}'])
def test_orders_that_are_missing_or_damaged_demand_nothing(tmp_path: Path, damage: str | None) -> None:
    run = RunFolder(tmp_path)
    controls = DrillControls(deaf_to=(3,), skew_ns=5, quiet=True)
    run.set_controls("s1", controls)
    assert run.controls("s1") == controls
    if damage is None:
        run.clear_controls("s1")
    else:
        (run.path / "s1.orders.json").write_text(damage)
    assert run.controls("s1") == DrillControls()


def test_the_processor_time_of_a_process_is_read_and_of_an_ended_one_is_none() -> None:
    before = cpu_seconds(os.getpid())
    while cpu_seconds(os.getpid()) == before:
        pass
    assert cpu_seconds(1 << 22) == 0

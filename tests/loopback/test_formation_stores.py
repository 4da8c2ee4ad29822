"""The three formation stores: equal answers, durable after `kill -9`, and no exception for network failures."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairtape.core.errors import UserError
from fairtape.core.formation_log import (
    Claim,
    Claimed,
    Leadership,
    LogEntry,
    Recall,
    Recalled,
    Record,
    Recorded,
    RecordRefused,
    StoreRequest,
    Unavailable,
)
from fairtape.simulation.simulated_store import MemoryFormationStore
from fairtape.storage.formation_stores import (
    ENTRIES_MAX,
    EtcdStore,
    FormationStore,
    SqliteStore,
    measure_writes,
    open_store,
)
from fairtape.storage.formation_stores.etcd import _put, _to_json
from fairtape.storage.formation_stores.etcd_http import EtcdEndpoint
from loopback.commands import PATIENCE
from loopback.etcds import Etcd, free_tcp_ports, running_etcd

CHILD = Path(__file__).with_name("store_child.py")
LEADER = Leadership(leader=1, term=1, renewal=0)
FIRST = LogEntry(loop=3, number=1, term=1, formation=b"\x00first\xff")
SHORT = 0.2  # seconds: a timeout that is expected to pass
MIDDLE = 2.0  # a timeout that passes at the first endpoint only
PREFIXES = map("test/{}".format, count())


@dataclass(frozen=True)
class Bid:
    """A claim that expects the current leadership, or any."""

    honest: bool
    expected: Leadership | None
    wanted: Leadership


@dataclass(frozen=True)
class Draft:
    """An entry: how far its number is ahead, and whether its term is the current one."""

    loop: int
    ahead: int
    present: bool
    formation: bytes


Step: TypeAlias = Recall | Bid | list[Draft]

leaderships = st.builds(Leadership, st.integers(1, 2), st.integers(1, 3), st.integers(0, 1), st.sampled_from((0, 7)))
bids = st.builds(Bid, st.booleans(), st.none() | leaderships, leaderships)
drafts = st.builds(
    Draft,
    st.integers(0, 2),
    st.sampled_from((1, 1, 1, 1, 0, -1, 2, 1000)),
    st.sampled_from((True,) * 7 + (False,)),
    st.binary(),
)
steps: st.SearchStrategy[list[Step]] = st.lists(
    st.just(Recall()) | bids | st.lists(drafts, max_size=4), min_size=1, max_size=16
)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as started:
        yield started


@pytest.fixture(params=["sqlite", "etcd"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new and empty store."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'formations.db'}"
    return etcd_url(request.getfixturevalue("etcd"))


def etcd_url(etcd: Etcd) -> str:
    return f"etcd:http://{etcd.endpoint}/{next(PREFIXES)}"


def questions(drawn: list[Step], memory: MemoryFormationStore) -> Iterator[StoreRequest]:
    """Requests that are often valid, for a store with the contents of this one."""
    for step in drawn:
        latest = memory.answer(Recall())
        assert isinstance(latest, Recalled)
        numbers = {entry.loop: entry.number for entry in latest.latest}
        term = memory.leadership.term if memory.leadership else 1
        match step:
            case Bid():
                yield Claim(memory.leadership if step.honest else step.expected, step.wanted)
            case list():
                entries = []
                for draft in step:
                    number = numbers.get(draft.loop, 5) + draft.ahead
                    entries.append(LogEntry(draft.loop, number, term + (not draft.present), draft.formation))
                    numbers[draft.loop] = number
                yield Record(tuple(entries))
            case Recall():
                yield step


def run_alike(drawn: list[Step], store: FormationStore) -> None:
    memory = MemoryFormationStore()
    with closing(store):
        for question in questions(drawn, memory):
            assert store.answer(question) == memory.answer(question)
        assert store.answer(Recall()) == memory.answer(Recall())


@given(drawn=steps)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_sqlite_gives_the_answers_of_the_store_in_memory(drawn: list[Step], tmp_path: Path) -> None:
    run_alike(drawn, SqliteStore(tmp_path / f"{next(PREFIXES).replace('/', '-')}.db"))


@given(drawn=steps)
@settings(max_examples=60)
def test_etcd_gives_the_answers_of_the_store_in_memory(drawn: list[Step], etcd: Etcd) -> None:
    run_alike(drawn, open_store(etcd_url(etcd), timeout=PATIENCE))


def test_the_answers_are_not_all_refusals() -> None:
    """The requests above cover a claim, records that continue the log, and records that do not."""
    store = MemoryFormationStore()
    assert store.answer(Record((FIRST,))) == RecordRefused((FIRST,))
    assert store.answer(Claim(None, LEADER)) == Claimed(LEADER)
    assert store.answer(Claim(None, Leadership(2, 2, 0))) == Claimed(LEADER)
    assert store.answer(Record((FIRST,))) == Recorded((FIRST,))
    assert store.answer(Record((FIRST,))) == RecordRefused((FIRST,))
    assert store.answer(Recall()) == Recalled(LEADER, (FIRST,))


def test_a_reopened_store_has_all_of_its_contents(url: str) -> None:
    entries = tuple(LogEntry(loop, 7, 1, bytes([loop]) * 2_000) for loop in range(ENTRIES_MAX))
    with closing(open_store(url, timeout=PATIENCE)) as store:
        assert store.answer(Claim(None, LEADER)) == Claimed(LEADER)
        assert store.answer(Record(entries)) == Recorded(entries)
    with closing(open_store(url, timeout=PATIENCE)) as store:
        assert store.answer(Recall()) == Recalled(LEADER, entries)


def test_a_probe_writes_and_changes_nothing(url: str) -> None:
    """Its time is that of a durable write; an empty store stays empty."""
    with closing(open_store(url, timeout=PATIENCE)) as store:
        assert store.probe()
        assert store.answer(Recall()) == Recalled(None, ())
        assert store.answer(Claim(None, LEADER)) == Claimed(LEADER)
        assert store.answer(Record((FIRST,))) == Recorded((FIRST,))
        assert measure_writes(store)
        assert store.answer(Recall()) == Recalled(LEADER, (FIRST,))


def test_a_probe_of_a_file_is_written_to_its_log(tmp_path: Path) -> None:
    path = tmp_path / "formations.db"
    with closing(SqliteStore(path)) as store:
        size = (tmp_path / "formations.db-wal").stat().st_size
        assert store.probe()
        assert (tmp_path / "formations.db-wal").stat().st_size > size


def test_a_locked_file_carries_out_no_probe(tmp_path: Path) -> None:
    path = tmp_path / "formations.db"
    with closing(SqliteStore(path, timeout=SHORT)) as store, closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert not store.probe()
        assert measure_writes(store) is None
        other.execute("ROLLBACK")
        assert store.probe()


def test_the_whole_log_is_kept_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "formations.db"
    with closing(SqliteStore(path)) as store:
        store.answer(Claim(None, LEADER))
        for number in range(1, 6):
            store.answer(Record((LogEntry(1, number, 1, b"%d" % number),)))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT number, formation FROM log").fetchall() == [
            (number, b"%d" % number) for number in range(1, 6)
        ]


def test_a_log_continues_above_numbers_that_it_has_lost(url: str) -> None:
    """A store that was restored from a backup accepts a number that skips those it lost, and none below."""
    with closing(open_store(url, timeout=PATIENCE)) as store:
        store.answer(Claim(None, LEADER))
        later, earlier = LogEntry(3, 1_007, 1, b"later"), LogEntry(3, 6, 1, b"earlier")
        assert store.answer(Record((FIRST, later))) == Recorded((FIRST, later))
        assert store.answer(Record((earlier,))) == RecordRefused((earlier,))
        assert store.answer(Record((later,))) == RecordRefused((later,))
        assert store.answer(Recall()) == Recalled(LEADER, (later,))


def test_a_file_of_the_version_before_leases_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "formations.db"
    with closing(SqliteStore(path)) as store:
        store.answer(Claim(None, LEADER))
        store.answer(Record((FIRST,)))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE leadership DROP COLUMN lease")
        connection.execute("DROP TABLE identity")
        connection.execute("PRAGMA user_version = 1")
        connection.commit()
    renewed = Leadership(1, 1, 1, lease=300_000_000)
    with closing(SqliteStore(path)) as store:
        assert store.answer(Recall()) == Recalled(LEADER, (FIRST,))
        assert store.answer(Claim(LEADER, renewed)) == Claimed(renewed)
    with closing(SqliteStore(path)) as store:
        assert store.answer(Recall()) == Recalled(renewed, (FIRST,))


def test_a_store_keeps_its_identity_and_another_one_has_another(url: str, etcd: Etcd, tmp_path: Path) -> None:
    """Also where several servers make it at once.  Decision 63, One store."""

    def identity_of(place: str) -> int:
        with closing(open_store(place, timeout=PATIENCE)) as store:
            recalled = store.answer(Recall())
        assert isinstance(recalled, Recalled)
        return recalled.store

    with ThreadPoolExecutor() as pool:
        (identity,) = {*pool.map(identity_of, [url] * 4)}
    others = {identity_of(f"sqlite:{tmp_path / 'copy.db'}"), identity_of(etcd_url(etcd))}
    assert len({0, identity, *others}) == 4
    assert identity_of(url) == identity


def test_a_leadership_in_etcd_without_a_lease_is_renewed_with_one(etcd: Etcd) -> None:
    renewed = Leadership(1, 1, 1, lease=300_000_000)
    with closing(EtcdStore([EtcdEndpoint("127.0.0.1", etcd.port)], next(PREFIXES), timeout=PATIENCE)) as store:
        plain = _to_json({"leader": 1, "renewal": 0, "term": 1})
        puts = [_put(store._keys.leadership, plain), _put(store._keys.term, _to_json(1))]
        store._client.transact({"success": puts}, only_reads=False)
        assert store.answer(Recall()) == Recalled(LEADER, ())
        assert store.answer(Claim(LEADER, renewed)) == Claimed(renewed)
        assert store.answer(Recall()) == Recalled(renewed, ())


def child(url: str, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(CHILD.parents[1])}
    command = [sys.executable, str(CHILD), url, *arguments]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_processes_that_open_a_new_store_together_lose_no_claim(url: str) -> None:
    """Each process adds 20 renewals by compare and set; if two conflicting claims succeeded, one would be missing."""
    children = [child(url, "20") for _ in range(4)]
    for each in children:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    for each in children:
        each.communicate(timeout=PATIENCE)
        assert each.returncode == 0
    with closing(open_store(url, timeout=PATIENCE)) as store:
        recalled = store.answer(Recall())
    assert isinstance(recalled, Recalled)
    assert recalled.leadership is not None
    assert recalled.leadership.renewal == 80


def test_two_records_never_share_a_number(url: str) -> None:
    """Four servers of one term race for the next number: as many are recorded as there are numbers."""
    recorded: list[LogEntry] = []

    def race() -> None:
        with closing(open_store(url, timeout=PATIENCE)) as store:
            for _ in range(20):
                recalled = store.answer(Recall())
                assert isinstance(recalled, Recalled)
                number = recalled.latest[0].number + 1 if recalled.latest else 1
                answer = store.answer(Record((LogEntry(1, number, 1, b""),)))
                if isinstance(answer, Recorded):
                    recorded.extend(answer.entries)

    with closing(open_store(url, timeout=PATIENCE)) as store:
        store.answer(Claim(None, LEADER))
        with ThreadPoolExecutor() as pool:
            for racer in [pool.submit(race) for _ in range(4)]:
                racer.result()
        recalled = store.answer(Recall())
    assert isinstance(recalled, Recalled)
    assert len(recorded) >= 20
    assert sorted(entry.number for entry in recorded) == list(range(1, recalled.latest[0].number + 1))


def test_a_term_that_ends_between_reading_and_writing_is_detected(etcd: Etcd) -> None:
    with closing(EtcdStore([EtcdEndpoint("127.0.0.1", etcd.port)], next(PREFIXES), timeout=PATIENCE)) as store:
        store.answer(Claim(None, LEADER))
        before = store._read()
        renewed, succeeded = Leadership(1, 1, 1), Leadership(2, 2, 0)
        store.answer(Claim(LEADER, renewed))
        assert store._client.transact(store._append_transaction((FIRST,), before), only_reads=False)["succeeded"]
        before = store._read()
        store.answer(Claim(renewed, succeeded))
        assert "succeeded" not in store._client.transact(store._append_transaction((FIRST,), before), only_reads=False)
        assert store.answer(Recall()) == Recalled(succeeded, (FIRST,))


def test_everything_recorded_before_a_kill_is_there_and_the_log_continues(url: str) -> None:
    last = 0
    for kills in range(4):
        with child(url) as writer:
            assert writer.stdin is not None
            assert writer.stdout is not None
            writer.stdin.write("\n")
            writer.stdin.flush()
            lines = [writer.stdout.readline() for _ in range(3 + 5 * kills)]
            writer.kill()
            lines += writer.stdout.readlines()
        recorded = [int(line) for line in lines if line.endswith("\n")]
        assert recorded[0] in (last + 1, last + 2)  # the one in progress at the kill may be there or not
        last = recorded[-1]
        with closing(open_store(url, timeout=PATIENCE)) as store:
            recalled = store.answer(Recall())
        assert isinstance(recalled, Recalled)
        assert {entry.number for entry in recalled.latest} <= {last, last + 1}
        assert len({entry.number for entry in recalled.latest}) == 1  # all or none


@pytest.mark.parametrize(
    ("place", "named"),
    [
        ("", "give sqlite:PATH"),
        ("sqlite:", "give sqlite:PATH"),
        ("redis://127.0.0.1", "give sqlite:PATH"),
        ("sqlite:{folder}/none/formations.db", "none"),
        ("sqlite:{folder}", "cannot be opened"),
        ("sqlite:{folder}/text", "cannot be opened"),
        ("sqlite:{folder}/foreign.db", "another program"),
        ("sqlite:{folder}/later.db", "of version 99"),
        ("etcd:127.0.0.1:2379/x", "give etcd:http://HOST:PORT/PREFIX"),
        ("etcd:http://127.0.0.1:2379", "give etcd:http://HOST:PORT/PREFIX"),
        ("etcd:http://127.0.0.1/x", "'127.0.0.1' is no endpoint"),
        ("etcd:http://127.0.0.1:many/x", "'127.0.0.1:many' is no endpoint"),
        ("etcd:http://127.0.0.1:1,:2/x", "':2' is no endpoint"),
        ("etcd:http://127.0.0.1:{closed}/x", "no etcd answers"),
        ("etcd:http://" + ",".join(["127.0.0.1:1"] * 17) + "/x", "17 endpoints"),
    ],
)
def test_a_store_that_cannot_be_opened_is_one_sentence(place: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database, but long enough to be looked at " * 100)
    for name, mark in (("foreign.db", "PRAGMA user_version = 1"), ("later.db", "PRAGMA user_version = 99")):
        if name == "later.db":
            SqliteStore(tmp_path / name).close()
        with closing(sqlite3.connect(tmp_path / name)) as connection:
            connection.executescript(f"CREATE TABLE IF NOT EXISTS log (x); {mark}")
    (closed,) = free_tcp_ports(1)
    with pytest.raises(UserError) as complaint:
        open_store(place.format(folder=tmp_path, closed=closed))
    assert named in str(complaint.value)
    assert "\n" not in str(complaint.value)


def test_a_locked_file_is_unavailable_until_it_is_unlocked(tmp_path: Path) -> None:
    path = tmp_path / "formations.db"
    other = sqlite3.connect(path, isolation_level=None)
    with closing(SqliteStore(path, timeout=SHORT)) as store, closing(other):
        other.execute("BEGIN IMMEDIATE")
        assert store.answer(Claim(None, LEADER)) == Unavailable(Claim(None, LEADER))
        assert store.answer(Recall()) == Recalled(None, ())  # readers do not wait
        other.execute("ROLLBACK")
        assert store.answer(Claim(None, LEADER)) == Claimed(LEADER)


def test_a_file_that_replaces_the_open_one_is_the_store(tmp_path: Path) -> None:
    """Other processes open what has the name: an answer of the file that had it would make a second leader."""
    path, other = tmp_path / "formations.db", tmp_path / "other.db"
    with closing(SqliteStore(other)) as store:
        store.answer(Record((FIRST,)))
        expected = store.answer(Recall())
    with closing(SqliteStore(path)) as store:
        assert store.answer(Claim(None, LEADER)) == Claimed(LEADER)
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink()
        assert isinstance(store.answer(Recall()), Unavailable)
        assert not path.exists(), "a new file would be a lost store"
        other.rename(path)
        assert store.answer(Recall()) == expected


def test_an_etcd_that_stops_is_unavailable_and_keeps_its_log_over_a_kill(tmp_path: Path) -> None:
    with (
        running_etcd(tmp_path) as etcd,
        closing(EtcdStore([EtcdEndpoint("127.0.0.1", etcd.port)], "x", timeout=MIDDLE)) as store,
    ):
        assert store.answer(Claim(None, LEADER)) == Claimed(LEADER)
        assert store.answer(Record((FIRST,))) == Recorded((FIRST,))
        etcd.signal(signal.SIGSTOP)
        renewed = Claim(LEADER, LEADER)
        assert store.answer(renewed) == Unavailable(renewed)
        etcd.signal(signal.SIGCONT)
        assert store.answer(Recall()) == Recalled(LEADER, (FIRST,))
        etcd.kill()
        assert store.answer(Recall()) == Unavailable(Recall())
        etcd.start()
        assert store.answer(Recall()) == Recalled(LEADER, (FIRST,))


@contextmanager
def answering(reply: bytes, *, drops: bool = False, drip: bytes = b"") -> Iterator[EtcdEndpoint]:
    """A listener that is no etcd: sends the same to every client, then closes, stays silent, or sends byte by byte."""
    listener = socket.create_server(("127.0.0.1", 0))
    kept: list[socket.socket] = []
    ended = threading.Event()

    def serve() -> None:
        while True:
            try:
                line, _ = listener.accept()
            except OSError:
                return
            kept.append(line)
            line.recv(1 << 16)
            line.sendall(reply)
            while drip and not ended.wait(SHORT / 10):
                try:
                    line.sendall(drip)
                except OSError:
                    break
            if drops:
                line.close()

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    try:
        yield EtcdEndpoint("127.0.0.1", listener.getsockname()[1])
    finally:
        ended.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        server.join()
        for line in kept:
            line.close()


def http(body: str, *, status: str = "200 OK", length: int | None = None) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n{body}".encode()


ODD_LATEST = json.dumps({"responses": [{"response_range": {}}, {"response_range": {"kvs": [{"value": "!"}]}}, {}]})


@pytest.mark.parametrize("drops", [True, False])
@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"SSH-2.0-other\r\n",
        http("", status="503 Service Unavailable"),
        http("{}", status="404 Not Found"),
        http("{}"),
        http("[]"),
        http("no json"),
        http("{}", length=100),
        http("[" * 100_000),
        http('{"responses": 5}'),
        http('{"responses": [[], [], []]}'),
        http(ODD_LATEST),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_another_program_at_the_port_of_etcd_is_an_error_or_unavailable(reply: bytes, *, drops: bool) -> None:
    with answering(reply, drops=drops) as endpoint, pytest.raises(UserError, match="no etcd answers"):
        EtcdStore([endpoint], "x", timeout=SHORT)


def test_an_endless_answer_ends_with_the_timeout() -> None:
    """A socket's own timeout would restart with every byte."""
    endless = b"HTTP/1.1 200 OK\r\nX-Header: "
    with answering(endless, drip=b"x") as endpoint, pytest.raises(UserError, match="no etcd answers"):
        EtcdStore([endpoint], "x", timeout=SHORT)


def test_the_next_endpoint_is_tried_where_one_is_closed(etcd: Etcd) -> None:
    (closed,) = free_tcp_ports(1)
    with closing(
        open_store(f"etcd:http://127.0.0.1:{closed},{etcd.endpoint}/{next(PREFIXES)}", timeout=PATIENCE)
    ) as store:
        assert store.answer(Claim(None, LEADER)) == Claimed(LEADER)
        assert store.answer(Record((FIRST,))) == Recorded((FIRST,))


def test_a_change_that_may_have_been_carried_out_is_not_sent_twice(etcd: Etcd) -> None:
    """The first endpoint accepts a claim and falls silent: the outcome is unknown, so the answer is no refusal.

    The next request goes to the other endpoint.
    """
    entries = (FIRST,)
    prefix = next(PREFIXES)
    good = EtcdEndpoint("127.0.0.1", etcd.port)
    with answering(b"") as silent, closing(EtcdStore([silent, good], prefix, timeout=MIDDLE)) as store:
        # Opening has read, found the first endpoint silent and moved on; make it the first again.
        store._client._connections.rotate(-1)
        assert store.answer(Claim(None, LEADER)) == Unavailable(Claim(None, LEADER))
        assert store.answer(Recall()) == Recalled(None, ())
        assert store.answer(Claim(None, LEADER)) == Claimed(LEADER)
        assert store.answer(Record(entries)) == Recorded(entries)

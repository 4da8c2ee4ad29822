"""The Python client of edge stripes: the same tape from MoldUDP64, with nothing but a plan file and a server to ask."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import fairtape
from fairtape.client import ClientError, Record, Reformation, Tape, Trade
from fairtape.edge.service.replay_archive import ReplayArchive
from fairtape.edge.service.retransmit_server import RetransmitServer
from fairtape.edge.service.stripe_plans import StripePlanStore
from fairtape.market.stripe_files import to_toml
from fairtape.market.symbols import VENUE_NAMES
from fairtape.net.clock import SharedClock
from fairtape.net.transports import LOOPBACK
from loopback.edge_sockets import Groups, until
from loopback.test_edge_publisher import PublishingSite, publishing_site
from unit.edge.edge_journals import SETTINGS, history, plan_store
from unit.edge.edge_values import trade

COUNT = 240


@contextmanager
def server_of(folder: Path) -> Iterator[RetransmitServer]:
    archive = ReplayArchive(folder / "s1", SETTINGS, StripePlanStore(folder, 0))
    made = RetransmitServer(SETTINGS, SETTINGS.publishers["s1"], archive, SharedClock(), interface=LOOPBACK)
    try:
        yield made
    finally:
        made.close()


def release(site: PublishingSite, server: RetransmitServer, tape: Tape, entries: list[object]) -> None:
    """Give the site all entries, while its server serves and the tape listens."""
    for each in entries:
        site.feed_entry(each)  # type: ignore[arg-type]  # what `history` makes
    until(lambda: tape.waiting >= COUNT, site.wake, server.run_once)


def test_stripes_are_received_as_a_tape_though_the_plan_changes(tmp_path: Path) -> None:
    groups = Groups()
    plan, second = groups.plan(), groups.plan(2, stripes=3)
    plans = plan_store(tmp_path, plan, second)
    with publishing_site(tmp_path, plans) as site, server_of(tmp_path) as server:
        until(lambda: len(site.publisher.status().marks) == 2 and site.is_sending, site.wake)
        host, port = server.addresses[0]
        target = f"mold://FT@{plans.path(1)}?servers={host}:{port}&feeds=A"
        with fairtape.connect(target, start="beginning") as tape:
            release(site, server, tape, [*history(second=second)])
            found: list[Record] = []
            while len([record for record in found if isinstance(record, Trade)]) < COUNT:
                found.append(next(iter(tape)))
    trades = [record for record in found if isinstance(record, Trade)]
    assert sorted(record.sequence for record in trades) == list(range(1, COUNT + 1))
    for stripe in {record.stripe for record in trades}:
        numbers = [record.sequence for record in trades if record.stripe == stripe]
        assert numbers == sorted(numbers)
    for record in trades:
        published = trade(record.sequence)
        assert (record.symbol, record.price, record.quantity) == (published.symbol, published.price, published.quantity)
        assert (record.traded_at, record.trade_id) == (published.traded_at, published.trade_id)
        assert record.venue == VENUE_NAMES[published.venue]
        assert record.received_at is not None
        assert record.released_at is None
    assert [record.formation for record in found if isinstance(record, Reformation)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("target", "options", "sentence"),
    [
        ("mold://{plan}", {}, "stripes are named such as 'mold://FT@/srv/plans/00001.toml?servers="),
        ("mold://FT@{plan}?colour=red", {}, "stripes are named such as"),
        ("mold://FT@{plan}", {}, "target names no server to ask; add ?servers=HOST:PORT to it"),
        ("mold://FT@{plan}?servers=here", {}, "servers is 'here'; expected HOST:PORT"),
        ("mold://FT@{plan}", {"grade": "best effort", "stripes": 9}, "stripes names 9; plan 1 has [1, 2, 3]"),
        ("mold://FT@{plan}", {"grade": "best effort", "start": 5}, "start is a place in the whole order"),
        ("mold://FT@{plan}x", {"grade": "best effort"}, "cannot be read"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, target: str, options: dict[str, object], sentence: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(to_toml(Groups().plan()))
    with pytest.raises(ClientError) as entries:
        fairtape.connect(target.format(plan=path), **options)  # type: ignore[arg-type]
    assert sentence in str(entries.value)
    assert "\n" not in str(entries.value)


def test_stripes_have_no_past_to_read(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(to_toml(Groups().plan()))
    with (
        fairtape.connect(f"mold://FT@{path}", grade="best effort") as tape,
        pytest.raises(ClientError, match="ask a server for a snapshot"),
    ):
        tape.snapshot()

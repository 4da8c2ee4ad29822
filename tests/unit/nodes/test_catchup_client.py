"""Catching up trusts only a site that knows the latest formation and holds as much as the client."""

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from fairtape.core.entries import EntryChunk, Extract, Position
from fairtape.nodes.catchup import PENDING_CHUNKS_MAX, CatchUpClient, CatchUpServer
from fairtape.nodes.congestion_window import REQUEST_MAX
from fairtape.nodes.journal_position import Disagreement
from fairtape.nodes.message_authentication import MessageAuthenticator
from fairtape.nodes.receiver import Receiver
from fairtape.wire.membership import POSITION, CatchUp, HistoryChunk
from fairtape.wire.seals import Keys

LATEST = 5
KEYS = Keys.from_secret(b"catch up", [1, 2, 3], [])
NOW = 1_000
PERIOD = 100


@dataclass
class Numbered:
    number: int = LATEST


@dataclass
class Site:
    """What the client uses of a receiver, and the calls that it makes."""

    position: Position = Position(3, 120)  # noqa: RUF009 - it is a value
    journal_end: Position = Position(3, 120)  # noqa: RUF009 - it is a value
    fixed_through: int = 200
    verified: bool = False
    active: bool = False
    fenced: bool = False
    formation: Numbered = field(default_factory=Numbered)
    calls: list[str] = field(default_factory=list)

    @property
    def membership(self) -> "Site":
        return self

    @property
    def complete_through(self) -> int:
        return self.position.token

    def verify(self, _now: int) -> None:
        self.calls.append("verify")

    def catch_up_to(self, token: int, _survives: int, _now: int, *, known: int = 0) -> None:
        self.calls.append(f"through {token} of {known}")

    def compare(self, _token: int) -> None:
        """Not relevant here."""


def answer(site: Site, *, known: int, complete: int = 300, ends: Position | None = None, chunks: int = 0) -> str:
    client = CatchUpClient(me=1, stripe=0, authenticator=cast("MessageAuthenticator", None))
    client.reader.start(site.position, PERIOD, NOW)
    ((_, _, number),) = client.reader.requests(site.position, NOW)
    end = site.journal_end if ends is None else ends
    data = b"piece" if chunks else POSITION.pack(*end)
    formation, token = site.position
    chunk = HistoryChunk(0, formation, 2, token, complete, complete, known, 0, chunks, data, number=number)
    return client.take(chunk, cast("Receiver", cast("Any", site)), NOW)


@pytest.mark.parametrize("chunks", [0, 2])
def test_nothing_is_taken_from_a_site_that_does_not_know_the_latest_formation(chunks: int) -> None:
    site = Site()
    assert answer(site, known=LATEST - 1, chunks=chunks) == "unknowing"
    assert site.calls == []


def test_a_site_that_knows_a_later_formation_does_not_prove_that_nothing_follows() -> None:
    site = Site(verified=True)
    assert answer(site, known=LATEST + 1, ends=Position(3, 99)) == "ahead"
    assert site.calls == []


def test_a_site_that_holds_the_same_confirms_and_advances_the_order() -> None:
    site = Site()
    assert answer(site, known=LATEST) == "past"
    assert site.calls == ["verify", f"through 300 of {LATEST}"]


def test_a_site_that_holds_the_order_as_far_and_has_less_disagrees() -> None:
    with pytest.raises(Disagreement) as raised:
        answer(Site(), known=LATEST, ends=Position(3, 99))
    assert raised.value.token == 99


def test_a_site_that_does_not_hold_the_order_as_far_confirms_nothing() -> None:
    site = Site()
    answer(site, known=LATEST, complete=110, ends=Position(3, 99))
    assert "verify" not in site.calls


def new_server() -> CatchUpServer:
    authenticator = MessageAuthenticator(me=1, keys=KEYS, peers=KEYS.sites, first_serial=1)
    return CatchUpServer(me=1, authenticator=authenticator, datagram_max=1_400)


def test_a_server_reads_its_journal_once_for_a_site_that_repeats_its_request() -> None:
    """Reading for each repetition took so long that the members of the ring missed their tokens."""
    server = new_server()
    request = CatchUp(0, 3, 2, 120, 0, 1_000, 700)
    fetch = server.start_read(request)
    assert fetch is not None
    assert fetch.count_max == REQUEST_MAX
    assert server.start_read(request) is None
    other = server.start_read(CatchUp(0, 3, 3, 120, 0, 1, 700))
    assert other is not None
    assert other.count_max == 1
    pending = server.end_read(fetch.ticket)
    assert pending is not None
    (send,) = server.answer(pending, Extract([], Position(3, 120), 0, exhausted=True), RECEIVER)
    assert send.to == 2
    assert server.start_read(request) is not None


def test_a_site_that_requests_much_ahead_leaves_room_for_others() -> None:
    server, requests = new_server(), PENDING_CHUNKS_MAX // 64
    ahead = [CatchUp(0, 3, 2, 120, 64 * at, 64, 1_000 + 64 * at) for at in range(requests + 1)]
    assert [server.start_read(each) is None for each in ahead] == [False] * requests + [True]
    assert server.start_read(CatchUp(0, 3, 3, 120, 0, 64, 1_000)) is not None


def test_a_server_reads_on_where_the_entries_of_a_request_began() -> None:
    """Without that it would search all entries between the client's position and what it requests, every time."""
    server = new_server()
    first = server.start_read(CatchUp(0, 3, 2, 120, 0, 3, 1_000))
    assert first is not None
    read = [EntryChunk(Position(3, 120), 0, 2, 7, b"a"), EntryChunk(Position(3, 120), 1, 2, 7, b"b")]
    read.append(EntryChunk(Position(3, 121), 0, 5, 8, b"c"))
    pending = server.end_read(first.ticket)
    assert pending is not None
    server.answer(pending, Extract(read, Position(3, 121), 2, exhausted=False), RECEIVER)
    ahead = server.start_read(CatchUp(0, 3, 2, 120, 3, 3, 1_003))
    assert ahead is not None
    assert (ahead.token, ahead.skip) == (121, 1)
    other_client = server.start_read(CatchUp(0, 3, 3, 120, 3, 3, 1_003))
    assert other_client is not None
    assert (other_client.token, other_client.skip) == (120, 3)
    server.forget()
    truncated = server.start_read(CatchUp(0, 3, 2, 120, 4, 3, 1_004))
    assert truncated is not None
    assert (truncated.token, truncated.skip) == (120, 4)


@dataclass
class Serving:
    """What the server states of its receiver."""

    complete_through: int = 300
    survives_through: int = 300
    verified: bool = True
    journal_end: Position = Position(3, 300)  # noqa: RUF009 - it is a value
    formation: Numbered = field(default_factory=Numbered)

    @property
    def membership(self) -> "Serving":
        return self


RECEIVER = cast("Receiver", cast("Any", Serving()))

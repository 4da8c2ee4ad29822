"""Whom a site believes that catches up: only one who knows the latest formation, and holds as much as it does."""

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from fairtape.core.entries import Position
from fairtape.nodes.catchup import CatchUpClient
from fairtape.nodes.message_authentication import MessageAuthenticator
from fairtape.nodes.reconfigurable_receiver import Disagreement, ReconfigurableReceiver
from fairtape.wire.membership import POSITION, HistoryChunk

LATEST = 5
NOW = 1_000


@dataclass
class Numbered:
    number: int = LATEST


@dataclass
class Site:
    """What a learner sees of a receiver, and what it tells it."""

    position: Position = Position(3, 120)  # noqa: RUF009 - it is a value
    journal_end: Position = Position(3, 120)  # noqa: RUF009 - it is a value
    fixed_through: int = 200
    verified: bool = False
    active: bool = False
    fenced: bool = False
    formation: Numbered = field(default_factory=Numbered)
    told: list[str] = field(default_factory=list)

    @property
    def complete_through(self) -> int:
        return self.position.token

    def verify(self, _now: int) -> None:
        self.told.append("verify")

    def catch_up_to(self, token: int, _survives: int, _now: int, *, known: int = 0) -> None:
        self.told.append(f"through {token} of {known}")

    def compare(self, _token: int) -> None:
        """Whether it is level does not matter here."""


def answer(site: Site, *, known: int, complete: int = 300, ends: Position | None = None, chunks: int = 0) -> str:
    learner = CatchUpClient(me=1, stripe=0, authenticator=cast("MessageAuthenticator", None))
    learner.reader.start(NOW)
    end = site.journal_end if ends is None else ends
    data = b"piece" if chunks else POSITION.pack(*end)
    past = HistoryChunk(0, site.position.formation, 2, site.position.token, complete, complete, known, 0, chunks, data)
    return learner.take(past, cast("ReconfigurableReceiver", cast("Any", site)), NOW)


@pytest.mark.parametrize("chunks", [0, 2])
def test_nothing_is_taken_from_one_who_does_not_know_the_latest_formation(chunks: int) -> None:
    site = Site()
    assert answer(site, known=LATEST - 1, chunks=chunks) == "unknowing"
    assert site.told == []


def test_one_who_knows_a_later_formation_does_not_say_that_nothing_follows() -> None:
    site = Site(verified=True)
    assert answer(site, known=LATEST + 1, ends=Position(3, 99)) == "ahead"
    assert site.told == []


def test_one_who_holds_the_same_confirms_and_brings_it_forward() -> None:
    site = Site()
    assert answer(site, known=LATEST) == "past"
    assert site.told == ["verify", f"through 300 of {LATEST}"]


def test_one_who_holds_the_order_as_far_and_has_less_left_the_rest_behind() -> None:
    with pytest.raises(Disagreement) as raised:
        answer(Site(), known=LATEST, ends=Position(3, 99))
    assert raised.value.token == 99


def test_one_who_does_not_hold_the_order_as_far_confirms_nothing() -> None:
    site = Site()
    answer(site, known=LATEST, complete=110, ends=Position(3, 99))
    assert "verify" not in site.told

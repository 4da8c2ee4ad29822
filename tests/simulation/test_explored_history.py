"""The guarantees that an exploration checks: each fires on what it forbids, and on nothing else."""

from dataclasses import replace

import pytest

from fairtape.core.effects import Ordered, Span
from fairtape.core.formation_log import LogEntry
from fairtape.core.timing import profile
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.layout import encode_formation
from fairtape.simulation.explored_history import (
    History,
    Promise,
    ack_sent,
    appended,
    delivered,
    installed,
    leading,
    recorded,
    truncated,
)
from fairtape.simulation.world import Violation
from fairtape.wire.frames import Ack, encode_control
from fairtape.wire.membership import Install

FIRST = Formation(number=1, members=(1, 2, 3), timing=profile("lan"), starts_at=0, resilience=1)
HALT = Promise(1, halts=True)


def entry(formation: Formation) -> LogEntry:
    return LogEntry(0, formation.number, 1, encode_formation(formation))


def history(*formations: Formation) -> History:
    begun = History()
    recorded(begun, map(entry, formations or (FIRST,)), Promise(0, halts=False), 0)
    return begun


def ordered(token: int, number: int, *, formation: int = 1, message: int = 1) -> Ordered:
    span = Span(101, 1, message, 1, number, (b"body",), (1,))
    return Ordered(0, formation, token, number, 1, 0, (span,))


def ack(token: int, *, sent_at: int = 0, formation: int = 1) -> bytes:
    return encode_control(Ack(0, formation, 1, token, 1, sent_at, 0, 0, 1, ()), 0) + bytes(16)


def released(past: History, what: Ordered) -> History:
    for site in (1, 2):
        appended(past, site, what, 0)
    delivered(past, 1, what, 0)
    return past


def broken(guarantee: str) -> "pytest.RaisesExc[Violation]":
    return pytest.raises(Violation, match=guarantee)


def test_an_acknowledgment_has_one_content() -> None:
    past = history()
    ack_sent(past, 1, ack(5), 0)
    ack_sent(past, 1, ack(5), 0)
    with broken("OneHolder"):
        ack_sent(past, 1, ack(5, sent_at=1), 0)


def test_no_site_acts_in_a_superseded_formation() -> None:
    second = replace(FIRST, number=2, first_token=6, first_sequence=0)
    past = history(FIRST, second)
    ack_sent(past, 1, ack(5), 0)
    with broken("Fenced"):
        ack_sent(past, 1, ack(6), 0)
    with broken("Fenced"):
        delivered(past, 1, ordered(6, 3), 0)


def test_a_token_has_one_content_and_enough_holders() -> None:
    past = history()
    appended(past, 1, ordered(2, 1), 0)
    with broken("SurvivesK"):
        delivered(past, 1, ordered(2, 1), 0)
    with broken("OneContent"):
        appended(past, 2, ordered(2, 1, message=2), 0)


def test_a_number_is_one_message_unless_a_break_says_otherwise() -> None:
    second = replace(FIRST, number=2, first_token=3, first_sequence=1)
    past = history()
    released(past, ordered(2, 1))
    later = past.later()
    recorded(later, [entry(replace(second, broken=True))], Promise(0, halts=False), 0)
    released(later, ordered(3, 1, formation=2, message=2))
    third = replace(FIRST, number=3, first_token=5, first_sequence=0)
    recorded(later, [entry(third)], Promise(0, halts=False), 0)
    with broken("OneOrder"):
        released(later, ordered(5, 1, formation=3, message=3))
    assert past.digest != later.digest
    assert len(past.formations) == 1  # the earlier history is as it was


def test_what_was_released_survives() -> None:
    past = released(history(), ordered(2, 1))
    truncated(past, 1, 2, 2, 0)
    with broken("CommittedSurvives"):
        truncated(past, 1, 1, 2, 0)
    with broken("CommittedSurvives"):
        recorded(past, [entry(replace(FIRST, number=2, first_token=2, first_sequence=1))], HALT, 0)


def test_halt_means_no_break_and_the_promised_resilience() -> None:
    second = replace(FIRST, number=2, first_token=6, first_sequence=4)
    recorded(history(), [entry(second)], HALT, 0)
    for formation in (replace(second, broken=True), replace(second, resilience=0)):
        with broken("KeptPromise"):
            recorded(history(), [entry(formation)], HALT, 0)
        recorded(history(), [entry(formation)], replace(HALT, halts=False), 0)


def test_a_number_is_one_formation_and_only_a_recorded_one_is_installed() -> None:
    past = history()
    installed(past, 11, Install(0, 1, 11, 1, True, encode_formation(FIRST)), 0)
    other = replace(FIRST, members=(1, 2))
    installed(past, 11, Install(0, 1, 11, 1, False, encode_formation(other)), 0)
    with broken("OneFormation"):
        installed(past, 11, Install(0, 1, 11, 1, True, encode_formation(other)), 0)
    with broken("OneFormation"):
        recorded(past, [entry(other)], Promise(0, halts=False), 0)


def test_one_server_leads() -> None:
    leading([], 0)
    leading([11], 0)
    with broken("OneLeader"):
        leading([11, 12], 0)

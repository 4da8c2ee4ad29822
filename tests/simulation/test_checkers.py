"""Each checker accepts a correct history and rejects incorrect ones."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from fairtape.core.effects import Channel, Ordered, Reason, Release, Report, Span
from fairtape.core.instants import MILLISECOND, Duration, Instant
from fairtape.core.timing import Timing
from fairtape.ring.membership.formation import Formation
from fairtape.simulation.checkers import GUARANTEES, LATE_AFTER, Checker, EverythingArrives, Facts, RingCheckers
from fairtape.simulation.world import Violation
from fairtape.wire.blocks import pack_messages, split_message
from fairtape.wire.frames import Ack, NodeId, Range, encode_block_header, encode_control
from fairtape.wire.seals import Authenticator, Seal

TIMING = Timing(
    retry_period=10 * MILLISECOND, retries_max=3, token_period=20 * MILLISECOND, commit_delay=60 * MILLISECOND
)
FORMATION = Formation(number=1, members=(1, 2, 3), timing=TIMING, starts_at=1_000 * MILLISECOND, resilience=1)
TEXTS = [b"a", b"b", b"c", b"d"]


class History:
    """Three sites, one source, and all checkers."""

    def __init__(self, formation: Formation = FORMATION) -> None:
        self.formation = formation
        self.claims: dict[NodeId, int] = {}
        self.complete = 0
        self.facts = Facts(
            formation=formation,
            published={(101, 1): list(TEXTS), (101, 2): list(TEXTS)},
            complete=lambda _: self.complete,
            claim=lambda node: self.claims.get(node, 0),
        )
        self.checkers = RingCheckers(self.facts)

    def append(self, ordered: Ordered, *nodes: NodeId, at: Instant | None = None) -> None:
        for node in nodes:
            self.checkers.appended(node, ordered, ordered.acknowledged_at + 5 * MILLISECOND if at is None else at)

    def release(self, ordered: Ordered, *nodes: NodeId, at: Instant | None = None, late: bool = False) -> None:
        commit_at = self.formation.commit_at(ordered.token)
        now = commit_at if at is None else at
        for node in nodes:
            release = Release(ordered.token, ordered.sequence, ordered.count, commit_at, now, late, 0)
            self.checkers.delivered(node, ordered, release, now)

    def ack(self, node: NodeId, token: int, *ranges: Range, sender: NodeId | None = None, sequence: int = 1) -> None:
        marks = tuple(bytes(8) for _ in ranges)
        ack = Ack(0, 1, node if sender is None else sender, token, sequence, 5, 0, 0, 1, ranges, marks)
        datagram = Authenticator(bytes(32)).prove(encode_control(ack, 1))
        self.checkers.sent(node, Channel.CONTROL, datagram, 0)

    def block(self, node: NodeId, body: bytes) -> None:
        header = encode_block_header(0, 0, 101, 1, 1, 1)
        seal = Seal(bytes(32), stripe=0, source=101, incarnation=1)
        self.checkers.sent(node, Channel.DATA, seal.close(header, 1, body), 0)


def ordered(token: int, sequence: int, first: int, texts: list[bytes], *, incarnation: int = 1) -> Ordered:
    span = Span(101, incarnation, first, len(texts), sequence, (pack_messages(texts),), (len(texts),))
    return Ordered(0, 1, token, sequence, len(texts), FORMATION.scheduled_at(token), (span,))


ONE = ordered(1, 1, 1, TEXTS[:2])
TWO = ordered(2, 3, 3, TEXTS[2:])


def breaks(guarantee: str) -> pytest.RaisesExc[Violation]:
    return pytest.RaisesExc(Violation, check=lambda broken: broken.guarantee == guarantee)


def test_a_correct_history_is_accepted() -> None:
    history = History()
    history.block(101, b"x")
    history.append(ONE, 1)
    history.ack(1, 1, Range(101, 1, 1, 2))
    history.append(ONE, 2, 3)
    history.append(TWO, 2)
    history.ack(2, 2, Range(101, 1, 3, 2), sequence=3)
    history.append(TWO, 1, 3)
    history.release(ONE, 1, 2, 3)
    history.release(TWO, 1, 2, 3)
    history.complete = 2
    history.checkers.finished(dict.fromkeys((1, 2, 3), FORMATION.scheduled_at(3)))


def test_every_guarantee_has_a_long_docstring() -> None:
    assert all(len((guarantee.__doc__ or "").split()) > 20 for guarantee in GUARANTEES)


def test_one_order_detects_two_messages_under_one_number() -> None:
    history = History()
    history.append(ONE, 1)
    with breaks("OneOrder"):
        history.append(replace(ONE, spans=(replace(ONE.spans[0], bodies=(pack_messages([b"a", b"x"]),)),)), 2)


def test_one_order_detects_a_release_that_differs_from_the_append() -> None:
    history = History()
    history.append(ONE, 1, 2)
    with breaks("OneOrder"):
        history.release(replace(ONE, acknowledged_at=ONE.acknowledged_at + 1), 1)


@pytest.mark.parametrize(
    "wrong",
    [
        ordered(1, 2, 1, TEXTS[:2]),  # a gap
        ordered(1, 1, 1, [b"a", b"x"]),  # invented
        ordered(1, 1, 1, [*TEXTS, b"e"]),  # more than there is
        replace(ONE, count=3),  # a wrong count
    ],
)
def test_a_missing_or_invented_message_is_detected(wrong: Ordered) -> None:
    with breaks("NoGapNoDuplicateNothingInvented"):
        History().append(wrong, 1)


def test_a_token_that_is_appended_twice_is_detected() -> None:
    history = History()
    history.append(ONE, 1)
    with breaks("NoGapNoDuplicateNothingInvented"):
        history.append(ONE, 1)


def test_a_release_without_an_append_is_detected() -> None:
    with breaks("NoGapNoDuplicateNothingInvented"):
        History().release(ONE, 1)


def test_fragments_are_reassembled_before_they_are_compared() -> None:
    history = History()
    long = bytes(range(256)) * 3
    history.facts.published[101, 1][:] = [long]  # type: ignore[index]
    bodies = tuple(split_message(long, 300))
    span = Span(101, 1, 1, len(bodies), 1, bodies, (1,) * len(bodies), (True,) * len(bodies))
    history.append(replace(ONE, count=len(bodies), spans=(span,)), 1)
    assert next(history.checkers.checkers[1]._readers[101, 1], None) is None  # type: ignore[attr-defined]


def test_source_order_detects_a_skipped_number() -> None:
    with breaks("SourceOrder"):
        History().append(ordered(1, 1, 2, TEXTS[:1]), 1)


def test_source_order_detects_messages_of_an_old_incarnation() -> None:
    history = History()
    history.append(ordered(1, 1, 1, TEXTS[:1]), 1)
    history.append(ordered(2, 2, 1, TEXTS[:1], incarnation=2), 1)
    with breaks("SourceOrder"):
        history.append(ordered(3, 3, 2, TEXTS[1:2]), 1)


def test_one_token_holder_detects_a_site_without_the_token() -> None:
    with breaks("OneTokenHolder"):
        History().ack(2, 1)


def test_one_token_holder_detects_two_contents() -> None:
    history = History()
    history.ack(1, 1)
    with breaks("OneTokenHolder"):
        history.ack(2, 1, Range(101, 1, 1, 1), sender=1)


def test_a_site_that_completes_after_the_reform_delay_is_detected() -> None:
    deadline = FORMATION.scheduled_at(1) + TIMING.reform_delay
    History().append(ONE, 1, at=deadline)
    with breaks("CompleteOrReforming"):
        History().append(ONE, 1, at=deadline + 1)


def test_a_site_that_neither_completes_nor_declares_is_detected() -> None:
    with breaks("CompleteOrReforming"):
        History().checkers.finished({1: FORMATION.scheduled_at(1) + TIMING.reform_delay + 1})


def test_a_paused_site_has_the_delay_again_from_its_resumption() -> None:
    history = History()
    history.checkers.fault_event(1, "resume", FORMATION.scheduled_at(9))
    history.append(ONE, 1, at=FORMATION.scheduled_at(9) + TIMING.reform_delay)


def test_a_release_after_a_declared_failure_is_detected() -> None:
    history = History()
    history.append(ONE, 1, 2, 3)
    history.checkers.reported(1, Report(2, 1, Reason.ACK_SILENT, 0), 0)
    with breaks("CompleteOrReforming"):
        history.release(ONE, 1)


def test_an_early_release_is_detected() -> None:
    history = History()
    history.append(ONE, 1, 2, 3)
    with breaks("NeverEarly"):
        history.release(ONE, 1, at=FORMATION.commit_at(1) - 1)


def test_a_late_release_that_is_not_marked_is_detected() -> None:
    history = History()
    history.append(ONE, 1, 2, 3)
    with breaks("ReleasedTogether"):
        history.release(ONE, 1, at=FORMATION.commit_at(1) + 1)


def test_a_release_that_is_marked_late_without_a_reason_is_detected() -> None:
    history = History()
    history.append(ONE, 1, 2, 3)
    history.append(TWO, 1)
    with breaks("ReleasedTogether"):
        history.release(ONE, 1, at=FORMATION.commit_at(1) + 1, late=True)


@pytest.mark.parametrize(
    ("behind", "late"),
    [(1, False), (LATE_AFTER, False), (LATE_AFTER + 1, True), (TIMING.reform_delay, True)],
)
def test_a_paused_site_may_release_late_and_marks_it_beyond_the_limit(behind: Duration, late: bool) -> None:
    for marked in (False, True):
        history = History()
        history.append(ONE, 1, 2, 3)
        history.append(TWO, 1)
        now = FORMATION.commit_at(1) + behind
        history.checkers.fault_event(1, "resume", now)
        with nullcontext() if marked == late else breaks("ReleasedTogether"):
            history.release(ONE, 1, at=now, late=marked)


def test_a_pause_at_another_time_does_not_excuse_a_late_release() -> None:
    history = History()
    history.append(ONE, 1, 2, 3)
    history.append(TWO, 1)
    history.checkers.fault_event(1, "resume", FORMATION.commit_at(1) - 1)
    with breaks("ReleasedTogether"):
        history.release(ONE, 1, at=FORMATION.commit_at(1) + TIMING.reform_delay, late=True)


def test_a_release_of_what_too_few_sites_hold_is_detected() -> None:
    history = History()
    history.append(ONE, 1)
    with breaks("SurvivesK"):
        history.release(ONE, 1)


def test_a_false_claim_is_detected() -> None:
    history = History()
    history.append(ONE, 1, 2)
    history.claims[1] = 1
    with breaks("TrueClaims"):
        history.append(TWO, 1)


def test_a_source_that_discards_too_soon_is_detected() -> None:
    """K is 1: two sites must hold it."""
    history = History()
    history.facts.forgotten = {101: lambda: ((101, 1), 2)}
    history.append(ONE, 1)
    with breaks("KeptUntilHeld"):
        history.ack(1, 1, Range(101, 1, 1, 2))
    history = History()
    history.facts.forgotten = {101: lambda: ((101, 1), 2)}
    history.append(ONE, 1, 2)
    history.ack(1, 1, Range(101, 1, 1, 2))


def test_two_texts_under_one_nonce_are_detected() -> None:
    history = History()
    history.block(101, b"one")
    history.block(2, b"one")
    with breaks("NoNonceTwice"):
        history.block(101, b"two")


def test_an_acknowledgment_before_its_journal_is_detected() -> None:
    history = History()
    history.append(ONE, 1)
    with breaks("AppendBeforeAck"):
        history.ack(2, 2)


def test_a_message_that_never_arrives_is_detected() -> None:
    history = History()
    (arrival,) = (checker for checker in history.checkers.checkers if isinstance(checker, EverythingArrives))
    arrival.alive = lambda stream: 2 if stream == (101, 1) else 0
    history.append(ONE, 1, 2, 3)
    history.release(ONE, 1, 2)
    with breaks("EverythingArrives"):
        arrival.demand()
    history.release(ONE, 3)
    arrival.demand()


def test_each_guarantee_is_a_class_of_its_own() -> None:
    assert all(issubclass(guarantee, Checker) for guarantee in GUARANTEES)
    assert len({guarantee.__name__ for guarantee in GUARANTEES}) == len(GUARANTEES)


def test_a_declared_breach_of_the_protocol_is_a_violation() -> None:
    history = History()
    history.checkers.reported(2, Report(3, 1, Reason.ACK_SILENT, 0), 0)
    with breaks("NoProtocolBreach"):
        history.checkers.reported(1, Report(3, 1, Reason.BREACH, 0), 0)

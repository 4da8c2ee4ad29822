"""Each checker accepts a correct history and rejects incorrect ones."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from fairtape.core.effects import Channel, Ordered, Reason, Release, Report, Span
from fairtape.core.instants import MILLISECOND, Duration, Instant
from fairtape.core.timing import Timing
from fairtape.ring.membership.formation import Formation
from fairtape.simulation.checkers import GUARANTEES, LATE_AFTER, Checker, Checkers, Facts
from fairtape.simulation.simulated_journal import SimulatedJournal
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
    """Three sites, one source, and all checkers. More than one formation is a deployment, whose sites have journals."""

    def __init__(self, *formations: Formation) -> None:
        self.formations = list(formations or (FORMATION,))
        self.claims: dict[NodeId, int] = {}
        self.complete = 0
        self.used = {(101, 1): 0}
        self.journals = {node: SimulatedJournal() for node in FORMATION.members if len(formations) > 1}
        self.facts = Facts(
            sites=FORMATION.members,
            formations=lambda: self.formations,
            is_fixed=not self.journals,
            published={(101, 1): list(TEXTS), (101, 2): list(TEXTS)},
            journals=self.journals,
            complete=lambda _: self.complete,
            claim=lambda node: (1, self.claims.get(node, 0)),
            settled={101: lambda: ((101, 1), self.settled)},
            used=lambda stream: self.used.get(stream, 0),
        )
        self.settled = 0
        self.checkers = Checkers(self.facts)

    def append(self, ordered: Ordered, *nodes: NodeId, at: Instant | None = None) -> None:
        for node in nodes:
            if self.journals:
                self.journals[node].append(ordered)
            self.checkers.appended(node, ordered, ordered.acknowledged_at + 5 * MILLISECOND if at is None else at)

    def truncate(self, node: NodeId, token: int) -> None:
        self.journals[node].truncate_after(token)
        self.checkers.truncated(node, token, 0)

    def release(self, ordered: Ordered, *nodes: NodeId, at: Instant | None = None, late: bool = False) -> None:
        commit_at = self.formations[ordered.formation - 1].commit_at(ordered.token)
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


def ordered(
    token: int, sequence: int, first: int, texts: list[bytes], *, incarnation: int = 1, formation: Formation = FORMATION
) -> Ordered:
    span = Span(101, incarnation, first, len(texts), sequence, (pack_messages(texts),), (len(texts),))
    return Ordered(0, formation.number, token, sequence, len(texts), formation.scheduled_at(token), (span,))


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
    history.checkers.ended(dict.fromkeys((1, 2, 3), FORMATION.scheduled_at(3)))


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
        History().checkers.ended({1: FORMATION.scheduled_at(1) + TIMING.reform_delay + 1})


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
    history.settled = 2
    history.append(ONE, 1)
    with breaks("KeptUntilHeld"):
        history.ack(1, 1, Range(101, 1, 1, 2))
    history = History()
    history.settled = 2
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
    history.used[101, 1] = 2
    history.append(ONE, 1, 2, 3)
    history.release(ONE, 1, 2)
    with breaks("EverythingArrives"):
        history.checkers.finish()
    history.release(ONE, 3)
    history.checkers.finish()


def test_each_guarantee_is_a_class_of_its_own() -> None:
    assert all(issubclass(guarantee, Checker) for guarantee in GUARANTEES)
    assert len({guarantee.__name__ for guarantee in GUARANTEES}) == len(GUARANTEES)


def test_a_declared_breach_of_the_protocol_is_a_violation() -> None:
    history = History()
    history.checkers.reported(2, Report(3, 1, Reason.ACK_SILENT, 0), 0)
    with breaks("NoProtocolBreach"):
        history.checkers.reported(1, Report(3, 1, Reason.BREACH, 0), 0)


SECOND = replace(FORMATION, number=2, first_token=2, starts_at=2_000 * MILLISECOND, first_sequence=3)
OTHER_TWO = ordered(2, 3, 3, TEXTS[2:3], formation=SECOND)


def test_a_deployment_whose_second_formation_orders_the_rest_is_correct() -> None:
    """Token 2 of the first formation was not released anywhere, so the second one may order other messages there."""
    history = History(FORMATION, SECOND)
    history.append(ONE, 1, 2, 3)
    history.append(TWO, 1)
    history.release(ONE, 1, 2, 3)
    history.truncate(1, 1)
    history.append(OTHER_TWO, 1, 2, 3)
    history.release(OTHER_TWO, 1, 2, 3)
    history.used[101, 1] = 3
    history.checkers.finish()


@pytest.mark.parametrize("broken", [False, True])
def test_one_order_detects_another_message_of_a_later_formation_unless_it_is_broken(broken: bool) -> None:
    first = replace(FORMATION, resilience=0)
    history = History(first, replace(SECOND, resilience=0, first_sequence=1, broken=broken))
    one, other = ordered(1, 1, 1, TEXTS[:1]), ordered(2, 1, 1, TEXTS[:1], incarnation=2, formation=SECOND)
    history.append(one, 1)
    history.release(one, 1)
    history.append(other, 2)
    with nullcontext() if broken else breaks("OneOrder"):
        history.release(other, 2)


def test_a_release_or_a_new_acknowledgment_of_what_was_superseded_is_detected() -> None:
    for act in ("release", "ack"):
        history = History(FORMATION)
        history.append(ONE, 1, 2, 3)
        history.append(TWO, 1, 2, 3)
        history.formations.append(SECOND)
        history.release(ONE, 1)
        with breaks("Fenced"):
            history.release(TWO, 1) if act == "release" else history.ack(2, 2)


def test_a_repaired_acknowledgment_of_what_was_superseded_is_no_new_one() -> None:
    history = History(FORMATION)
    history.ack(2, 2)
    history.formations.append(SECOND)
    history.ack(1, 2, sender=2)


def test_a_site_that_removes_what_it_has_released_is_detected() -> None:
    history = History(FORMATION, SECOND)
    history.append(ONE, 1, 2, 3)
    history.release(ONE, 1)
    with breaks("CommittedSurvives"):
        history.truncate(1, 0)


def test_a_released_message_that_the_final_order_does_not_have_is_detected() -> None:
    history = History(FORMATION, SECOND)
    history.append(ONE, 1, 2, 3)
    history.release(ONE, 1)
    for journal in history.journals.values():
        journal.truncate_after(0)
    with breaks("CommittedSurvives"):
        history.checkers.finish()


def test_journals_that_differ_in_the_end_are_detected() -> None:
    history = History(FORMATION, SECOND)
    history.append(ONE, 1, 2)
    with breaks("OneJournal"):
        history.checkers.finish()


def test_a_site_that_starts_again_continues_where_its_journal_ends() -> None:
    history = History(FORMATION, SECOND)
    history.append(ONE, 1, 2, 3)
    history.checkers.fault_event(1, "crash", 0)
    history.checkers.fault_event(1, "restart", 0)
    history.append(TWO, 1)
    with breaks("NoGapNoDuplicateNothingInvented"):
        history.append(ordered(3, 6, 5, TEXTS[:1]), 1)


def test_in_the_end_the_journals_are_read_for_what_no_source_published() -> None:
    history = History(FORMATION, SECOND)
    history.append(ordered(1, 1, 1, [b"a", b"x"]), 1, 2, 3)
    with breaks("NoGapNoDuplicateNothingInvented"):
        history.checkers.finish()

"""Numbers depend on the order alone: not on its division into tokens, on restarts, or on when changes are known."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.effects import FormationChange, Ordered, Span
from fairtape.edge.protocol.sessions import (
    MARK,
    BadMark,
    BadSession,
    Begun,
    Edition,
    Over,
    Reformed,
    SessionName,
    StripePosition,
    decode_mark,
    decode_opaque,
    encode_mark,
    encode_opaque,
)
from fairtape.edge.protocol.stripe_sequencer import (
    MESSAGE_MAX,
    OTHERS_MAX,
    SLICE_MAX,
    SessionClosed,
    SessionOpened,
    StripeMessages,
    StripeSequencer,
    StripeStep,
)
from fairtape.formats.framing import unframe
from fairtape.formats.itch.ticker_messages import CanceledPrint, Listing, PrintedTrade, TickerReader
from fairtape.market.notices import CancelNotice, CorrectionNotice, Status, StatusNotice, encode_notice
from fairtape.market.trades import encode
from fairtape.wire.blocks import Assembler, split_message
from unit.edge.edge_values import MIDNIGHT, NOON, SYMBOLS, edition, formation_change, plan, token, tokens, trade

PAYLOADS = st.one_of(
    st.integers(1, 10**4).map(lambda number: encode(trade(number))),
    st.integers(1, 10**4).map(lambda number: encode(trade(number, "STRANGER"))),
    st.integers(1, 10**4).map(lambda number: encode_notice(CancelNotice(number, "XNYS", SYMBOLS[number % 6], NOON))),
    st.integers(1, 10**4).map(lambda number: encode_notice(CorrectionNotice(number, trade(number + 1), NOON))),
    st.just(encode_notice(StatusNotice("XNYS", Status.HALTED, NOON))),
    st.binary(max_size=3_000),
    st.binary(min_size=64, max_size=64),
)


def fresh() -> StripeSequencer:
    return StripeSequencer(StripePosition.fresh(edition()))


def sessions_of(steps: Sequence[StripeStep]) -> dict[str, list[bytes]]:
    """The messages of every session; asserts that they are numbered from 1 on without a hole."""
    found: dict[str, list[bytes]] = {}
    for step in steps:
        if isinstance(step, StripeMessages):
            messages = list(unframe(step.framed))
            known = found.setdefault(step.session, [])
            assert step.first == len(known) + 1
            assert step.count == len(messages)
            known += messages
    return found


@given(st.lists(PAYLOADS, min_size=1, max_size=30), st.lists(st.integers(1, 30), max_size=4), st.integers(1, 7))
def test_how_the_order_is_cut_into_tokens_changes_no_number(payloads: list[bytes], cuts: list[int], block: int) -> None:
    whole, cut = fresh(), fresh()
    one = whole.begin() + whole.deliver(token(1, payloads))
    other = cut.begin()
    edges = sorted({0, len(payloads), *(each for each in cuts if each < len(payloads))})
    for start, end in pairwise(edges):
        other += cut.deliver(token(start + 1, payloads[start:end], block=block))
    expected, found = sessions_of(one), sessions_of(other)
    assert {name: len(messages) for name, messages in found.items()} == {n: len(m) for n, m in expected.items()}
    opaque = edition().session(3)
    assert [decode_opaque(m).payload for m in found[opaque][1:]] == [
        decode_opaque(m).payload for m in expected[opaque][1:]
    ]
    assert {n: m for n, m in found.items() if n != opaque} == {n: m for n, m in expected.items() if n != opaque}


def test_a_large_token_is_numbered_in_slices_of_bounded_work() -> None:
    """Slices change no number: those of a stripe continue, and what is no trade stays behind the trades."""
    payloads = [b"no trade", *(encode(trade(number)) for number in range(3 * SLICE_MAX)), b"neither"]
    whole, cut = fresh(), fresh()
    slices = list(whole.deliver_slices(token(1, payloads)))
    assert [sum(step.count for step in steps if isinstance(step, StripeMessages)) for steps in slices] == [
        SLICE_MAX, SLICE_MAX, SLICE_MAX, 2,
    ]  # fmt: skip
    steps = cut.deliver(token(1, payloads))
    assert steps == [step for each in slices for step in each]
    assert whole.position == cut.position


@given(st.integers(0, 12))
def test_a_sequencer_that_resumes_continues_with_the_same_numbers(place: int) -> None:
    orders = tokens(12, 4)
    whole = fresh()
    steps = whole.begin() + [step for each in orders for step in whole.deliver(each)]
    first = fresh()
    parts = first.begin() + [step for each in orders[:place] for step in first.deliver(each)]
    second = StripeSequencer(first.position)
    parts += [step for step in second.begin() if not isinstance(step, SessionOpened)]
    parts += [step for each in orders[place:] for step in second.deliver(each)]
    assert sessions_of(parts) == sessions_of(steps)
    assert second.position == whole.position


@given(st.integers(0, 5), st.integers(0, 5), st.booleans())
def test_it_does_not_matter_when_changes_become_known(early: int, late: int, plan_first: bool) -> None:
    orders = tokens(8, 3)
    at = orders[5].sequence

    def play(turn_told: int, plan_told: int) -> list[StripeStep]:
        sequencer = fresh()
        steps = sequencer.begin()
        for position, ordered in enumerate(orders):
            for turns in (not plan_first, plan_first):
                if turns and turn_told == position:
                    sequencer.on_formation(formation_change(at, 2))
                elif not turns and plan_told == position:
                    sequencer.change_plan(plan(2), at_sequence=at, at=NOON)
            steps += sequencer.deliver(ordered)
        return steps

    assert play(early, late) == play(5, 5)


def test_one_session_ends_where_the_next_begins() -> None:
    """A customer of both knows the place from either."""
    sequencer = fresh()
    orders = tokens(4, 6)
    steps = sequencer.begin()
    sequencer.change_plan(plan(2, stripes=3), at_sequence=13, at=NOON)
    for ordered in orders:
        steps += sequencer.deliver(ordered)
    found = sessions_of(steps)
    for name, messages in found.items():
        session = SessionName.parse(name)
        assert session is not None
        marks = [decode_mark(message) for message in messages if message[:1] == MARK]
        if session.version == 1:
            assert marks == [Begun(1, 0, 0), Over(13, 2, 0)]
            assert messages[-1][:1] == MARK
        else:
            assert marks == [Begun(13, 1, 0)]
        assert messages[0][:1] == MARK
        numbers = [int.from_bytes(message[36:44], "big") for message in messages if message[:1] == b"P"]
        assert all((number < 13) is (session.version == 1) for number in numbers)
    assert [type(step) for step in steps if not isinstance(step, StripeMessages)] == [
        SessionOpened,
        SessionClosed,
        SessionOpened,
    ]


def test_a_break_begins_new_sessions_even_where_numbers_were_used_before() -> None:
    sequencer = fresh()
    sequencer.begin()
    sequencer.deliver(tokens(1, 9)[0])
    sequencer.on_formation(formation_change(4, 2, broken=True))
    steps = sequencer.deliver(tokens(1, 3, first=4)[0])
    (opened,) = [step for step in steps if isinstance(step, SessionOpened)]
    assert (opened.edition.breaks, opened.edition.sequence, sequencer.sequence) == (1, 4, 7)
    marks = [
        decode_mark(m)
        for step in steps
        if isinstance(step, StripeMessages)
        for m in unframe(step.framed)
        if m[:1] == MARK
    ]
    assert marks.count(Reformed(4, 2, broken=True)) == len(opened.edition.stripes)


def test_a_formation_that_a_break_undid_leaves_no_mark() -> None:
    """A site that had installed it numbers like one that never knew it."""
    orders = tokens(1, 4) + tokens(3, 4, first=3)
    stripers = fresh(), fresh()
    stripers[0].on_formation(formation_change(5, 2))
    found = []
    for sequencer in stripers:
        steps = sequencer.begin()
        sequencer.on_formation(formation_change(3, 3, broken=True))
        for ordered in orders:
            steps += sequencer.deliver(ordered)
        found.append(steps)
    assert found[0] == found[1]


def test_a_hole_in_the_order_stops_it_until_it_resumes() -> None:
    sequencer = fresh()
    orders = tokens(4, 2)
    sequencer.begin()
    assert sequencer.deliver(orders[0])
    assert not sequencer.deliver(orders[0])
    assert sequencer.repeated == 1
    position = sequencer.position
    assert not sequencer.deliver(orders[2])
    assert sequencer.lost
    assert not sequencer.deliver(orders[1])
    sequencer.resume(position)
    assert sequencer.deliver(orders[1])


@given(st.binary(min_size=1_400, max_size=9_000))
def test_fragments_of_long_messages_are_carried_unchanged(message: bytes) -> None:
    bodies = tuple(split_message(message, 1_000))
    count = len(bodies)
    span = Span(7, 1, 1, count, 1, bodies, (1,) * count, (True,) * count)
    sequencer = fresh()
    sequencer.begin()
    found = sessions_of_opaque(sequencer.deliver(Ordered(0, 1, 1, 1, count, NOON, (span,))))
    assembler = Assembler()
    whole = [assembler.add(part.payload) for part in map(decode_opaque, found)]
    assert whole[-1] == message
    assert {decode_opaque(part).source for part in found} == {7}


def sessions_of_opaque(steps: list[StripeStep]) -> list[bytes]:
    return [
        m
        for step in steps
        if isinstance(step, StripeMessages) and step.session == edition().session(3)
        for m in unframe(step.framed)
    ]


@given(st.binary(max_size=5_000), st.integers(1, 2**63), st.booleans())
def test_opaque_payloads_come_back_from_their_parts(payload: bytes, sequence: int, fragment: bool) -> None:
    parts = encode_opaque(payload, sequence=sequence, source=5, fragment=fragment, since=0, size_max=MESSAGE_MAX)
    read = [decode_opaque(part) for part in parts]
    assert b"".join(part.payload for part in read) == payload
    assert [part.part for part in read] == list(range(read[0].parts))
    assert all((part.sequence, part.fragment) == (sequence, fragment) for part in read)
    assert all(len(part) <= MESSAGE_MAX for part in parts)


@given(st.sampled_from([Begun(5, 1, 2), Over(6, 0, 0), Reformed(7, 3, broken=True)]), st.integers(0, 2**48 - 1))
def test_marks_come_back_from_their_bytes(mark: Begun | Over | Reformed, since: int) -> None:
    assert decode_mark(encode_mark(mark, since)) == mark


@given(st.binary(max_size=60))
def test_bytes_that_are_no_mark_are_refused(noise: bytes) -> None:
    for read in (decode_mark, decode_opaque):
        for payload in (noise, b"M" + noise, b"G" + noise):
            try:
                read(payload)
            except BadMark:
                continue


@given(
    st.text("ABCxyz019", min_size=1, max_size=2), st.integers(0, 46_655), st.integers(0, 1_295), st.integers(0, 46_655)
)
def test_session_names_have_ten_characters_and_are_read_back(
    deployment: str, version: int, breaks: int, stripe: int
) -> None:
    session = SessionName(deployment, version, breaks, stripe)
    assert len(str(session)) == 10
    assert SessionName.parse(str(session)) == session


@given(st.text(max_size=12))
def test_other_names_are_no_sessions_of_ours(text: str) -> None:
    parsed = SessionName.parse(text)
    assert parsed is None or str(parsed) == text


@pytest.mark.parametrize(("deployment", "core"), [("", 0), ("ABC", 0), ("_", 0), ("FT", 5)])
def test_an_edition_that_cannot_be_named_is_refused(deployment: str, core: int) -> None:
    with pytest.raises(BadSession):
        Edition(deployment, plan(), core)


def test_a_journal_that_is_read_again_changes_nothing() -> None:
    """A position knows the last formation, and the plan in force which plans are past."""
    orders = tokens(6, 3)
    sequencer = fresh()
    sequencer.begin()
    changes = [formation_change(orders[2].sequence, 2), formation_change(orders[4].sequence, 3, broken=True)]
    for change in changes:
        sequencer.on_formation(change)
    sequencer.change_plan(plan(2), at_sequence=orders[3].sequence, at=NOON)
    for ordered in orders[:5]:
        sequencer.deliver(ordered)
    again = StripeSequencer(sequencer.position)
    for change in changes:
        again.on_formation(change)
    again.change_plan(plan(2), at_sequence=orders[3].sequence, at=NOON)
    assert again.deliver(orders[5]) == sequencer.deliver(orders[5])
    assert again.position == sequencer.position


def test_a_change_that_comes_too_late_stops_it() -> None:
    for is_plan in (False, True):
        sequencer = fresh()
        sequencer.begin()
        sequencer.deliver(tokens(1, 3)[0])
        if is_plan:
            sequencer.change_plan(plan(2), at_sequence=2, at=NOON)
        else:
            sequencer.on_formation(formation_change(2, 2))
        assert sequencer.lost


def test_a_change_is_noted_once_however_often_it_comes() -> None:
    sequencer = fresh()
    sequencer.begin()
    change: FormationChange = formation_change(1, 2)
    sequencer.on_formation(change)
    sequencer.on_formation(change)
    marks = [step for step in sequencer.deliver(tokens(1, 1)[0]) if isinstance(step, StripeMessages) and step.size == 0]
    assert len(marks) == len(edition().stripes)


def test_cancels_and_corrections_are_plain_itch_messages() -> None:
    """They are in the stripe of their trade, at their place between the trades of the order."""
    wrong, right = trade(6, "IBM"), trade(600, "IBM")
    payloads = [
        encode(trade(5, "IBM")),
        encode(wrong),
        encode_notice(CancelNotice(1, "XLON", "IBM", NOON)),
        encode(trade(7, "IBM")),
        encode_notice(CorrectionNotice(2, right, NOON + 1)),
        encode_notice(StatusNotice("XNYS", Status.HALTED, NOON)),
        encode(trade(8, "IBM")),
        encode_notice(CancelNotice(99, "ELSEWHERE", "STRANGER", NOON + 10**18)),
    ]
    sequencer = fresh()
    steps = sequencer.begin() + sequencer.deliver(token(1, payloads))
    stripes = {edition().session(stripe.number): stripe for stripe in edition().stripes}
    decoded: dict[int, list[object]] = {}
    for session, messages in sessions_of(steps).items():
        reader = TickerReader(midnight_at=MIDNIGHT)
        stripe = stripes[session]
        if not stripe.opaque:
            decoded[stripe.number] = [reader.read(message) for message in messages if message[:1] not in (MARK, b"S")]
    at_ibm = decoded[edition().plan.edge_of("IBM", 0)]
    assert [each for each in at_ibm if isinstance(each, PrintedTrade | CanceledPrint)][:6] == [
        PrintedTrade(1, trade(5, "IBM")),
        PrintedTrade(2, wrong),
        CanceledPrint(1, NOON, Listing("IBM", "XLON")),
        PrintedTrade(4, trade(7, "IBM")),
        CanceledPrint(2, NOON + 1, Listing("IBM", right.venue_name), corrected=True),
        PrintedTrade(5, right),
    ]
    at_stranger = decoded[edition().plan.edge_of("STRANGER", 0)]
    assert [each.number for each in at_stranger if isinstance(each, CanceledPrint)][-1] == 99
    opaque = sessions_of(steps)[edition().session(3)]
    assert [decode_opaque(message).sequence for message in opaque[1:]] == [6]


@pytest.mark.parametrize("payload", [b"x" * 64, b"no trade"])
def test_messages_that_are_no_trades_are_numbered_in_small_slices(payload: bytes) -> None:
    """They cost more, and any source may send them."""
    slices = list(fresh().deliver_slices(token(1, [payload] * 5 * OTHERS_MAX)))
    assert len(slices) >= 5
    messages = [step.count for steps in slices for step in steps if isinstance(step, StripeMessages)]
    assert max(messages) <= OTHERS_MAX
    assert sum(messages) == 5 * OTHERS_MAX

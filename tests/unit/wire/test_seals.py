"""Seals, authenticators, marks and the replay window: authenticity and replays.

That one nonce never covers two texts is not tested but built in: the key is derived for one (stripe, source,
incarnation), the nonce is (source, first message number), a source numbers every message once per incarnation, and
a resend is the very same bytes. What is tested is that each of these four really separates.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairtape.wire.frames import (
    BLOCK_HEADER,
    TAG_SIZE,
    BlockFrame,
    Control,
    Malformed,
    Range,
    encode_block_header,
    encode_control,
)
from fairtape.wire.seals import (
    KEY_SIZE,
    MARK_SIZE,
    REPLAY_WINDOW,
    SEAL_OVERHEAD,
    Authenticator,
    Keys,
    Marker,
    ReplayWindow,
    Seal,
    derive,
)
from unit.wire import wire_values as wire

KEY = bytes(range(KEY_SIZE))
OTHER_KEY = bytes(KEY_SIZE)
FRAME = BlockFrame(0, 3, 4, 5, 6, 7)
NAMED = Range(1, 2, 3, 4)

bodies = st.binary(min_size=1, max_size=60)


def seal_of(frame: BlockFrame, key: bytes = KEY) -> Seal:
    return Seal(key, stripe=frame.stripe, source=frame.source, incarnation=frame.incarnation)


def sealed(frame: BlockFrame, body: bytes, key: bytes = KEY) -> bytes:
    header = encode_block_header(frame.flags, frame.stripe, frame.source, frame.incarnation, frame.first, frame.count)
    return seal_of(frame, key).close(header, frame.first, body)


def flips(datagram: bytes) -> list[bytes]:
    """The datagram with each one of its bits flipped in turn."""
    whole = int.from_bytes(datagram)
    return [(whole ^ 1 << bit).to_bytes(len(datagram)) for bit in range(8 * len(datagram))]


# Source blocks.


@given(wire.blocks(), bodies, wire.keys)
def test_a_sealed_block_opens_to_its_body(frame: BlockFrame, body: bytes, key: bytes) -> None:
    datagram = sealed(frame, body, key)
    assert len(datagram) == len(body) + SEAL_OVERHEAD
    assert seal_of(frame, key).open(datagram, frame.first) == body


@settings(max_examples=10)
@given(wire.blocks(), bodies)
def test_a_flipped_bit_anywhere_in_a_sealed_block_is_detected(frame: BlockFrame, body: bytes) -> None:
    seal = seal_of(frame)
    for damaged in flips(sealed(frame, body)):
        with pytest.raises(Malformed, match="wrong seal"):
            seal.open(damaged, frame.first)


@given(st.binary(max_size=120), wire.numbers)
def test_arbitrary_bytes_under_a_seal_raise_nothing_but_malformed(noise: bytes, first: int) -> None:
    with pytest.raises(Malformed):
        seal_of(FRAME).open(noise, first)


@given(bodies, st.data())
def test_a_truncated_sealed_block_is_refused(body: bytes, data: st.DataObject) -> None:
    datagram = sealed(FRAME, body)
    with pytest.raises(Malformed):
        seal_of(FRAME).open(datagram[: data.draw(st.integers(0, len(datagram) - 1))], FRAME.first)


@pytest.mark.parametrize(
    "other", [FRAME._replace(stripe=9), FRAME._replace(source=9), FRAME._replace(incarnation=9)], ids=str
)
def test_a_block_opens_only_for_its_stripe_source_and_incarnation(other: BlockFrame) -> None:
    with pytest.raises(Malformed):
        seal_of(other).open(sealed(FRAME, b"body"), FRAME.first)


def test_a_block_opens_only_under_its_key_and_its_number() -> None:
    datagram = sealed(FRAME, b"body")
    with pytest.raises(Malformed):
        seal_of(FRAME, OTHER_KEY).open(datagram, FRAME.first)
    with pytest.raises(Malformed):
        seal_of(FRAME).open(datagram, FRAME.first + 1)


@given(wire.blocks(), wire.blocks(), bodies)
def test_blocks_of_another_number_stripe_source_or_incarnation_share_no_key_stream(
    one: BlockFrame, other: BlockFrame, body: bytes
) -> None:
    """Equal key and nonce would give equal streams, hence equal sealed bodies for equal bodies."""
    body = body.ljust(16, b".")
    streams = {sealed(frame, body)[BLOCK_HEADER.size : -TAG_SIZE] for frame in (one, other)}
    places = {(frame.stripe, frame.source, frame.incarnation, frame.first) for frame in (one, other)}
    assert len(streams) == len(places)


def test_a_resent_block_is_the_very_same_bytes() -> None:
    assert sealed(FRAME, b"body") == sealed(FRAME, b"body")


def test_the_body_of_a_block_is_unreadable() -> None:
    assert b"secret price" not in sealed(FRAME, b"secret price")


# Control datagrams.


@given(wire.controls, wire.serials, wire.keys)
def test_a_proved_control_datagram_holds(message: Control, serial: int, key: bytes) -> None:
    text = encode_control(message, serial)
    datagram = Authenticator(key).prove(text)
    assert datagram[:-TAG_SIZE] == text
    assert Authenticator(key).holds(datagram)


@settings(max_examples=10)
@given(wire.controls, wire.serials)
def test_a_flipped_bit_anywhere_in_a_control_datagram_is_detected(message: Control, serial: int) -> None:
    authenticator = Authenticator(KEY)
    assert not any(map(authenticator.holds, flips(authenticator.prove(encode_control(message, serial)))))


@given(st.binary(max_size=120))
def test_arbitrary_bytes_never_hold(noise: bytes) -> None:
    assert not Authenticator(KEY).holds(noise)


def test_a_control_datagram_holds_only_under_its_key() -> None:
    assert not Authenticator(OTHER_KEY).holds(Authenticator(KEY).prove(b"text"))


def test_proving_one_text_leaves_no_trace_in_the_next_proof() -> None:
    busy = Authenticator(KEY)
    busy.prove(b"something else")
    assert busy.prove(b"text") == Authenticator(KEY).prove(b"text")


# Marks.


def test_a_mark_depends_on_every_field_that_it_covers() -> None:
    marker = Marker(KEY, stripe=0)
    ranges = [NAMED, *(NAMED._replace(**{name: 99}) for name in ("source", "incarnation", "first", "count"))]
    marks = [marker.mark(1, 2, 3, named) for named in ranges]
    marks += [marker.mark(*place, NAMED) for place in ((9, 2, 3), (1, 9, 3), (1, 2, 9))]
    marks += [marker.mark(1, 2, 3, NAMED, release_lag_us=1), marker.mark(1, 2, 3, NAMED, backlog_us=1)]
    for other in (Marker(OTHER_KEY, stripe=0), Marker(KEY, stripe=1)):
        marks += [other.mark(1, 2, 3, NAMED)]
    assert len(set(marks)) == len(marks)
    assert {len(mark) for mark in marks} == {MARK_SIZE}


@given(wire.formations, wire.numbers, wire.numbers, wire.ranges(), wire.keys)
def test_a_mark_is_the_same_each_time(formation: int, token: int, sequence: int, named: Range, key: bytes) -> None:
    marker = Marker(key, stripe=0)
    first, again = (marker.mark(formation, token, sequence, named, release_lag_us=7, backlog_us=8) for _ in range(2))
    assert first == again


# Keys.


def test_every_node_has_a_key_of_its_own_even_where_a_site_is_also_a_source() -> None:
    keys = Keys.from_secret(b"secret", range(5), range(5))
    every = [*keys.sites.values(), *keys.sources.values()]
    assert len(set(every)) == 10
    assert {len(key) for key in every} == {KEY_SIZE}


def test_a_source_is_given_its_own_key_and_no_other() -> None:
    keys = Keys.from_secret(b"secret", (1, 2), (3, 4))
    assert keys.for_source(3) == Keys({}, {3: keys.sources[3]})


def test_another_secret_or_purpose_or_context_is_another_key() -> None:
    derived = {
        derive(*parts) for parts in [(b"a", b"b", b"c"), (b"x", b"b", b"c"), (b"a", b"x", b"c"), (b"a", b"b", b"x")]
    }
    assert len(derived) == 4


# The replay window.


class SetWindow:
    """The model: remembers everything."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    def accept(self, serial: int) -> bool:
        new = serial not in self.seen and serial > max(self.seen, default=-1) - REPLAY_WINDOW
        if new:
            self.seen.add(serial)
        return new


# Small numbers meet often; steps around the window's width meet its edge; the rest are far jumps.
steps = st.integers(-8, 8) | st.sampled_from([REPLAY_WINDOW - 1, REPLAY_WINDOW, REPLAY_WINDOW + 1]) | wire.serials


@given(st.lists(steps, max_size=60), st.booleans())
def test_the_replay_window_decides_as_a_set_that_remembers_everything(walk: list[int], backwards: bool) -> None:
    window, twin = ReplayWindow(), SetWindow()
    serial = 0
    for step in walk:
        serial = max(0, serial + step) if step < 1 << 20 else step
        for each in (serial, max(0, serial - REPLAY_WINDOW + (1 if backwards else 0))):
            assert window.accept(each) == twin.accept(each)


@given(wire.serials)
def test_a_serial_is_accepted_once(serial: int) -> None:
    window = ReplayWindow()
    assert window.accept(serial)
    assert not window.accept(serial)


def test_serials_in_any_order_within_the_window_are_all_accepted_once() -> None:
    window = ReplayWindow()
    backwards = list(reversed(range(REPLAY_WINDOW)))
    assert all(map(window.accept, backwards))
    assert not any(map(window.accept, backwards))


def test_a_serial_older_than_the_window_is_refused_unseen() -> None:
    window = ReplayWindow()
    assert window.accept(REPLAY_WINDOW)
    assert window.accept(1)
    assert not window.accept(0)

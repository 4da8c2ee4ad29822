"""Block bodies: unpacking inverts packing, and raises nothing but `Malformed`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.wire.blocks import (
    MESSAGE_MAX,
    Assembler,
    check_body,
    fitting_count,
    message_max,
    pack_messages,
    pack_records,
    records_max,
    split_message,
    uniform_records,
    unpack_messages,
)
from fairtape.wire.frames import COUNT_MAX, DATAGRAM_LIMIT, Malformed

FRAGMENT_HEAD = 8  # length and offset, four bytes each

rooms = st.integers(64, 2_000)
message_lists = st.lists(st.binary(max_size=40), min_size=1, max_size=20)
uniform_lists = st.integers(1, 40).flatmap(
    lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=20)
)


def fragment(length: int, offset: int, chunk: bytes) -> bytes:
    return length.to_bytes(4) + offset.to_bytes(4) + chunk


def assemble(bodies: list[bytes]) -> list[bytes | None]:
    assembler = Assembler()
    return [assembler.add(body) for body in bodies]


# Packing and unpacking.


@given(message_lists | uniform_lists)
def test_messages_survive_the_body(messages: list[bytes]) -> None:
    body = pack_messages(messages)
    check_body(body, len(messages), fragment=False)
    assert unpack_messages(body, len(messages)) == messages


@given(uniform_lists)
def test_records_of_one_size_are_the_same_body_as_messages_of_that_size(records: list[bytes]) -> None:
    size = len(records[0])
    body = pack_records(b"".join(records), size)
    assert body == pack_messages(records)
    view = uniform_records(body, len(records))
    assert view is not None
    assert (view[0], bytes(view[1])) == (size, b"".join(records))


@given(message_lists)
def test_a_uniform_view_exists_exactly_where_all_sizes_are_equal(messages: list[bytes]) -> None:
    equal = len({len(message) for message in messages}) == 1 and messages[0] != b""
    assert (uniform_records(pack_messages(messages), len(messages)) is not None) is equal


def test_a_body_may_hold_empty_messages_and_as_many_as_can_be_counted() -> None:
    body = pack_messages([b""] * COUNT_MAX)
    assert unpack_messages(body, COUNT_MAX) == [b""] * COUNT_MAX


# How much fits.


@given(message_lists, rooms)
def test_fitting_messages_stay_within_the_size(messages: list[bytes], size_max: int) -> None:
    taken = fitting_count(messages, size_max)
    assert taken == 0 or len(pack_messages(messages[:taken])) <= size_max


@given(message_lists, rooms)
def test_one_message_more_than_fits_would_not_fit_with_its_table(messages: list[bytes], size_max: int) -> None:
    taken = fitting_count(messages, size_max)
    more = messages[: taken + 1]
    assert taken == len(messages) or 2 + sum(2 + len(message) for message in more) > size_max


@given(rooms, st.integers(-2, 2))
def test_the_longest_unfragmented_message_is_the_one_that_just_fits(size_max: int, excess: int) -> None:
    message = bytes(message_max(size_max) + excess)
    assert fitting_count([message], size_max) == (excess <= 0)


@given(st.integers(2, DATAGRAM_LIMIT), st.integers(1, 1_000))
def test_records_fill_the_body_as_far_as_they_fit(size_max: int, size: int) -> None:
    count = records_max(size_max, size)
    assert len(pack_records(bytes(count * size), size)) <= size_max
    assert count == COUNT_MAX or len(pack_records(bytes((count + 1) * size), size)) > size_max


def test_no_more_messages_fit_than_can_be_counted() -> None:
    assert fitting_count([b""] * (COUNT_MAX + 1), 1 << 20) == COUNT_MAX
    assert records_max(1 << 20, 1) == COUNT_MAX


# Hostile bodies.


@given(st.binary(max_size=80), st.integers(0, COUNT_MAX), st.booleans())
def test_an_arbitrary_body_raises_nothing_but_malformed(noise: bytes, count: int, is_fragment: bool) -> None:
    try:
        check_body(noise, count, fragment=is_fragment)
    except Malformed:
        return
    if not is_fragment:
        assert len(unpack_messages(noise, count)) == count


@given(st.binary(max_size=80), st.integers(0, 40))
def test_every_reader_of_a_body_agrees_whether_it_is_malformed(noise: bytes, count: int) -> None:
    verdicts = set()
    for read in (lambda: check_body(noise, count, fragment=False), lambda: unpack_messages(noise, count)):
        try:
            read()
            verdicts.add("fine")
        except Malformed:
            verdicts.add("malformed")
    assert len(verdicts) == 1
    view = uniform_records(noise, count)
    if view is not None:
        size, records = view
        assert [bytes(records[at : at + size]) for at in range(0, len(records), size)] == unpack_messages(noise, count)


@given(message_lists, st.integers(1, 3))
def test_a_body_that_holds_another_count_than_its_header_says_is_refused(messages: list[bytes], excess: int) -> None:
    # A message of zeros could pass for a longer table, so these hold none.
    body = pack_messages([b"\xff" * (1 + len(message)) for message in messages])
    for count in (len(messages) + excess, len(messages) - excess):
        if count >= 0:
            with pytest.raises(Malformed):
                unpack_messages(body, count)


@given(message_lists, st.data())
def test_a_truncated_or_extended_body_is_refused(messages: list[bytes], data: st.DataObject) -> None:
    body = pack_messages(messages)
    for wrong in (body[: data.draw(st.integers(0, len(body) - 1))], body + b"x"):
        with pytest.raises(Malformed):
            unpack_messages(wrong, len(messages))


@pytest.mark.parametrize("size", range(FRAGMENT_HEAD + 1))
def test_an_empty_fragment_is_refused(size: int) -> None:
    with pytest.raises(Malformed, match="empty fragment"):
        check_body(bytes(size), 1, fragment=True)
    assert assemble([bytes(size)]) == [None]


# Long messages.


@given(st.binary(min_size=1, max_size=600), st.integers(FRAGMENT_HEAD + 1, 200))
def test_a_long_message_comes_back_with_its_last_fragment(message: bytes, size_max: int) -> None:
    bodies = list(split_message(message, size_max))
    for body in bodies:
        check_body(body, 1, fragment=True)
        assert len(body) <= size_max
    assert assemble(bodies) == [None] * (len(bodies) - 1) + [message]


def test_the_longest_message_comes_back_and_a_longer_one_does_not() -> None:
    for size, comes_back in ((MESSAGE_MAX, True), (MESSAGE_MAX + 1, False)):
        last = assemble(list(split_message(bytes(size), 1_300)))[-1]
        assert (last is not None) is comes_back


@given(st.lists(st.binary(min_size=1, max_size=100), min_size=1, max_size=5))
def test_one_assembler_serves_one_long_message_after_another(messages: list[bytes]) -> None:
    bodies = [body for message in messages for body in split_message(message, 40)]
    assert [whole for whole in assemble(bodies) if whole is not None] == messages


@given(st.binary(min_size=40, max_size=200), st.data())
def test_a_message_that_lost_a_fragment_is_dropped_and_the_next_one_is_whole(
    message: bytes, data: st.DataObject
) -> None:
    bodies = list(split_message(message, 24))
    del bodies[data.draw(st.integers(0, len(bodies) - 1))]
    following = list(split_message(b"whole again", 24))
    assert [whole for whole in assemble(bodies + following) if whole is not None] == [b"whole again"]


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_arbitrary_fragments_give_nothing_longer_than_they_are(noise: list[bytes]) -> None:
    for whole in assemble(noise):
        assert whole is None or len(whole) <= min(MESSAGE_MAX, sum(map(len, noise)))


@pytest.mark.parametrize(
    "body",
    [
        fragment(0, 0, b"x"),  # longer than its length field
        fragment(2, 0, b"xyz"),
        fragment(9, 5, b"x"),  # not where the last one ended
        fragment(MESSAGE_MAX + 1, 0, b"x"),
    ],
)
def test_a_fragment_out_of_place_discards_the_parts(body: bytes) -> None:
    first, last = fragment(4, 0, b"ab"), fragment(4, 2, b"cd")
    assert assemble([first, body, last]) == [None, None, None]
    assert assemble([first, body, first, last]) == [None, None, None, b"abcd"]

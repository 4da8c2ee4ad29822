"""The FIX session, rule by rule: each test is a row of the specification's table of scenarios."""

import pytest

from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.formats.fix.codec import encode
from fairtape.formats.fix.fields import format_instant
from fairtape.formats.fix.order_messages import write
from fairtape.gateway.session.effects import LoggedOff, LoggedOn, MessageRejected
from fairtape.gateway.session.fix_session import RESEND_BATCH_MAX, FixOptions, FixState
from unit.gateway.fix_world import ANN_KNOWS, SECRET, START, Pair, RawClient, fields, order, report

ORDER = tuple(write(order("A"))[1:])
FIRST_SENT = format_instant(START - SECOND)
ODD = FixOptions(username="ann", password=SECRET.upper())


def test_both_sides_log_on_and_stay() -> None:
    pair = Pair()
    pair.connect()
    assert pair.logged_on
    assert [type(event) for event in pair.floor.events] == [LoggedOn]
    pair.wait(300 * SECOND)
    assert pair.logged_on
    assert pair.floor.store.next_in == pair.ann.store.next_out >= 10  # a heartbeat every 30 s
    assert pair.ann.store.next_in == pair.floor.store.next_out


def test_the_answer_to_a_logon_repeats_the_interval() -> None:
    client = RawClient()
    (answer,) = client.log_on()
    assert fields(answer, 35, 49, 56, 34, 98, 108, 141) == (b"A", b"FLOOR", b"ANN", b"1", b"0", b"30", None)


def test_a_wrong_password_is_answered_and_changes_nothing_of_the_clients() -> None:
    pair = Pair(ann=ODD)
    pair.connect()
    assert pair.floor.disconnects == ["wrong user name or password"]
    assert pair.floor.store.next_in == 1
    assert pair.ann.events == [LoggedOff("the logon was refused: wrong user name or password")]
    rightful = RawClient()
    rightful.say(b"A", 1, (98, b"0"), (108, b"30"), (553, b"ann"), (554, b"guess"))
    rightful.session.connected(rightful.now)
    logon, *_ = rightful.log_on(1)
    assert fields(logon, 35, 34) == (b"A", b"2")  # the refusal had number 1
    (filled,) = rightful.say(b"2", 2, (7, b"1"), (16, b"0"))
    assert fields(filled, 35, 34, 123, 36) == (b"4", b"1", b"Y", b"3")


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (((98, b"1"), (108, b"30")), b"EncryptMethod (98) must be 0"),
        (((98, b"0"), (108, b"0")), b"HeartBtInt (108) is 0; it must be from 1 to 300"),
        (((98, b"0"), (108, b"301")), b"HeartBtInt (108) is 301; it must be from 1 to 300"),
        (((98, b"0"), (108, b"30"), (141, b"Y")), b"ResetSeqNumFlag (141) is Y; MsgSeqNum (34) must then be 1"),
    ],
)
def test_a_logon_with_invalid_settings_is_refused(more: tuple[tuple[int, bytes], ...], text: bytes) -> None:
    client = RawClient()
    (logout,) = client.say(b"A", 2, *more, (553, b"ann"), (554, SECRET.encode()))
    assert fields(logout, 35, 58) == (b"5", text)
    assert client.disconnects
    assert client.store.next_in == 1


@pytest.mark.parametrize("kind", [b"D", b"0", b"5", b"2"])
def test_a_client_that_does_not_log_on_first_gets_no_answer(kind: bytes) -> None:
    client = RawClient()
    assert client.say(kind, 1, *ORDER) == []
    assert client.disconnects == ["the first message must be a Logon"]
    assert (client.store.next_in, client.store.next_out) == (1, 1)


def test_a_connection_without_a_logon_is_closed() -> None:
    client = RawClient()
    assert client.session.deadline() == START + 10 * SECOND
    client.session.wake(START + 10 * SECOND - 1)
    assert client.session.drain() == []
    client.session.wake(START + 10 * SECOND)
    assert client.answers() == []
    assert client.disconnects == ["no Logon came in time"]


def test_silence_is_tested_and_then_ends_the_connection() -> None:
    client = RawClient()
    client.log_on()
    client.now += 30 * SECOND
    client.session.wake(client.now)
    assert [message.msg_type for message in client.answers()] == [b"0"]
    client.now += 6 * SECOND
    assert client.session.deadline() == client.now
    client.session.wake(client.now)
    (test,) = client.answers()
    assert test.msg_type == b"1"
    client.now += 36 * SECOND
    client.session.wake(client.now)
    client.answers()
    assert client.disconnects == ["the other side is silent"]


def test_an_answered_test_keeps_the_connection() -> None:
    client = RawClient()
    client.log_on()
    client.now += 36 * SECOND
    client.session.wake(client.now)
    (test,) = client.answers()
    client.say(b"0", 2, (112, test.get(112) or b""))
    client.now += 35 * SECOND
    client.session.wake(client.now)
    assert client.session.state is FixState.LOGGED_ON


def test_a_test_request_is_answered_with_its_name() -> None:
    client = RawClient()
    client.log_on()
    (answer,) = client.say(b"1", 2, (112, b"are you there"))
    assert fields(answer, 35, 112) == (b"0", b"are you there")


def test_junk_does_not_keep_a_connection() -> None:
    client = RawClient()
    client.log_on()
    due_at = client.session.deadline()
    client.now += SECOND
    client.send(b"noise" * 100)
    assert client.session.deadline() == due_at
    assert client.session.counts.junk == 500


def test_a_gap_is_requested_once_and_early_messages_are_dropped() -> None:
    client = RawClient()
    client.log_on()
    (ask,) = client.say(b"D", 4, *ORDER)
    assert fields(ask, 35, 7, 16) == (b"2", b"2", b"0")
    assert client.say(b"D", 5, *ORDER) == []
    repeated = ((43, b"Y"), (122, FIRST_SENT))
    for number in (2, 3, 4, 5):
        assert client.say(b"D", number, *ORDER, header=repeated) == []
    assert [(each.number, each.repeated) for each in client.received] == [(n, True) for n in (2, 3, 4, 5)]
    (ask,) = client.say(b"D", 8, *ORDER)  # another gap, another request
    assert fields(ask, 7) == (b"6",)


def test_a_gap_is_requested_again_without_progress() -> None:
    client = RawClient()
    client.log_on()
    client.say(b"D", 4, *ORDER)
    client.now += 5 * SECOND - MILLISECOND
    assert client.say(b"D", 5, *ORDER) == []
    client.now += MILLISECOND
    (ask,) = client.say(b"D", 6, *ORDER)
    assert fields(ask, 35, 7) == (b"2", b"2")


def test_a_logon_with_a_gap_is_accepted_and_the_gap_requested() -> None:
    client = RawClient()
    logon, ask = client.log_on(7)
    assert logon.msg_type == b"A"
    assert fields(ask, 35, 7, 16) == (b"2", b"1", b"0")
    assert client.say(b"4", 1, (36, b"8"), (123, b"Y"), header=((43, b"Y"),)) == []
    assert client.store.next_in == 8


def test_a_number_too_low_ends_the_session_unless_it_is_a_repetition() -> None:
    client = RawClient()
    client.log_on()
    client.say(b"D", 2, *ORDER)
    assert client.say(b"D", 2, *ORDER, header=((43, b"Y"), (122, FIRST_SENT))) == []
    assert len(client.received) == 1
    (logout,) = client.say(b"D", 2, *ORDER)
    assert fields(logout, 35, 58) == (b"5", b"MsgSeqNum too low, expecting 3 but received 2")
    assert client.session.state is FixState.DISCONNECTED


def test_a_logon_with_a_number_too_low_is_refused() -> None:
    client = RawClient()
    client.store.expect(9)
    (logout,) = client.log_on(3)
    assert fields(logout, 35, 58) == (b"5", b"MsgSeqNum too low, expecting 9 but received 3")


@pytest.mark.parametrize("number", [None, 0])
def test_a_message_without_a_number_ends_the_session(number: int | None) -> None:
    client = RawClient()
    client.log_on()
    (logout,) = client.say(b"D", number, *ORDER)
    assert fields(logout, 35, 58) == (b"5", b"MsgSeqNum (34) is missing or not a number")


def test_messages_are_resent_with_poss_dup_and_gap_fills() -> None:
    client = RawClient()
    client.log_on()
    for name in ("A", "B"):
        client.session.send(report(name), client.now)  # 2, 3
    client.say(b"1", 2, (112, b"x"))  # answered by 4
    client.session.send(report("C"), client.now)  # 5
    client.answers()
    sent, client.now = client.now, client.now + SECOND
    answers = client.say(b"2", 3, (7, b"1"), (16, b"0"))
    assert [fields(each, 35, 34, 36) for each in answers] == [
        (b"4", b"1", b"2"),
        (b"8", b"2", None),
        (b"8", b"3", None),
        (b"4", b"4", b"5"),
        (b"8", b"5", None),
    ]
    assert all(each.get(43) == b"Y" for each in answers)
    assert fields(answers[1], 11, 122, 52) == (b"A", format_instant(sent), format_instant(client.now))
    client.now += SECOND
    (only,) = client.say(b"2", 4, (7, b"3"), (16, b"3"))
    assert fields(only, 11) == (b"B",)
    assert client.store.next_out == 6


def test_a_long_resend_is_split_as_the_connection_accepts_it() -> None:
    client = RawClient()
    client.log_on()
    for number in range(1_000):
        client.session.send(report(f"R{number}"), client.now)
    client.answers()
    asked = [client.octets(b"2", 2 + place, (7, b"2"), (16, b"0")) for place in range(50)]
    found = client.send(b"".join(asked))
    assert len(found) == RESEND_BATCH_MAX  # once, however many requests came
    assert client.session.deadline() == 0
    client.session.send(report("new"), client.now)
    assert client.answers() == []  # it follows what is resent
    client.session.set_write_blocked(blocked=True)
    client.session.wake(client.now)
    assert client.answers() == []
    assert client.session.deadline() > client.now
    client.session.set_write_blocked(blocked=False)
    while client.session.deadline() == 0:
        client.session.wake(client.now)
        found += client.answers()
    assert [each.get(34) for each in found][-1] == b"1002"
    start = max(place for place, each in enumerate(found) if each.get(34) == b"2")
    names = [(each.get(11) or b"").decode() for each in found[start:] if each.msg_type == b"8"]
    assert names == [*(f"R{number}" for number in range(1_000)), "new"]


def test_messages_no_longer_stored_are_gap_filled() -> None:
    pair = Pair(messages_max=2)
    pair.connect()
    pair.cut()
    for name in "ABCDE":
        pair.floor.session.send(report(name), pair.now)
    pair.connect()
    assert pair.ann.names == ["D", "E"]
    assert pair.ann.store.next_in == pair.floor.store.next_out


@pytest.mark.parametrize(("first", "last"), [(9, 0), (2, 1)])
def test_a_resend_request_for_unsent_numbers_is_rejected(first: int, last: int) -> None:
    client = RawClient()
    client.log_on()
    client.session.send(report("A"), client.now)
    client.answers()
    (reject,) = client.say(b"2", 2, (7, b"%d" % first), (16, b"%d" % last))
    assert fields(reject, 35, 45, 371, 373) == (b"3", b"2", b"7", b"5")


def test_an_early_resend_request_is_served_at_once() -> None:
    client = RawClient()
    client.log_on()
    client.session.send(report("A"), client.now)
    client.answers()
    again, ask = client.say(b"2", 5, (7, b"2"), (16, b"0"))
    assert fields(again, 35, 34, 43) == (b"8", b"2", b"Y")
    assert fields(ask, 35, 7) == (b"2", b"2")


def test_a_reset_of_the_sequence_counts_whatever_its_number_is() -> None:
    client = RawClient()
    client.log_on()
    assert client.say(b"4", 1, (36, b"50")) == []
    assert client.store.next_in == 50
    (reject,) = client.say(b"4", 50, (36, b"49"))
    assert fields(reject, 35, 371, 373) == (b"3", b"36", b"5")
    assert client.store.next_in == 50
    (reject,) = client.say(b"4", 50, (36, b"9223372036854775807"))
    assert fields(reject, 35, 371, 373) == (b"3", b"36", b"5")
    assert client.store.next_in == 50


def test_a_gap_fill_goes_forward_only() -> None:
    client = RawClient()
    client.log_on()
    (reject,) = client.say(b"4", 2, (36, b"2"), (123, b"Y"))
    assert fields(reject, 35, 371, 373) == (b"3", b"36", b"5")
    assert client.store.next_in == 3


def test_a_logon_may_reset_both_numbers() -> None:
    client = RawClient()
    client.store.expect(9)
    client.session.send(report("A"), client.now)
    (logon,) = client.log_on(1, (141, b"Y"))
    assert fields(logon, 35, 34, 141) == (b"A", b"1", b"Y")
    assert (client.store.next_in, client.store.next_out) == (2, 2)
    pair = Pair(ann=FixOptions(username="ann", password=SECRET, reset_on_logon=True))
    for _ in range(3):
        pair.connect()
        assert pair.logged_on
        assert pair.floor.store.next_in == 2
        pair.cut()


def test_a_second_logon_may_reset_and_nothing_else() -> None:
    client = RawClient()
    client.log_on()
    client.say(b"D", 2, *ORDER)
    (logon,) = client.log_on(1, (141, b"Y"))
    assert fields(logon, 34, 141) == (b"1", b"Y")
    client.say(b"D", 2, *ORDER)
    assert len(client.received) == 2
    (logout,) = client.log_on(3)
    assert logout.msg_type == b"5"


@pytest.mark.parametrize(
    ("body", "reason", "tag"),
    [
        ((*ORDER, (55, b"B")), b"13", b"55"),
        ((*ORDER, (50, b"B")), b"14", b"50"),
        ((*ORDER, (957, b"B")), b"0", b"957"),
    ],
)
def test_a_flawed_message_is_rejected_and_its_number_used(
    body: tuple[tuple[int, bytes], ...], reason: bytes, tag: bytes
) -> None:
    client = RawClient()
    client.log_on()
    (reject,) = client.say(b"D", 2, *body)
    assert fields(reject, 35, 45, 371, 372, 373) == (b"3", b"2", tag, b"D", reason)
    assert client.received == []
    assert client.say(b"D", 3, *ORDER) == []
    assert len(client.received) == 1


def test_unsupported_and_undefined_types_are_rejected() -> None:
    client = RawClient()
    client.log_on()
    (business,) = client.say(b"V", 2, (262, b"x"))
    assert fields(business, 35, 45, 372, 380) == (b"j", b"2", b"V", b"3")
    (reject,) = client.say(b"ZZ", 3)
    assert fields(reject, 35, 45, 373) == (b"3", b"3", b"11")


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({49: b"EVE"}, b"9"),
        ({56: b"EVE"}, b"9"),
        ({49: b""}, b"9"),
        ({52: b""}, b"1"),
        ({52: b"now"}, b"6"),
        ({52: format_instant(START - 121 * SECOND)}, b"10"),
        ({52: format_instant(START + 121 * SECOND)}, b"10"),
        ({43: b"Y", 122: format_instant(START + SECOND)}, b"10"),
    ],
)
def test_an_invalid_header_is_rejected_and_ends_the_session(header: dict[int, bytes], reason: bytes) -> None:
    client = RawClient()
    client.log_on()
    reject, logout = client.say(b"D", 2, *ORDER, header=header.items())
    assert fields(reject, 35, 373) == (b"3", reason)
    assert logout.msg_type == b"5"
    assert client.received == []
    before = RawClient()
    assert before.say(b"A", 1, (98, b"0"), (108, b"30"), header=header.items()) == []
    assert before.disconnects


def test_another_version_ends_the_session() -> None:
    client = RawClient()
    client.log_on()
    octets = encode([(35, b"0"), (49, b"ANN"), (56, b"FLOOR"), (34, b"2"), (52, b"x")], begin_string=b"FIX.4.2")
    (logout,) = client.send(octets)
    assert fields(logout, 35, 58) == (b"5", b"BeginString (8) must be FIX.4.4")


def test_a_repetition_must_say_when_it_was_first_sent() -> None:
    client = RawClient()
    client.log_on()
    (reject,) = client.say(b"D", 2, *ORDER, header=((43, b"Y"),))
    assert fields(reject, 35, 371, 373) == (b"3", b"122", b"1")
    assert client.received == []


def test_a_possible_resend_is_marked_for_the_application() -> None:
    client = RawClient()
    client.log_on()
    client.say(b"D", 2, *ORDER, header=((97, b"Y"),))
    client.say(b"D", 3, *ORDER)
    assert [(each.repeated, each.resent) for each in client.received] == [(False, True), (False, False)]


def test_a_reject_of_our_message_is_reported_to_the_application() -> None:
    client = RawClient()
    client.log_on()
    client.say(b"3", 2, (45, b"1"), (373, b"5"))
    client.say(b"j", 3, (372, b"8"), (380, b"0"))
    assert sum(isinstance(effect, MessageRejected) for effect in client.effects) == 2


def test_both_sides_may_log_out() -> None:
    for leaver in (0, 1):
        pair = Pair()
        pair.connect()
        pair.sides[leaver].session.logout("enough", pair.now)
        pair.run()
        assert [side.session.state for side in pair.sides] == [FixState.DISCONNECTED] * 2
        assert all(side.disconnects for side in pair.sides)
        pair.connect()
        assert pair.logged_on


def test_the_wait_for_a_logout_answer_is_limited() -> None:
    client = RawClient()
    client.log_on()
    client.session.logout(None, client.now)
    assert client.session.deadline() == client.now + 5 * SECOND
    client.session.wake(client.now + 5 * SECOND)
    client.answers()
    assert client.disconnects == ["no answer to Logout came in time"]


def test_messages_sent_without_a_connection_follow_the_next_logon() -> None:
    pair = Pair()
    pair.connect()
    pair.cut()
    pair.ann.session.send(order("A"), pair.now)
    pair.floor.session.send(report("B"), pair.now)
    pair.connect()
    assert pair.floor.names == ["A"]
    assert pair.ann.names == ["B"]


def test_invalid_options_are_refused_on_creation() -> None:
    with pytest.raises(ValueError, match="heartbeat_period is 1500000000 ns"):
        FixOptions(heartbeat_period=3 * SECOND // 2)
    assert SECRET not in repr(ANN_KNOWS)

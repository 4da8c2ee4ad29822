"""The FIX session, rule by rule: each test is a row of the specification's table of what to do when."""

import pytest

from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.formats.fix.codec import encode
from fairtape.formats.fix.fields import format_instant
from fairtape.formats.fix.order_messages import write
from fairtape.gateway.session.effects import LoggedOff, LoggedOn, MessageRejected
from fairtape.gateway.session.session import RESEND_BATCH_MAX, FixOptions, FixState
from unit.gateway.fix_world import ANN_KNOWS, SECRET, START, Pair, Stranger, fields, order, report

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
    assert pair.floor.store.next_in == pair.ann.store.next_out >= 10  # a heartbeat each 30 s
    assert pair.ann.store.next_in == pair.floor.store.next_out


def test_the_answer_to_a_logon_repeats_the_interval() -> None:
    stranger = Stranger()
    (answer,) = stranger.log_on()
    assert fields(answer, 35, 49, 56, 34, 98, 108, 141) == (b"A", b"FLOOR", b"ANN", b"1", b"0", b"30", None)


def test_a_wrong_password_is_told_and_changes_nothing_of_the_clients() -> None:
    pair = Pair(ann=ODD)
    pair.connect()
    assert pair.floor.hung_up == ["wrong user name or password"]
    assert pair.floor.store.next_in == 1
    assert pair.ann.events == [LoggedOff("the logon was refused: wrong user name or password")]
    rightful = Stranger()
    rightful.say(b"A", 1, (98, b"0"), (108, b"30"), (553, b"ann"), (554, b"guess"))
    rightful.session.connected(rightful.now)
    logon, *_ = rightful.log_on(1)
    assert fields(logon, 35, 34) == (b"A", b"2")  # the refusal was number 1
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
def test_a_logon_that_asks_for_the_wrong_thing_is_refused(more: tuple[tuple[int, bytes], ...], text: bytes) -> None:
    stranger = Stranger()
    (logout,) = stranger.say(b"A", 2, *more, (553, b"ann"), (554, SECRET.encode()))
    assert fields(logout, 35, 58) == (b"5", text)
    assert stranger.hung_up
    assert stranger.store.next_in == 1


@pytest.mark.parametrize("kind", [b"D", b"0", b"5", b"2"])
def test_whoever_does_not_log_on_first_hears_nothing(kind: bytes) -> None:
    stranger = Stranger()
    assert stranger.say(kind, 1, *ORDER) == []
    assert stranger.hung_up == ["the first message must be a Logon"]
    assert (stranger.store.next_in, stranger.store.next_out) == (1, 1)


def test_a_logon_that_does_not_come_is_not_waited_for() -> None:
    stranger = Stranger()
    assert stranger.session.deadline() == START + 10 * SECOND
    stranger.session.wake(START + 10 * SECOND - 1)
    assert stranger.session.drain() == []
    stranger.session.wake(START + 10 * SECOND)
    assert stranger.heard() == []
    assert stranger.hung_up == ["no Logon came in time"]


def test_silence_is_tested_and_then_ends_the_connection() -> None:
    stranger = Stranger()
    stranger.log_on()
    stranger.now += 30 * SECOND
    stranger.session.wake(stranger.now)
    assert [message.msg_type for message in stranger.heard()] == [b"0"]
    stranger.now += 6 * SECOND
    assert stranger.session.deadline() == stranger.now
    stranger.session.wake(stranger.now)
    (test,) = stranger.heard()
    assert test.msg_type == b"1"
    stranger.now += 36 * SECOND
    stranger.session.wake(stranger.now)
    stranger.heard()
    assert stranger.hung_up == ["the other side is silent"]


def test_an_answered_test_keeps_the_connection() -> None:
    stranger = Stranger()
    stranger.log_on()
    stranger.now += 36 * SECOND
    stranger.session.wake(stranger.now)
    (test,) = stranger.heard()
    stranger.say(b"0", 2, (112, test.get(112) or b""))
    stranger.now += 35 * SECOND
    stranger.session.wake(stranger.now)
    assert stranger.session.state is FixState.LOGGED_ON


def test_a_test_request_is_answered_with_its_name() -> None:
    stranger = Stranger()
    stranger.log_on()
    (answer,) = stranger.say(b"1", 2, (112, b"are you there"))
    assert fields(answer, 35, 112) == (b"0", b"are you there")


def test_junk_does_not_keep_a_connection() -> None:
    stranger = Stranger()
    stranger.log_on()
    due_at = stranger.session.deadline()
    stranger.now += SECOND
    stranger.send(b"noise" * 100)
    assert stranger.session.deadline() == due_at
    assert stranger.session.counts.junk == 500


def test_a_gap_is_asked_for_once_and_what_came_early_is_dropped() -> None:
    stranger = Stranger()
    stranger.log_on()
    (ask,) = stranger.say(b"D", 4, *ORDER)
    assert fields(ask, 35, 7, 16) == (b"2", b"2", b"0")
    assert stranger.say(b"D", 5, *ORDER) == []
    repeated = ((43, b"Y"), (122, FIRST_SENT))
    for number in (2, 3, 4, 5):
        assert stranger.say(b"D", number, *ORDER, header=repeated) == []
    assert [(each.number, each.repeated) for each in stranger.received] == [(n, True) for n in (2, 3, 4, 5)]
    (ask,) = stranger.say(b"D", 8, *ORDER)  # another gap, another question
    assert fields(ask, 7) == (b"6",)


def test_a_gap_is_asked_for_again_where_nothing_comes_of_it() -> None:
    stranger = Stranger()
    stranger.log_on()
    stranger.say(b"D", 4, *ORDER)
    stranger.now += 5 * SECOND - MILLISECOND
    assert stranger.say(b"D", 5, *ORDER) == []
    stranger.now += MILLISECOND
    (ask,) = stranger.say(b"D", 6, *ORDER)
    assert fields(ask, 35, 7) == (b"2", b"2")


def test_a_logon_with_a_gap_is_taken_and_the_gap_asked_for() -> None:
    stranger = Stranger()
    logon, ask = stranger.log_on(7)
    assert logon.msg_type == b"A"
    assert fields(ask, 35, 7, 16) == (b"2", b"1", b"0")
    assert stranger.say(b"4", 1, (36, b"8"), (123, b"Y"), header=((43, b"Y"),)) == []
    assert stranger.store.next_in == 8


def test_a_number_too_low_ends_the_session_unless_it_is_a_repetition() -> None:
    stranger = Stranger()
    stranger.log_on()
    stranger.say(b"D", 2, *ORDER)
    assert stranger.say(b"D", 2, *ORDER, header=((43, b"Y"), (122, FIRST_SENT))) == []
    assert len(stranger.received) == 1
    (logout,) = stranger.say(b"D", 2, *ORDER)
    assert fields(logout, 35, 58) == (b"5", b"MsgSeqNum too low, expecting 3 but received 2")
    assert stranger.session.state is FixState.DISCONNECTED


def test_a_logon_with_a_number_too_low_is_refused() -> None:
    stranger = Stranger()
    stranger.store.expect(9)
    (logout,) = stranger.log_on(3)
    assert fields(logout, 35, 58) == (b"5", b"MsgSeqNum too low, expecting 9 but received 3")


@pytest.mark.parametrize("number", [None, 0])
def test_a_message_without_a_number_ends_the_session(number: int | None) -> None:
    stranger = Stranger()
    stranger.log_on()
    (logout,) = stranger.say(b"D", number, *ORDER)
    assert fields(logout, 35, 58) == (b"5", b"MsgSeqNum (34) is missing or not a number")


def test_messages_are_sent_again_as_repetitions_and_gap_fills() -> None:
    stranger = Stranger()
    stranger.log_on()
    for name in ("A", "B"):
        stranger.session.send(report(name), stranger.now)  # 2, 3
    stranger.say(b"1", 2, (112, b"x"))  # answered by 4
    stranger.session.send(report("C"), stranger.now)  # 5
    stranger.heard()
    sent, stranger.now = stranger.now, stranger.now + SECOND
    answers = stranger.say(b"2", 3, (7, b"1"), (16, b"0"))
    assert [fields(each, 35, 34, 36) for each in answers] == [
        (b"4", b"1", b"2"),
        (b"8", b"2", None),
        (b"8", b"3", None),
        (b"4", b"4", b"5"),
        (b"8", b"5", None),
    ]
    assert all(each.get(43) == b"Y" for each in answers)
    assert fields(answers[1], 11, 122, 52) == (b"A", format_instant(sent), format_instant(stranger.now))
    stranger.now += SECOND
    (only,) = stranger.say(b"2", 4, (7, b"3"), (16, b"3"))
    assert fields(only, 11) == (b"B",)
    assert stranger.store.next_out == 6


def test_much_is_sent_again_piece_by_piece_as_the_connection_takes_it() -> None:
    stranger = Stranger()
    stranger.log_on()
    for number in range(1_000):
        stranger.session.send(report(f"R{number}"), stranger.now)
    stranger.heard()
    asked = [stranger.octets(b"2", 2 + place, (7, b"2"), (16, b"0")) for place in range(50)]
    found = stranger.send(b"".join(asked))
    assert len(found) == RESEND_BATCH_MAX  # once, however often it was asked
    assert stranger.session.deadline() == 0
    stranger.session.send(report("new"), stranger.now)
    assert stranger.heard() == []  # it comes behind what is sent again
    stranger.session.set_write_blocked(blocked=True)
    stranger.session.wake(stranger.now)
    assert stranger.heard() == []
    assert stranger.session.deadline() > stranger.now
    stranger.session.set_write_blocked(blocked=False)
    while stranger.session.deadline() == 0:
        stranger.session.wake(stranger.now)
        found += stranger.heard()
    assert [each.get(34) for each in found][-1] == b"1002"
    start = max(place for place, each in enumerate(found) if each.get(34) == b"2")
    names = [(each.get(11) or b"").decode() for each in found[start:] if each.msg_type == b"8"]
    assert names == [*(f"R{number}" for number in range(1_000)), "new"]


def test_what_is_no_longer_kept_is_filled() -> None:
    pair = Pair(messages_max=2)
    pair.connect()
    pair.cut()
    for name in "ABCDE":
        pair.floor.session.send(report(name), pair.now)
    pair.connect()
    assert pair.ann.names == ["D", "E"]
    assert pair.ann.store.next_in == pair.floor.store.next_out


@pytest.mark.parametrize(("first", "last"), [(9, 0), (2, 1)])
def test_a_request_for_what_was_never_sent_is_rejected(first: int, last: int) -> None:
    stranger = Stranger()
    stranger.log_on()
    stranger.session.send(report("A"), stranger.now)
    stranger.heard()
    (reject,) = stranger.say(b"2", 2, (7, b"%d" % first), (16, b"%d" % last))
    assert fields(reject, 35, 45, 371, 373) == (b"3", b"2", b"7", b"5")


def test_a_request_that_comes_early_is_served_at_once() -> None:
    stranger = Stranger()
    stranger.log_on()
    stranger.session.send(report("A"), stranger.now)
    stranger.heard()
    again, ask = stranger.say(b"2", 5, (7, b"2"), (16, b"0"))
    assert fields(again, 35, 34, 43) == (b"8", b"2", b"Y")
    assert fields(ask, 35, 7) == (b"2", b"2")


def test_a_reset_of_the_sequence_counts_whatever_its_number_is() -> None:
    stranger = Stranger()
    stranger.log_on()
    assert stranger.say(b"4", 1, (36, b"50")) == []
    assert stranger.store.next_in == 50
    (reject,) = stranger.say(b"4", 50, (36, b"49"))
    assert fields(reject, 35, 371, 373) == (b"3", b"36", b"5")
    assert stranger.store.next_in == 50
    (reject,) = stranger.say(b"4", 50, (36, b"9223372036854775807"))
    assert fields(reject, 35, 371, 373) == (b"3", b"36", b"5")
    assert stranger.store.next_in == 50


def test_a_gap_fill_goes_forward_only() -> None:
    stranger = Stranger()
    stranger.log_on()
    (reject,) = stranger.say(b"4", 2, (36, b"2"), (123, b"Y"))
    assert fields(reject, 35, 371, 373) == (b"3", b"36", b"5")
    assert stranger.store.next_in == 3


def test_a_logon_may_reset_both_numbers() -> None:
    stranger = Stranger()
    stranger.store.expect(9)
    stranger.session.send(report("A"), stranger.now)
    (logon,) = stranger.log_on(1, (141, b"Y"))
    assert fields(logon, 35, 34, 141) == (b"A", b"1", b"Y")
    assert (stranger.store.next_in, stranger.store.next_out) == (2, 2)
    pair = Pair(ann=FixOptions(username="ann", password=SECRET, reset_on_logon=True))
    for _ in range(3):
        pair.connect()
        assert pair.logged_on
        assert pair.floor.store.next_in == 2
        pair.cut()


def test_a_second_logon_may_reset_and_nothing_else() -> None:
    stranger = Stranger()
    stranger.log_on()
    stranger.say(b"D", 2, *ORDER)
    (logon,) = stranger.log_on(1, (141, b"Y"))
    assert fields(logon, 34, 141) == (b"1", b"Y")
    stranger.say(b"D", 2, *ORDER)
    assert len(stranger.received) == 2
    (logout,) = stranger.log_on(3)
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
    stranger = Stranger()
    stranger.log_on()
    (reject,) = stranger.say(b"D", 2, *body)
    assert fields(reject, 35, 45, 371, 372, 373) == (b"3", b"2", tag, b"D", reason)
    assert stranger.received == []
    assert stranger.say(b"D", 3, *ORDER) == []
    assert len(stranger.received) == 1


def test_types_that_are_not_taken_and_types_that_are_none() -> None:
    stranger = Stranger()
    stranger.log_on()
    (business,) = stranger.say(b"V", 2, (262, b"x"))
    assert fields(business, 35, 45, 372, 380) == (b"j", b"2", b"V", b"3")
    (reject,) = stranger.say(b"ZZ", 3)
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
def test_a_header_that_is_not_right_is_rejected_and_ends_the_session(header: dict[int, bytes], reason: bytes) -> None:
    stranger = Stranger()
    stranger.log_on()
    reject, logout = stranger.say(b"D", 2, *ORDER, header=header.items())
    assert fields(reject, 35, 373) == (b"3", reason)
    assert logout.msg_type == b"5"
    assert stranger.received == []
    before = Stranger()
    assert before.say(b"A", 1, (98, b"0"), (108, b"30"), header=header.items()) == []
    assert before.hung_up


def test_another_version_ends_the_session() -> None:
    stranger = Stranger()
    stranger.log_on()
    octets = encode([(35, b"0"), (49, b"ANN"), (56, b"FLOOR"), (34, b"2"), (52, b"x")], begin_string=b"FIX.4.2")
    (logout,) = stranger.send(octets)
    assert fields(logout, 35, 58) == (b"5", b"BeginString (8) must be FIX.4.4")


def test_a_repetition_must_say_when_it_was_first_sent() -> None:
    stranger = Stranger()
    stranger.log_on()
    (reject,) = stranger.say(b"D", 2, *ORDER, header=((43, b"Y"),))
    assert fields(reject, 35, 371, 373) == (b"3", b"122", b"1")
    assert stranger.received == []


def test_a_possible_resend_is_marked_for_the_application() -> None:
    stranger = Stranger()
    stranger.log_on()
    stranger.say(b"D", 2, *ORDER, header=((97, b"Y"),))
    stranger.say(b"D", 3, *ORDER)
    assert [(each.repeated, each.resent) for each in stranger.received] == [(False, True), (False, False)]


def test_a_reject_of_ours_is_told_to_the_application() -> None:
    stranger = Stranger()
    stranger.log_on()
    stranger.say(b"3", 2, (45, b"1"), (373, b"5"))
    stranger.say(b"j", 3, (372, b"8"), (380, b"0"))
    assert sum(isinstance(effect, MessageRejected) for effect in stranger.effects) == 2


def test_both_sides_may_log_out() -> None:
    for leaver in (0, 1):
        pair = Pair()
        pair.connect()
        pair.sides[leaver].session.logout("enough", pair.now)
        pair.run()
        assert [side.session.state for side in pair.sides] == [FixState.DISCONNECTED] * 2
        assert all(side.hung_up for side in pair.sides)
        pair.connect()
        assert pair.logged_on


def test_an_answer_to_a_logout_is_not_waited_for_long() -> None:
    stranger = Stranger()
    stranger.log_on()
    stranger.session.logout(None, stranger.now)
    assert stranger.session.deadline() == stranger.now + 5 * SECOND
    stranger.session.wake(stranger.now + 5 * SECOND)
    stranger.heard()
    assert stranger.hung_up == ["no answer to Logout came in time"]


def test_what_is_sent_while_nobody_is_there_comes_with_the_next_logon() -> None:
    pair = Pair()
    pair.connect()
    pair.cut()
    pair.ann.session.send(order("A"), pair.now)
    pair.floor.session.send(report("B"), pair.now)
    pair.connect()
    assert pair.floor.names == ["A"]
    assert pair.ann.names == ["B"]


def test_settings_that_make_no_sense_are_refused_at_birth() -> None:
    with pytest.raises(ValueError, match="heartbeat_period is 1500000000 ns"):
        FixOptions(heartbeat_period=3 * SECOND // 2)
    assert SECRET not in repr(ANN_KNOWS)

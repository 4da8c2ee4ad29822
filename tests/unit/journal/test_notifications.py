"""Notifications between a site and the readers of its journal, over real sockets."""

import asyncio
import os
import socket
import stat
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.effects import Ordered
from fairtape.core.errors import UserError
from fairtape.core.instants import SECOND
from fairtape.journal import FormationChanged, JournalEntry, JournalFollower, JournalReader
from fairtape.journal.format import Tip, first_mark
from fairtape.journal.notifications import (
    ACCEPTS_MAX,
    IDLE_PERIOD,
    LOOK_AGAIN_PERIOD,
    LOOKS_MAX,
    POLL_PERIOD,
    SOCKET_NAME,
    SUBSCRIBERS_MAX,
    Level,
    Notification,
    NotificationReceiver,
    NotificationSender,
    decode_notification,
    decode_registration,
    encode_notification,
    encode_registration,
)
from fairtape.wire.frames import NUMBER_MAX, Malformed
from unit.journal import journal_values as values

FOREVER = 300 * SECOND  # a wait that only a notification ends within the time of a test


@dataclass
class FakeSite:
    """A site with a journal of given numbers, and no file."""

    ordered: int = 0
    released: int = 0
    token: int = 0
    stable_token: int = 0

    def tip(self) -> Tip | None:
        if not self.ordered:
            return None
        return Tip(1, self.token, self.ordered + 1, 0, bytes(32), self.released + 1, 0, first_mark(1))

    def order(self, through: int) -> None:
        """One more token, with the messages up to this number."""
        self.ordered, self.token = through, self.token + 1


@contextmanager
def notifying(directory: Path, site: FakeSite) -> Iterator[NotificationSender]:
    with NotificationSender(directory, site.tip, lambda: site.stable_token) as sender:
        yield sender


@contextmanager
def subscribed(
    directory: Path, sender: NotificationSender, level: Level = Level.RELEASED
) -> Iterator[NotificationReceiver]:
    with NotificationReceiver(directory, level=level) as receiver:
        receiver.wait_period(0)
        sender.update_subscribers()
        receiver.receive()
        yield receiver


def connected(directory: Path) -> socket.socket:
    """A process that connects, and says nothing yet."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    found.connect(str(directory / SOCKET_NAME))
    return found


def state(reader: NotificationReceiver) -> Notification | None:
    return reader.latest


numbers = st.integers(0, NUMBER_MAX)


@given(st.builds(Notification, numbers, numbers, numbers), st.sampled_from(Level))
def test_what_is_encoded_is_decoded(notification: Notification, level: Level) -> None:
    assert decode_notification(encode_notification(notification)) == notification
    assert decode_registration(encode_registration(level)) is level


@given(st.binary(max_size=40) | st.binary(max_size=30).map(lambda rest: b"FTN1" + rest))
def test_other_bytes_are_malformed(datagram: bytes) -> None:
    for decode, size in ((decode_registration, 5), (decode_notification, 28)):
        try:
            decode(datagram)
        except Malformed:
            continue
        assert len(datagram) == size


@pytest.mark.parametrize("datagram", [b"", b"FTR1", b"FTR1\3", b"FTR2\2", b"FTR1\2\0"])
def test_a_registration_of_another_version_or_level_is_malformed(datagram: bytes) -> None:
    with pytest.raises(Malformed):
        decode_registration(datagram)


def test_a_reader_gets_the_present_state_when_it_registers_and_then_every_change(tmp_path: Path) -> None:
    site = FakeSite(ordered=9, released=4, token=3, stable_token=3)
    with notifying(tmp_path, site) as sender, subscribed(tmp_path, sender) as reader:
        assert reader.latest == Notification(9, 9, 4)
        site.released = 7
        sender.notify()
        reader.receive()
        assert reader.latest == Notification(9, 9, 7)
        assert sender.counts == {"notifications_sent": 2}


def test_a_reader_is_notified_of_its_level_only_and_nothing_is_sent_while_nothing_changes(tmp_path: Path) -> None:
    site = FakeSite()
    with (
        notifying(tmp_path, site) as sender,
        subscribed(tmp_path, sender, Level.ORDERED) as ordered,
        subscribed(tmp_path, sender, Level.STABLE) as stable,
        subscribed(tmp_path, sender, Level.RELEASED) as released,
    ):
        readers = ordered, stable, released

        def seen() -> list[Notification | None]:
            sender.notify()
            sender.notify()
            for reader in readers:
                reader.receive()
            return [reader.latest for reader in readers]

        nothing = Notification(0, 0, 0)
        assert seen() == [nothing] * 3
        site.order(5)
        assert seen() == [Notification(5, 0, 0), nothing, nothing]
        site.stable_token = 1
        assert seen() == [Notification(5, 0, 0), Notification(5, 5, 0), nothing]
        site.released = 5
        assert seen() == [Notification(5, 0, 0), Notification(5, 5, 0), Notification(5, 5, 5)]
        assert sender.counts["notifications_sent"] == 3 + 3


def test_a_stable_number_is_that_of_the_last_stable_token(tmp_path: Path) -> None:
    site = FakeSite()
    with notifying(tmp_path, site) as sender, subscribed(tmp_path, sender, Level.STABLE) as reader:

        def stable() -> int:
            sender.notify()
            reader.receive()
            assert reader.latest is not None
            return reader.latest.stable_through

        for through in (3, 8, 20):
            site.order(through)
            assert stable() == 0
        site.stable_token = 2
        assert stable() == 8
        site.order(21)
        assert stable() == 8
        site.stable_token = 0  # a new formation has proved nothing yet
        assert stable() == 8
        site.ordered, site.token = 5, 1  # the site truncated its journal
        assert stable() == 5
        site.order(6)  # another token 2
        site.stable_token = 2
        assert stable() == 6
        site.stable_token = 9  # tokens without messages
        assert stable() == 6


def test_nothing_is_called_stable_by_what_was_noted_for_earlier_readers(tmp_path: Path) -> None:
    """Without readers the site notes no tokens, and the journal may be truncated and grow again meanwhile."""
    site = FakeSite()
    with notifying(tmp_path, site) as sender:
        with subscribed(tmp_path, sender):
            site.order(10)
            site.order(20)
            sender.notify()
        sender.update_subscribers()
        assert sender.subscribers == 0
        site.ordered, site.token, site.stable_token = 30, 5, 4
        with subscribed(tmp_path, sender) as reader:
            assert reader.latest == Notification(30, 0, 0)
            site.stable_token = 5
            site.released = 1
            sender.notify()
            reader.receive()
            assert reader.latest == Notification(30, 30, 1)


def test_a_full_buffer_loses_notifications_of_that_reader_only_and_none_that_it_needs(tmp_path: Path) -> None:
    """The site never waits. What waits in the buffer makes the reader look, and a look finds everything."""
    site = FakeSite(ordered=5_000, token=1)
    with (
        notifying(tmp_path, site) as sender,
        subscribed(tmp_path, sender) as slow,
        subscribed(tmp_path, sender) as quick,
    ):
        for site.released in range(1, 1_001):
            sender.notify()
            quick.receive()
            assert quick.latest == Notification(5_000, 0, site.released)
        assert sender.counts["notifications_lost"] > 900
        assert sender.subscribers == 2
        slow.wait(0, FOREVER)  # returns at once, and the look that follows finds 1,000
        assert quick.wait_period(1_000) == IDLE_PERIOD
        site.released += 1
        sender.notify()
        slow.wait(1_000, FOREVER)
        assert slow.latest == Notification(5_000, 0, 1_001)


def test_a_reader_that_is_gone_is_dropped(tmp_path: Path) -> None:
    site = FakeSite()
    with notifying(tmp_path, site) as sender:
        with subscribed(tmp_path, sender):
            assert sender.subscribers == 1
        site.order(1)
        site.released = 1
        sender.notify()
        assert sender.subscribers == 0
        with subscribed(tmp_path, sender):
            assert sender.subscribers == 1
        sender.update_subscribers()
        assert sender.subscribers == 0


@pytest.mark.parametrize("datagram", [b"?", b"FTR1\7", b"FTN1" + bytes(24), bytes(60_000)])
def test_a_process_that_sends_something_else_is_disconnected(tmp_path: Path, datagram: bytes) -> None:
    site = FakeSite()
    with notifying(tmp_path, site) as sender, subscribed(tmp_path, sender) as reader, connected(tmp_path) as hostile:
        hostile.send(datagram)
        sender.update_subscribers()
        assert hostile.recv(1) == b""
        assert sender.counts["registrations_refused"] == 1
        site.order(1)
        site.released = 1
        sender.notify()
        reader.receive()
        assert reader.latest == Notification(1, 0, 1)


def test_a_process_that_registers_again_and_again_costs_one_datagram_per_call(tmp_path: Path) -> None:
    with notifying(tmp_path, FakeSite()) as sender, connected(tmp_path) as hostile:
        for _ in range(100):
            hostile.send(encode_registration(Level.RELEASED))
        for calls in range(1, 4):
            sender.update_subscribers()
            assert sender.counts["notifications_sent"] == calls


def test_a_process_that_does_not_register_loses_its_place(tmp_path: Path) -> None:
    with notifying(tmp_path, FakeSite()) as sender, subscribed(tmp_path, sender), connected(tmp_path) as hostile:
        for _ in range(LOOKS_MAX):
            sender.update_subscribers()
            assert sender.subscribers == 2
        sender.update_subscribers()
        assert sender.subscribers == 1
        assert hostile.recv(1) == b""


def test_readers_beyond_the_limit_poll_until_another_one_leaves(tmp_path: Path) -> None:
    with notifying(tmp_path, FakeSite()) as sender, ExitStack() as closing_readers:
        readers = [NotificationReceiver(tmp_path) for _ in range(3 * SUBSCRIBERS_MAX)]
        for reader in readers:
            closing_readers.callback(reader.close)
            reader.wait_period(0)  # beyond the backlog of the socket, the attempt fails at once
            sender.update_subscribers()
        for _ in range(len(readers) // ACCEPTS_MAX):
            sender.update_subscribers()
        assert sender.subscribers == SUBSCRIBERS_MAX
        assert sender.counts["subscribers_refused"] > 0
        for reader in readers:
            reader.receive()
        assert sum(reader.latest is not None for reader in readers) == SUBSCRIBERS_MAX
        assert {reader.wait_period(0) for reader in readers if reader.latest is None} == {POLL_PERIOD}
        next(reader for reader in readers if reader.latest is not None).close()
        sender.update_subscribers()
        with subscribed(tmp_path, sender) as late:
            assert late.latest is not None


def test_a_journal_without_a_site_is_polled(tmp_path: Path) -> None:
    with NotificationReceiver(tmp_path / "missing") as reader:
        assert reader.wait_period(0, poll_period=7) == 7
        reader.wait(0, poll_period=0)
        assert reader.latest is None


def test_a_copy_of_a_journal_is_polled(tmp_path: Path) -> None:
    """A copy, and a killed site, leave the name of a socket at which no process listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as copied:
        copied.bind(str(tmp_path / SOCKET_NAME))
    with NotificationReceiver(tmp_path) as reader:
        assert reader.wait_period(0) == POLL_PERIOD


@pytest.mark.parametrize("seen", [4, 6])
def test_a_look_that_does_not_end_with_what_was_announced_is_repeated_once_soon(tmp_path: Path, seen: int) -> None:
    """It found less, or the journal was truncated, or more notifications are under way."""
    site = FakeSite(ordered=9, released=5, token=1)
    with notifying(tmp_path, site) as sender, subscribed(tmp_path, sender) as reader:
        assert reader.wait_period(5) == IDLE_PERIOD
        assert reader.wait_period(seen) == LOOK_AGAIN_PERIOD
        assert reader.wait_period(seen) == POLL_PERIOD
        site.released = 7
        sender.notify()
        reader.receive()
        assert reader.wait_period(seen) == LOOK_AGAIN_PERIOD


def test_a_reader_whose_site_ends_polls_and_connects_again(tmp_path: Path) -> None:
    site = FakeSite(ordered=1, token=1)
    sender = NotificationSender(tmp_path, site.tip)
    with subscribed(tmp_path, sender) as reader:
        descriptor = reader.fileno()
        sender.close()
        assert not (tmp_path / SOCKET_NAME).exists()
        reader.wait(0, FOREVER)
        assert state(reader) is None
        assert reader.wait_period(0) == POLL_PERIOD
        with notifying(tmp_path, site) as again:
            while state(reader) is None:
                again.update_subscribers()
                reader.wait(0, poll_period=0)
            assert state(reader) == Notification(1, 0, 0)
            assert reader.fileno() == descriptor


def test_what_is_no_notification_ends_the_connection(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / SOCKET_NAME))
        listener.listen()
        with NotificationReceiver(tmp_path) as reader:
            reader.wait_period(0)
            connection, _ = listener.accept()
            with connection:
                connection.send(encode_notification(Notification(1, 1, 1)))
                reader.receive()
                assert state(reader) == Notification(1, 1, 1)
                connection.send(bytes(28))
                reader.receive()
                assert state(reader) is None
                assert connection.recv(100) == encode_registration(Level.RELEASED)
                assert connection.recv(100) == b""


def test_a_socket_that_a_killed_site_left_is_replaced_and_nothing_else_is(tmp_path: Path) -> None:
    place = tmp_path / SOCKET_NAME
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
        left.bind(str(place))
    with notifying(tmp_path, FakeSite()) as sender, subscribed(tmp_path, sender) as reader:
        assert reader.latest is not None
    assert not place.exists()
    precious = tmp_path / "precious"
    precious.write_text("kept")
    for make in (place.mkdir, lambda: place.write_text("kept"), lambda: place.symlink_to(precious)):
        make()
        with pytest.raises(UserError, match="readers of this journal poll it"):
            NotificationSender(tmp_path, lambda: None)
        assert os.path.lexists(place)
        place.rmdir() if place.is_dir() else place.unlink()
    assert precious.read_text() == "kept"


def test_a_link_to_the_socket_of_another_journal_is_not_followed(tmp_path: Path) -> None:
    other, mine = tmp_path / "other", tmp_path / "mine"
    other.mkdir()
    mine.mkdir()
    (mine / SOCKET_NAME).symlink_to(other / SOCKET_NAME)
    with notifying(other, FakeSite()) as sender, NotificationReceiver(mine) as reader:
        assert reader.wait_period(0) == POLL_PERIOD
        sender.update_subscribers()
        assert sender.subscribers == 0


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o666), (0o027, 0o660), (0o077, 0o600)])
def test_those_who_may_read_the_journal_may_connect(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        with values.open_writer(tmp_path) as writer, notifying(tmp_path, FakeSite()):
            values.append_entry(writer, values.first(1)[0])
            (segment,) = values.segments(tmp_path)
            assert stat.S_IMODE((tmp_path / SOCKET_NAME).stat().st_mode) == mode
            assert stat.S_IMODE(segment.stat().st_mode) & 0o444 == mode & 0o444
    finally:
        os.umask(before)


def test_the_path_of_a_journal_may_be_longer_than_that_of_a_socket(tmp_path: Path) -> None:
    directory = tmp_path / ("long" * 30) / ("longer" * 30)
    directory.mkdir(parents=True)
    with notifying(directory, FakeSite()) as sender, subscribed(directory, sender) as reader:
        assert reader.latest is not None


def test_a_directory_that_cannot_have_a_socket_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="missing/notify"):
        NotificationSender(tmp_path / "missing", lambda: None)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    with notifying(tmp_path, FakeSite()) as sender, subscribed(tmp_path, sender) as reader:
        reader.follow(tmp_path / "elsewhere")
        reader.wait_period(0)
    (tmp_path / SOCKET_NAME).mkdir()
    with pytest.raises(UserError):
        NotificationSender(tmp_path, lambda: None)
    assert len(list(descriptors.iterdir())) == before


# Followers.


def messages(found: Iterable[JournalEntry | FormationChanged]) -> list[Ordered]:
    return [each.ordered for each in found if isinstance(each, JournalEntry)]


def test_a_follower_reads_each_release_when_it_is_notified(tmp_path: Path) -> None:
    """Its waits would last longer than the test."""
    history = values.first(40)
    found: list[Ordered] = []
    with (
        values.open_writer(tmp_path) as writer,
        NotificationSender(tmp_path, lambda: writer.tip) as sender,
        closing(JournalFollower.of_journal(tmp_path)) as follower,
    ):
        follower.wait(0)
        sender.update_subscribers()
        follower.wait(FOREVER)
        for ordered in history:
            values.append_entry(writer, ordered)
            sender.notify()
            values.mark(writer, ordered)
            sender.notify()
            follower.wait(FOREVER, poll_period=FOREVER)
            found += messages(follower.new_entries())
            assert found[-1] == ordered
    assert found == history
    assert sender.counts["notifications_sent"] == 1 + len(history)


def test_a_look_ends_with_what_was_announced(tmp_path: Path) -> None:
    history = values.first(20)
    values.write(tmp_path, history)
    with closing(JournalReader.open(tmp_path).entries()) as cursor:
        assert messages(cursor.everything(through=history[4].sequence)) == history[:5]
        assert messages(cursor.everything()) == history[5:]


def test_a_follower_whose_buffer_was_full_reads_everything_at_its_next_look(tmp_path: Path) -> None:
    """The last notifications were lost, and the ones before them do not limit the look."""
    history = values.first(100)
    with (
        values.open_writer(tmp_path) as writer,
        NotificationSender(tmp_path, lambda: writer.tip) as sender,
        closing(JournalFollower.of_journal(tmp_path)) as follower,
    ):
        follower.wait(0)
        sender.update_subscribers()
        follower.wait(FOREVER)
        for some, announced in ((history[:60], False), (history[60:], True)):
            for ordered in some:
                values.append_entry(writer, ordered)
                values.mark(writer, ordered)
                sender.notify()
                if announced:
                    follower.wait(FOREVER, poll_period=FOREVER)
            follower.wait(FOREVER, poll_period=FOREVER)
            assert messages(follower.new_entries()) == some
            assert follower.has_all_announced is announced
        assert sender.counts["notifications_lost"] > 0


def test_a_truncated_journal_that_grows_again_is_noticed(tmp_path: Path) -> None:
    """The numbers that are announced fall, and the follower looks for the Break."""
    history = values.first(12)
    with (
        values.open_writer(tmp_path) as writer,
        NotificationSender(tmp_path, lambda: writer.tip) as sender,
        closing(JournalFollower.of_journal(tmp_path, repair_period=FOREVER)) as follower,
    ):
        follower.wait(0)
        sender.update_subscribers()
        for ordered in history:
            values.append_entry(writer, ordered)
            values.mark(writer, ordered)
        sender.notify()
        follower.wait(FOREVER)
        assert messages(follower.new_entries()) == history
        writer.truncate_after(history[5].token)
        sender.notify()
        follower.wait(FOREVER, poll_period=FOREVER)
        values.append_entry(writer, values.formation_change(history[6], 2, broken=True))
        again = [replace(each, formation=2) for each in history[6:8]]
        for ordered in again:
            values.append_entry(writer, ordered)
            values.mark(writer, ordered)
        sender.notify()
        follower.wait(FOREVER, poll_period=FOREVER)
        while not (found := messages(follower.new_entries())):
            follower.wait()  # the first look after a truncation may find damage
        assert found == again


def test_a_follower_goes_on_with_the_notifications_of_another_site(tmp_path: Path) -> None:
    journals = {1: tmp_path / "1", 2: tmp_path / "2"}
    (ordered,) = values.first(1)
    with (
        values.open_writer(journals[1]) as one,
        NotificationSender(journals[1], lambda: one.tip) as left,
        values.open_writer(journals[2]) as other,
        NotificationSender(journals[2], lambda: other.tip) as entered,
        closing(JournalFollower(journals)) as follower,
    ):
        follower.wait(0)
        left.update_subscribers()
        follower.wait(FOREVER)
        follower.follow(2)
        follower.wait(0)
        left.update_subscribers()
        entered.update_subscribers()
        assert (left.subscribers, entered.subscribers) == (0, 1)
        values.append_entry(other, ordered)
        values.mark(other, ordered)
        entered.notify()
        follower.wait(FOREVER, poll_period=FOREVER)
        assert messages(follower.new_entries()) == [ordered]


def test_a_wait_in_another_thread_ends_with_the_notification(tmp_path: Path) -> None:
    site = FakeSite(ordered=1, token=1)
    with notifying(tmp_path, site) as sender, subscribed(tmp_path, sender) as reader:
        waiter = threading.Thread(target=lambda: reader.wait(0, FOREVER, poll_period=FOREVER))
        waiter.start()
        site.released = 1
        sender.notify()
        waiter.join()
        assert reader.latest == Notification(1, 0, 1)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_wait_in_an_event_loop_ends_with_a_notification_or_on_demand(
    tmp_path: Path, run: Callable[[Coroutine[None, None, None]], None]
) -> None:
    site = FakeSite(ordered=9, token=1)

    async def follow(sender: NotificationSender, reader: NotificationReceiver) -> None:
        loop = asyncio.get_running_loop()
        for site.released in range(1, 4):
            loop.call_soon(sender.notify)
            await reader.wait_in_loop(site.released - 1, FOREVER, poll_period=FOREVER)
            assert reader.latest == Notification(9, 0, site.released)
        loop.call_soon(reader.end_wait)
        await reader.wait_in_loop(3, FOREVER)
        site.released = 4  # while it does not wait
        sender.notify()
        while reader.latest == Notification(9, 0, 3):
            await asyncio.sleep(0)
        await reader.wait_in_loop(3, FOREVER, poll_period=FOREVER)  # the look before did not find it
        loop.call_soon(reader.end_wait)
        await reader.wait_in_loop(4, FOREVER, poll_period=FOREVER)
        sender.close()
        while reader.latest is not None:
            await reader.wait_in_loop(4, FOREVER, poll_period=FOREVER)

    sender = NotificationSender(tmp_path, site.tip)
    with subscribed(tmp_path, sender) as reader:
        run(follow(sender, reader))

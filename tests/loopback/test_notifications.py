"""Notifications between processes: sites and readers that are killed, and those of a deployment."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import fairtape
from fairtape.core.effects import Ordered
from fairtape.core.instants import SECOND
from fairtape.journal import JournalEntry, JournalFollower, NotificationReceiver, NotificationSender
from fairtape.journal.notifications import SOCKET_NAME, Level, Notification
from loopback.commands import await_line, finish, interrupt, run, start
from loopback.test_deployment import await_members, status
from unit.journal import journal_values as values

SITE = Path(__file__).with_name("notifying_child.py")
PATHS = os.pathsep.join((str(Path(fairtape.__file__).parents[1]), str(SITE.parents[1])))
FOREVER = 300 * SECOND  # a wait that only a notification ends within the time of a test
HISTORY = values.first(20)


class ChildSite:
    """A process that writes a journal and releases on demand."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self._stdin, self._stdout = process.stdin, process.stdout
        self._expect("ready")

    def accept(self) -> None:
        self._ask("accept")
        self._expect("accepted")

    def release(self) -> None:
        self._ask("release")

    def _ask(self, line: str) -> None:
        self._stdin.write(f"{line}\n")
        self._stdin.flush()

    def _expect(self, line: str) -> None:
        """Lines that ask for the next release are skipped."""
        while (found := self._stdout.readline()) != f"{line}\n":
            assert found == "ready\n"


@contextmanager
def child_site(directory: Path) -> Iterator[ChildSite]:
    command = [sys.executable, str(SITE), str(directory), str(len(HISTORY))]
    environment = os.environ | {"PYTHONPATH": PATHS}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield ChildSite(process)
        finally:
            process.kill()


def messages(follower: JournalFollower) -> list[Ordered]:
    return [each.ordered for each in follower.new_entries() if isinstance(each, JournalEntry)]


def state(reader: NotificationReceiver) -> Notification | None:
    return reader.latest


def test_a_reader_of_a_killed_site_polls_and_is_notified_again_after_its_restart(tmp_path: Path) -> None:
    found: list[Ordered] = []
    with closing(JournalFollower.of_journal(tmp_path)) as follower:
        for upto in (4, 8, 12):
            with child_site(tmp_path) as site:
                while state(follower.notifications) is None:
                    site.accept()
                    follower.wait(poll_period=0)
                while len(found) < upto:
                    site.release()
                    follower.wait(FOREVER, poll_period=FOREVER)
                    found += messages(follower)
                    assert found == HISTORY[: len(found)]
                site.process.kill()
            follower.wait(FOREVER, poll_period=FOREVER)
            assert state(follower.notifications) is None
            assert (tmp_path / SOCKET_NAME).is_socket()


READER = """
import sys
from pathlib import Path
from fairtape.journal import NotificationReceiver
with NotificationReceiver(Path(sys.argv[1])) as reader:
    while reader.latest is None:
        reader.wait(0, poll_period=0)
    print("subscribed", flush=True)
    while True:
        reader.wait(10**9)
"""


def test_a_killed_reader_is_dropped_and_the_others_are_notified(tmp_path: Path) -> None:
    with (
        values.open_writer(tmp_path) as writer,
        NotificationSender(tmp_path, lambda: writer.tip) as sender,
        NotificationReceiver(tmp_path) as survivor,
    ):
        command = [sys.executable, "-c", READER, str(tmp_path)]
        with subprocess.Popen(
            command, env=os.environ | {"PYTHONPATH": PATHS}, stdout=subprocess.PIPE, text=True
        ) as victim:
            survivor.wait(0, 0)
            while sender.subscribers < 2:
                sender.update_subscribers()
            assert victim.stdout is not None
            while sender.counts["notifications_sent"] < 2:
                sender.update_subscribers()
            assert victim.stdout.readline() == "subscribed\n"
            victim.kill()
        values.append_entry(writer, HISTORY[0])
        values.mark(writer, HISTORY[0])
        sender.notify()
        assert sender.subscribers == 1
        survivor.wait(0, FOREVER)
        through = HISTORY[0].count
        assert survivor.latest == Notification(through, 0, through)


@pytest.mark.alone
@pytest.mark.timeout(300)
def test_the_sites_of_a_deployment_notify_also_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "deployment"
    assert run("init", folder, "--sites", 3, "--profile", "metro", "--reformers", 1)[0] == 0
    process = start("up", folder, "--restart")
    try:
        await_line(process, "fairtape status")
        nodes = await_members(folder, "s1", "s2", "s3")
        journal = folder / "journals" / "s1"
        with (
            NotificationReceiver(journal, level=Level.STABLE) as stable,
            NotificationReceiver(journal) as released,
        ):
            for reader in (stable, released):
                while state(reader) is None:
                    reader.wait(0)
            assert run("publish", folder, "--generate", 100)[0] == 0
            await_number(stable, Level.STABLE, 100)
            await_number(released, Level.RELEASED, 100)
            os.kill(nodes["s1"]["pid"], signal.SIGKILL)
            released.wait(100, FOREVER, poll_period=FOREVER)
            assert state(released) is None
            while state(released) is None:
                released.wait(100)
            await_members(folder, "s1", "s2", "s3")
            assert run("publish", folder, "--generate", 100)[0] == 0
            await_number(released, Level.RELEASED, 200)
            while not status(folder)["s1"]["counts"].get("notifications_sent"):
                pass
        interrupt(process)
    finally:
        finish(process)
    assert not (journal / SOCKET_NAME).exists()


def await_number(reader: NotificationReceiver, level: Level, number: int) -> None:
    """Wait until the site announces this number; no test of time ends the wait but that of pytest."""
    while (latest := state(reader)) is None or latest[level] < number:
        reader.wait(number)

"""The edge publisher: the remulticaster of a site, in the process of that site.

It gets what the site releases at its release, and sends it on the stripes of its feeds. Nothing that takes long happens
there: a thread computes the position from the journal, and sets up encoders of later plans. Meanwhile the publisher
sends nothing, and keeps what the site releases.

It sends only while its numbers are certain. While a plan or its position in the order is unknown it sends nothing:
customers receive another site, and request the rest from a retransmit server. The site itself continues.
"""

import sys
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

from fairtape.core.effects import Deliver, FormationChange
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, SECOND, Instant
from fairtape.edge.protocol.effects import SendMulticast, SequenceLost
from fairtape.edge.protocol.remulticast import Remulticaster
from fairtape.edge.protocol.stripe_sequencer import SLICE_MAX
from fairtape.edge.service.settings import EdgeSettings
from fairtape.edge.service.stripe_numbering import (
    EdgeCheckpoint,
    PositionLost,
    RecoveredPosition,
    recover,
    save_checkpoint,
)
from fairtape.edge.service.stripe_plans import PlanUnknown, StripePlanStore, mark_in, version_of
from fairtape.edge.status import PublisherStatus, RemulticastCounts
from fairtape.journal import JournalReader
from fairtape.net.transports import Interface
from fairtape.net.udp import UdpSocket, bind
from fairtape.wire.frames import NUMBER_MAX

KEPT_MAX: Final = 8_192  # releases kept during a search for the position; beyond it the search is repeated
POLL_PERIOD: Final = 20 * MILLISECOND  # between two checks of the thread
MAINTENANCE_PERIOD: Final = 1 * SECOND  # between two checkpoints, and two searches for new plans
WAITING_MAX: Final = 2  # releases that wait to be sent in slices, while the driver reads and releases
SWITCH_PERIOD: Final = 0.000_5  # seconds for which the thread may keep the interpreter from the driver

_Work = tuple[RecoveredPosition, Remulticaster | None]


class EdgePublisher:
    """The publisher of one site: the node runtime calls it with releases, changes of formation and the time."""

    def __init__(
        self,
        settings: EdgeSettings,
        site: str,
        *,
        plan_store: StripePlanStore,
        journal: Path,
        checkpoint_file: Path,
        interface: str,
        log: Callable[[str], None],
    ) -> None:
        """Raises `UserError` where no socket can be opened."""
        self._settings = settings
        self._feed = settings.publishers[site].feed
        self._feeds: tuple[str, ...] = () if settings.regions else (self._feed,)
        self._plan_store = plan_store
        self._journal = journal
        self._checkpoint_file = checkpoint_file
        self._log = log
        own = bind("", 0)
        try:
            Interface.named(interface).configure_sender(own, ttl=settings.ttl)
        except BaseException:
            own.close()
            raise
        self._socket = UdpSocket(own)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="edge")
        self._searching: Future[_Work] | None = None
        self._maintenance: Future[None] | None = None
        self._remulticaster: Remulticaster | None = None
        self._counts = RemulticastCounts()  # of earlier remulticasters
        self._idle = False  # no plan is in force
        self._state_text = "searches its position"
        self._released: deque[Deliver] = deque()  # not sent yet, or the first in part
        self._slices: Iterator[bool] | None = None  # of the first release, which is sent in part
        self._kept: list[Deliver | FormationChange] = []
        self._overflowed = False
        self._entry = (0, 0)  # formation and token of the last release that was sent
        self._saved = 0  # sequence
        self._poll_at: Instant = 0
        self._search_at: Instant = 0

    # Called by the node runtime.

    def delivered(self, delivery: Deliver) -> None:
        """The site releases this now. It is sent in the next `wake`, when the other sites of this machine released."""
        if self._remulticaster is None:
            self._keep(delivery)  # at once: a search of the position must not find its mark in the journal before
        else:
            self._released.append(delivery)

    def _send_slice(self) -> bool:
        """Send the first release, or a part of it: a large token must not delay the next release.

        Returns whether there was anything to send.
        """
        if not self._released:
            return False
        delivery = self._released[0]
        if self._slices is None:
            self._slices = self._send(delivery)
        if delivery.ordered.count > SLICE_MAX and next(self._slices, False):
            return True
        for _ in self._slices:
            pass
        self._slices = None
        self._released.popleft()
        while self._released and self._remulticaster is None:  # its position was lost, and is searched
            self._keep(self._released.popleft())
        return True

    def _send_released(self) -> None:
        while self._send_slice():
            pass

    def _send(self, delivery: Deliver) -> Iterator[bool]:
        """Send a release; yields True after each slice."""
        if self._remulticaster is None:
            self._keep(delivery)
            return
        for _ in self._remulticaster.deliver_slices(delivery, delivery.release.released_at):
            self._carry_out()
            yield True
        self._entry = delivery.ordered.formation, delivery.ordered.token
        if not self._carry_out():
            self._keep(delivery)

    def on_formation(self, change: FormationChange) -> None:
        """A formation takes over at a later place of the order."""
        self._send_released()
        mark = mark_in(change)
        if self._remulticaster is None:
            self._keep(change)
            if self._idle and mark:
                self._stop_sending(f"plan {version_of(mark)} comes into force")
            return
        plan = encoder = None
        if version_of(mark) > self._remulticaster.position.edition.plan.version:
            prepared = self._plan_store.prepared(mark)
            if prepared is None or not set(self._feeds) <= set(prepared[0].feeds):
                self._stop_sending(f"plan {version_of(mark)} comes into force, and is not prepared")
                self._keep(change)
                return
            plan, encoder = prepared
        self._remulticaster.on_formation(change)
        if plan is not None:
            self._remulticaster.change_plan(plan, at_sequence=change.sequence, at=change.installed_at, encoder=encoder)

    def assign(self, feeds: Collection[str], now: Instant) -> None:
        """Send on these feeds, which the formation assigns to this site."""
        if tuple(feeds) != self._feeds:
            self._send_released()  # a token that is sent in part stays on one feed
            self._feeds = tuple(feeds)
            self._log(f"edge: sends on {', '.join(self._feeds) or 'no feed'}")
            if self._remulticaster is not None:
                self._remulticaster.set_feeds(self._feeds, now)

    def deadline(self) -> Instant | None:
        """When a stripe is due, or the thread is to be checked."""
        if self._released:
            return 0
        due_at = self._remulticaster.deadline() if self._remulticaster is not None else None
        return self._poll_at if due_at is None else min(due_at, self._poll_at)

    def wake(self, now: Instant) -> None:
        """Send a slice of what is released, and what is due; check the thread.

        Where slices do not keep up, everything is sent at once. That delays releases, and so slows the sources.
        """
        self._send_slice()
        while len(self._released) > WAITING_MAX:
            self._send_slice()
        if self._remulticaster is not None:
            self._remulticaster.wake(now)
            self._carry_out()
        if now >= self._poll_at and self._slices is None:  # a checkpoint is taken between two tokens
            self._poll(now)

    # Called by the process of the site.

    def status(self) -> PublisherStatus:
        counts = asdict(self._counts)
        if self._remulticaster is not None:
            counts = {name: value + getattr(self._remulticaster.counts, name) for name, value in counts.items()}
        plan = None if self._remulticaster is None else self._remulticaster.position.edition.plan.version
        return PublisherStatus(
            feed=self._feed,
            feeds=tuple(self._feeds),
            speaks=self._remulticaster is not None,
            reason=self._state_text,
            plan=plan,
            marks=tuple(self._plan_store.marks),
            counts=RemulticastCounts(**counts),
            sent=self._socket.traffic.sent,
            unsent=self._socket.traffic.dropped,
        )

    def close(self) -> None:
        """Save the position, and close the socket."""
        self._thread.shutdown(cancel_futures=True)
        self._send_released()
        if self._remulticaster is not None and not self._remulticaster.lost:
            self._save(self._checkpoint(self._remulticaster))
        self._socket.close()

    # Sending.

    def _carry_out(self) -> bool:
        """Carry out the effects; returns whether the position is still known."""
        assert self._remulticaster is not None
        for effect in self._remulticaster.drain():
            if isinstance(effect, SendMulticast):
                self._socket.send(effect.datagrams, (effect.to.address, effect.to.port))
            elif isinstance(effect, SequenceLost):
                self._stop_sending(f"expected sequence {effect.expected} and got {effect.found}")
                return False
        return True

    def _stop_sending(self, text: str) -> None:
        """Send nothing until the position was found again."""
        self._report(text)
        if self._remulticaster is not None:
            for name, value in asdict(self._remulticaster.counts).items():
                setattr(self._counts, name, getattr(self._counts, name) + value)
        self._remulticaster = None
        self._idle = False
        self._poll_at = 0

    def _report(self, text: str) -> None:
        if text != self._state_text:
            self._state_text = text
            self._log(f"edge: {text}")

    def _keep(self, each: Deliver | FormationChange) -> None:
        if self._idle:
            return
        if len(self._kept) >= KEPT_MAX:
            self._overflowed = True
            self._kept.clear()
        if not self._overflowed:
            self._kept.append(each)

    # Searching the position, and maintenance, in the thread.

    def _poll(self, now: Instant) -> None:
        if self._remulticaster is not None or self._idle:
            self._poll_at = now + MAINTENANCE_PERIOD
            self._start_maintenance()
            return
        self._poll_at = now + POLL_PERIOD
        if self._searching is None:
            if now >= self._search_at:
                self._search_at = now + MAINTENANCE_PERIOD
                self._overflowed = False
                self._searching = self._thread.submit(self._search)
        elif self._searching.done():
            searching, self._searching = self._searching, None
            try:
                found, remulticaster = searching.result()
            except (PlanUnknown, PositionLost, UserError, OSError) as error:
                self._report(str(error))
            else:
                self._start(found, remulticaster, now)

    def _search(self) -> _Work:
        """In the thread: find the position, and set up a remulticaster there."""
        with _short_switch_interval():
            journal = JournalReader(self._journal)
            found = recover(journal, self._checkpoint_file, self._settings, self._plan_store, before=self._kept_from)
            if found.checkpoint is None:
                return found, None
            self._save(found.checkpoint)
            position = found.checkpoint.position
            plan, encoder = self._plan_store.by_version(position.edition.plan.version)
            for change in found.changes:
                if mark_in(change):
                    self._plan_store.by_mark(mark_in(change))
            feeds = self._feeds
            for feed in feeds:
                if feed not in plan.feeds:
                    raise PlanUnknown(f"plan {plan.version} has no feed {feed}; its feeds are {', '.join(plan.feeds)}")
            return found, Remulticaster(position, feeds=feeds, encoder=encoder)

    def _kept_from(self) -> int:
        """The first sequence number that is kept. A release is kept before the journal has its mark."""
        return next((each.ordered.sequence for each in self._kept if isinstance(each, Deliver)), NUMBER_MAX)

    def _start(self, found: RecoveredPosition, remulticaster: Remulticaster | None, now: Instant) -> None:
        """Send from the position that was found, first what was released since."""
        if self._overflowed:
            return  # it took too long; but a checkpoint was saved, so the next search is shorter
        kept, self._kept = self._kept, []
        if remulticaster is None:
            self._idle = True
            self._report("no plan is in force")
            for each in kept:
                if isinstance(each, FormationChange):
                    self.on_formation(each)
            return
        assert found.checkpoint is not None
        self._entry = found.checkpoint.formation, found.checkpoint.token
        self._remulticaster = remulticaster
        remulticaster.set_feeds(self._feeds, now)
        self._report(f"sends from sequence {remulticaster.position.sequence} on")
        remulticaster.start(now)
        self._carry_out()
        for each in (*found.changes, *kept):
            if isinstance(each, FormationChange):
                self.on_formation(each)
            else:
                self._released.append(each)
                self._send_released()

    def _start_maintenance(self) -> None:
        """Save the position and set up the next plans, in the thread."""
        if self._maintenance is not None:
            if not self._maintenance.done():
                return
            if (fault := self._maintenance.exception()) is not None:  # our own bug, but no reason to end the site
                self._log(f"edge: maintenance failed ({fault!r})")
        remulticaster = self._remulticaster
        checkpoint = None
        if remulticaster is not None and remulticaster.position.sequence != self._saved and self._entry[1]:
            checkpoint = self._checkpoint(remulticaster)
            self._saved = checkpoint.position.sequence
        version = 0 if remulticaster is None else remulticaster.position.edition.plan.version
        self._maintenance = self._thread.submit(self._maintain, checkpoint, version)

    def _maintain(self, checkpoint: EdgeCheckpoint | None, version: int) -> None:
        with _short_switch_interval():
            if checkpoint is not None:
                self._save(checkpoint)
            self._plan_store.prepare(version)

    def _checkpoint(self, remulticaster: Remulticaster) -> EdgeCheckpoint:
        return EdgeCheckpoint(remulticaster.position, *self._entry)

    def _save(self, checkpoint: EdgeCheckpoint) -> None:
        """If the file cannot be written, the next start takes longer."""
        try:
            save_checkpoint(self._checkpoint_file, checkpoint)
        except OSError as error:
            self._log(f"edge: {self._checkpoint_file} cannot be written ({error.strerror})")


@contextmanager
def _short_switch_interval() -> Iterator[None]:
    """Lets the driver interrupt the thread within SWITCH_PERIOD instead of the usual 5 ms."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_PERIOD)
    try:
        yield
    finally:
        sys.setswitchinterval(before)

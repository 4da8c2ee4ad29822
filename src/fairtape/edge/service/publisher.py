"""The station: the outlet of a site, in the process of that site.

It hears what the site releases, at the instant at which it is released, and casts it on the stripes of its feed.
Nothing that takes long happens there. Where the outlet stands is worked out from the journal by a thread, and so is
everything about a plan to come; meanwhile the station is silent, and keeps what the site releases until it speaks.

It speaks only while it is sure of its numbers. Whatever it does not know (a plan, its place in the order) makes it
silent until it does: customers hear another site, and ask a retransmit server for the rest. The site itself goes on.
"""

import sys
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from fairtape.core.effects import Deliver, FormationChange
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, SECOND, Instant
from fairtape.edge.protocol.effects import SendMulticast, SequenceLost
from fairtape.edge.protocol.remulticast import RemulticastCounts, Remulticaster
from fairtape.edge.service.checkpoints import EdgeCheckpoint, save
from fairtape.edge.service.settings import EdgeSettings
from fairtape.edge.service.stripe_numbering import PositionLost, RecoveredPosition, recover
from fairtape.edge.service.stripe_plans import PlanUnknown, StripePlanStore, mark_in, version_of
from fairtape.journal import JournalReader
from fairtape.net.transports import Interface
from fairtape.net.udp import UdpSocket, bind
from fairtape.wire.frames import NUMBER_MAX

KEPT_MAX: Final = 8_192  # releases that wait for the outlet to find its place; beyond them it has to look again
LOOK_PERIOD: Final = 20 * MILLISECOND  # between two looks at what the thread is doing
CHORE_PERIOD: Final = 1 * SECOND  # between two checkpoints, and two looks for new plans
SWITCH_PERIOD: Final = 0.000_5  # seconds for which the thread may keep the driver waiting

_Work = tuple[RecoveredPosition, Remulticaster | None]


class EdgePublisher:
    """One site's outlet: a consumer, a herald and a producer of its seat."""

    def __init__(
        self,
        settings: EdgeSettings,
        site: str,
        *,
        catalogue: StripePlanStore,
        journal: Path,
        sidecar: Path,
        interface: str,
        log: Callable[[str], None],
    ) -> None:
        """A `UserError` where no socket can be had."""
        self._settings = settings
        self._feed = settings.stations[site].feed
        self._feeds: tuple[str, ...] = () if settings.regions else (self._feed,)
        self._catalogue = catalogue
        self._journal = journal
        self._sidecar = sidecar
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
        self._chore: Future[None] | None = None
        self._outlet: Remulticaster | None = None
        self._counts = RemulticastCounts()  # of outlets that are gone
        self._idle = False  # no plan is in force
        self._words = "looks for its place"
        self._kept: list[Deliver | FormationChange] = []
        self._overflowed = False
        self._entry = (0, 0)  # formation and token of the last release that was cast
        self._saved = 0  # sequence
        self._look_at: Instant = 0
        self._chore_at: Instant = 0

    # The seat's side.

    def delivered(self, delivery: Deliver) -> None:
        """The consumer: the site releases this, now."""
        if self._outlet is None:
            self._keep(delivery)
            return
        self._outlet.deliver(delivery, delivery.release.released_at)
        self._entry = delivery.ordered.formation, delivery.ordered.token
        if not self._carry_out():
            self._keep(delivery)

    def turned(self, change: FormationChange) -> None:
        """The herald: a formation takes over at a place of the order to come."""
        mark = mark_in(change)
        if self._outlet is None:
            self._keep(change)
            if self._idle and mark:
                self._fall_silent(f"plan {version_of(mark)} comes into force")
            return
        plan = press = None
        if version_of(mark) > self._outlet.standing.edition.plan.version:
            at_hand = self._catalogue.at_hand(mark)
            if at_hand is None or not set(self._feeds) <= set(at_hand[0].feeds):
                self._fall_silent(f"plan {version_of(mark)} comes into force, and is not at hand")
                self._keep(change)
                return
            plan, press = at_hand
        self._outlet.turn(change)
        if plan is not None:
            self._outlet.change_plan(plan, at_sequence=change.sequence, at=change.installed_at, press=press)

    def assign(self, feeds: Collection[str], now: Instant) -> None:
        """The feeds that a formation leaves to this site."""
        if tuple(feeds) != self._feeds:
            self._feeds = tuple(feeds)
            self._log(f"edge: speaks on {', '.join(self._feeds) or 'no feed'}")
            if self._outlet is not None:
                self._outlet.speak_on(self._feeds, now)

    def deadline(self) -> Instant | None:
        """When a stripe wants to speak, or there is something to look after."""
        due_at = self._outlet.deadline() if self._outlet is not None else None
        return self._look_at if due_at is None else min(due_at, self._look_at)

    def wake(self, now: Instant) -> None:
        """Send what may go by now; see what the thread has found."""
        if self._outlet is not None:
            self._outlet.wake(now)
            self._carry_out()
        if now >= self._look_at:
            self._look(now)

    # The operator's side.

    def status(self) -> dict[str, Any]:
        """How it fares."""
        counts = asdict(self._counts)
        if self._outlet is not None:
            counts = {name: value + getattr(self._outlet.counts, name) for name, value in counts.items()}
        plan = None if self._outlet is None else self._outlet.standing.edition.plan.version
        return {
            "feed": self._feed,
            "feeds": list(self._feeds),
            "speaks": self._outlet is not None,
            "words": self._words,
            "plan": plan,
            "marks": self._catalogue.marks,
            **counts,
            "sent": self._socket.traffic.sent,
            "unsent": self._socket.traffic.dropped,
        }

    def close(self) -> None:
        """Remember the place, and give the socket back."""
        self._thread.shutdown(cancel_futures=True)
        if self._outlet is not None and not self._outlet.adrift:
            self._save(self._checkpoint(self._outlet))
        self._socket.close()

    # Speaking.

    def _carry_out(self) -> bool:
        """Send what the outlet wants sent; whether it is sure of its place."""
        assert self._outlet is not None
        for effect in self._outlet.drain():
            if isinstance(effect, SendMulticast):
                self._socket.send(effect.datagrams, (effect.to.address, effect.to.port))
            elif isinstance(effect, SequenceLost):
                self._fall_silent(f"expected sequence {effect.expected} and was given {effect.found}")
                return False
        return True

    def _fall_silent(self, words: str) -> None:
        """Look for the place again; until then say nothing."""
        self._say(words)
        if self._outlet is not None:
            for name, value in asdict(self._outlet.counts).items():
                setattr(self._counts, name, getattr(self._counts, name) + value)
        self._outlet = None
        self._idle = False
        self._look_at = 0

    def _say(self, words: str) -> None:
        if words != self._words:
            self._words = words
            self._log(f"edge: {words}")

    def _keep(self, each: Deliver | FormationChange) -> None:
        if self._idle:
            return
        if len(self._kept) >= KEPT_MAX:
            self._overflowed = True
            self._kept.clear()
        if not self._overflowed:
            self._kept.append(each)

    # Looking.

    def _look(self, now: Instant) -> None:
        if self._outlet is not None or self._idle:
            self._look_at = now + CHORE_PERIOD
            self._do_chores()
            return
        self._look_at = now + LOOK_PERIOD
        if self._searching is None:
            if now >= self._chore_at:
                self._chore_at = now + CHORE_PERIOD
                self._overflowed = False
                self._searching = self._thread.submit(self._search)
        elif self._searching.done():
            searching, self._searching = self._searching, None
            try:
                found, outlet = searching.result()
            except (PlanUnknown, PositionLost, UserError, OSError) as trouble:
                self._say(str(trouble))
            else:
                self._settle(found, outlet, now)

    def _search(self) -> _Work:
        """The thread's work: find the place, and set up an outlet there."""
        with _giving_way():
            journal = JournalReader(self._journal)
            found = recover(journal, self._sidecar, self._settings, self._catalogue, before=self._kept_from)
            if found.checkpoint is None:
                return found, None
            self._save(found.checkpoint)
            standing = found.checkpoint.standing
            plan, press = self._catalogue.by_version(standing.edition.plan.version)
            for change in found.changes:
                if mark_in(change):
                    self._catalogue.by_mark(mark_in(change))
            feeds = self._feeds
            for feed in feeds:
                if feed not in plan.feeds:
                    raise PlanUnknown(f"plan {plan.version} has no feed {feed}; its feeds are {', '.join(plan.feeds)}")
            return found, Remulticaster(standing, feeds=feeds, press=press)

    def _kept_from(self) -> int:
        """The first sequence number that is kept. A release is kept before the journal says that it was one."""
        return next((each.ordered.sequence for each in self._kept if isinstance(each, Deliver)), NUMBER_MAX)

    def _settle(self, found: RecoveredPosition, outlet: Remulticaster | None, now: Instant) -> None:
        """Speak from the place that was found; first what was released since."""
        if self._overflowed:
            return  # it took too long, but there is a checkpoint now, and the next search is shorter
        kept, self._kept = self._kept, []
        if outlet is None:
            self._idle = True
            self._say("no plan is in force")
            for each in kept:
                if isinstance(each, FormationChange):
                    self.turned(each)
            return
        assert found.checkpoint is not None
        self._entry = found.checkpoint.formation, found.checkpoint.token
        self._outlet = outlet
        outlet.speak_on(self._feeds, now)
        self._say(f"speaks from sequence {outlet.standing.sequence} on")
        outlet.start(now)
        self._carry_out()
        for each in (*found.changes, *kept):
            if isinstance(each, FormationChange):
                self.turned(each)
            else:
                self.delivered(each)

    def _do_chores(self) -> None:
        """Remember the place, and get the next plans ready, in the thread."""
        if self._chore is not None:
            if not self._chore.done():
                return
            if (fault := self._chore.exception()) is not None:  # ours; but no reason for a site to end
                self._log(f"edge: getting ready failed ({fault!r})")
        outlet = self._outlet
        checkpoint = None
        if outlet is not None and outlet.standing.sequence != self._saved and self._entry[1]:
            checkpoint = self._checkpoint(outlet)
            self._saved = checkpoint.standing.sequence
        version = 0 if outlet is None else outlet.standing.edition.plan.version
        self._chore = self._thread.submit(self._chores, checkpoint, version)

    def _chores(self, checkpoint: EdgeCheckpoint | None, version: int) -> None:
        with _giving_way():
            if checkpoint is not None:
                self._save(checkpoint)
            self._catalogue.prepare(version)

    def _checkpoint(self, outlet: Remulticaster) -> EdgeCheckpoint:
        return EdgeCheckpoint(outlet.standing, *self._entry)

    def _save(self, checkpoint: EdgeCheckpoint) -> None:
        """Where it cannot be written, the next start takes longer."""
        try:
            save(self._sidecar, checkpoint)
        except OSError as error:
            self._log(f"edge: {self._sidecar} cannot be written ({error.strerror})")


@contextmanager
def _giving_way() -> Iterator[None]:
    """While a thread works, it leaves the interpreter to the driver at once, and not after the usual 5 ms."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_PERIOD)
    try:
        yield
    finally:
        sys.setswitchinterval(before)

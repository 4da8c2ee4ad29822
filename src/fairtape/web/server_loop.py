"""The rounds of a server, in its event loop: look into the journal, hand out what is new, bring up who is behind.

The journal is looked at, and nobody rings a bell: a look costs some microseconds, the site knows nothing of its
listeners, and a journal that is copied here by other means is served as well.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import numpy as np

from fairtape.client.journal_feed import notices
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.deployment.follow.site_failover import SiteFailover
from fairtape.tape.batches import TradeBatch
from fairtape.tape.feed import Delivery
from fairtape.tape.records import Delayed, Notice, Prompt
from fairtape.web.broadcast import PAUSE_MIN, Broadcaster, pause_after
from fairtape.web.websocket import WebSocketConnection

SITE_PERIOD: Final = 100 * MILLISECOND  # between two calls that check the site, which has a period of its own
INDEX_PERIOD: Final = 100 * MILLISECOND
CHECK_PERIOD: Final = 20 * SECOND  # between two pings
DELAYS_MAX: Final = 1_024  # rounds whose delays are remembered
LATE_MIN: Final = 5  # late rounds, and one in a hundred, make a server overloaded: a single one is no judgment
PROMPT_MIN: Final = 100  # rounds before it is said that it is not overloaded any more
DELAY_GOAL: Final = 50 * MILLISECOND  # from the release to the last customer; above it the server is overloaded
DELAY_GOOD: Final = 40 * MILLISECOND  # below it the server is not overloaded any more
PACE_PERIOD: Final = 500 * MILLISECOND  # between two looks at how it goes


class LagMonitor:
    """Whether customers get in time what is released; says so when that changes.

    After each change it is judged by new rounds alone, so whoever is at the limit does not say so twice a second.
    """

    def __init__(self) -> None:
        self.delays: deque[Duration] = deque(maxlen=DELAYS_MAX)  # from the release of a round's first to its end
        self.delayed = False

    def look(self) -> Notice | None:
        """What there is to say."""
        delay = round(_percentile(self.delays, 99) * MILLISECOND)
        if self.delayed:
            changed = len(self.delays) >= PROMPT_MIN and delay <= DELAY_GOOD
        else:
            late = sum(each > DELAY_GOAL for each in self.delays)
            changed = late >= max(LATE_MIN, len(self.delays) / 100)
        if not changed:
            return None
        self.delayed = not self.delayed
        self.delays.clear()
        return Delayed(delay) if self.delayed else Prompt()


class ServerLoop:
    """Runs a hub."""

    def __init__(
        self,
        hub: Broadcaster,
        failover: SiteFailover | None = None,
        *,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`failover` reports outages of the site, where it belongs to a deployment; `say` tells the operator."""
        self.hub = hub
        self.connections: set[Any] = set()  # of the server: those that end and are checked
        self.began_at = time.time_ns()
        self.ending = False
        self.failure: Exception | None = None  # what made it impossible to go on
        self._failover = failover
        self._say = say
        self._pace = LagMonitor()
        self._release_errors: deque[Duration] = deque(maxlen=DELAYS_MAX)
        checks_at = time.monotonic_ns() + CHECK_PERIOD
        self._due = {self._look_at_site: 0, self._look_at_pace: 0, self._index: 0, self._check: checks_at}

    @property
    def stale(self) -> bool:
        """Whether the site does not serve."""
        return self._failover is not None and self._failover.is_silent

    async def run(self, fail: Callable[[], None]) -> None:
        """Rounds until it is cancelled; what cannot be borne is kept, and told by `fail`."""
        try:
            await self._run()
        except Exception as error:  # noqa: BLE001 - a mistake of ours, too, must end the server and not only its rounds
            self.failure = error
            self.ending = True
            fail()

    async def _run(self) -> None:
        while True:
            began_at = time.monotonic_ns()
            found = [] if self.ending else self.hub.ticker.advance()
            self._play(found)
            self._errands(began_at)
            await asyncio.sleep(0)  # the transports send now
            if found:
                self._note(found)
            pause = PAUSE_MIN if self.hub.busy else pause_after(time.monotonic_ns() - began_at)
            await asyncio.sleep(pause / SECOND)

    def end(self) -> None:
        """The last round: from now on nothing is new, and who has everything is told so."""
        if not self.ending:
            while self.failure is None and (found := self.hub.ticker.advance()):
                self._play(found)
            self.ending = True

    def delays(self) -> dict[str, float]:
        """How it has gone lately, in milliseconds."""
        return {
            "send_delay_p50_ms": _percentile(self._pace.delays, 50),
            "send_delay_p99_ms": _percentile(self._pace.delays, 99),
            "release_error_p50_ms": _percentile(self._release_errors, 50),
            "release_error_p99_ms": _percentile(self._release_errors, 99),
        }

    @property
    def overloaded(self) -> bool:
        """Whether customers get what was released later than they should."""
        return self._pace.delayed

    def _play(self, found: list[Delivery]) -> None:
        now = time.time_ns()
        if found:
            self.hub.publish(found, now)
        self.hub.bring_up(now)

    def _note(self, found: list[Delivery]) -> None:
        now = time.time_ns()
        for delivery in found:
            if isinstance(delivery, TradeBatch):
                released_at = int(delivery.places["released_at"].min())
                if released_at >= self.began_at:  # what was released before is the past, however it came here
                    self._pace.delays.append(now - released_at)
                errors = delivery.places["released_at"] - delivery.places["commit_at"]
                self._release_errors.append(int(errors.max()))

    def _errands(self, now: Instant) -> None:
        for errand, due_at in self._due.items():
            if now >= due_at:
                self._due[errand] = now + errand()
        if self.ending:
            for line in self._lines():
                line.shutdown()

    def _look_at_site(self) -> Duration:
        for notice in () if self._failover is None else notices(self._failover.check()):
            self.hub.announce(notice, time.time_ns())
        return SITE_PERIOD

    def _look_at_pace(self) -> Duration:
        notice = self._pace.look()
        if notice is not None:
            self.hub.announce(notice, time.time_ns())
        if isinstance(notice, Delayed):
            self.hub.counts["overloads"] += 1
            self._say(
                f"this server cannot keep up; customers: {len(self.hub.customers):,}; one message in a hundred is out"
                f" {notice.delay / MILLISECOND:.0f} ms after its release"
            )
        elif notice is not None:
            self._say(f"this server keeps up again; customers: {len(self.hub.customers):,}")
        return PACE_PERIOD

    def _index(self) -> Duration:
        with suppress(UserError):  # such as too many open files: what is not at hand now is found later
            self.hub.ticker.keep_up()
        return INDEX_PERIOD

    def _check(self) -> Duration:
        for line in self._lines():
            line.check()
        return CHECK_PERIOD

    def _lines(self) -> Iterator[WebSocketConnection]:
        return (each for each in list(self.connections) if isinstance(each, WebSocketConnection))


def _percentile(values: deque[Duration], percent: float) -> float:
    return round(float(np.percentile(values, percent)) / MILLISECOND, 3) if values else 0.0

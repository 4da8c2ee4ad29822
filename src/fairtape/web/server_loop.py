"""The rounds of a server, in its event loop: read the journal, send what is new, send replays to customers that resume.

A round begins when the site notifies of a release, or a customer can be sent a piece of the past. Without customers,
releases are gathered for a while. A journal without notifications is polled; so one that is copied here by other means
is served as well.
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
from fairtape.web.broadcast import PAUSE_MIN, ROUND_PERIOD, Broadcaster, pause_after
from fairtape.web.websocket import WebSocketConnection

SITE_PERIOD: Final = 100 * MILLISECOND  # between two calls that check the site, which has a period of its own
INDEX_PERIOD: Final = 500 * MILLISECOND  # between two calls that index what was appended, for replays
PING_PERIOD: Final = 20 * SECOND  # between two pings
DELAYS_MAX: Final = 1_024  # rounds whose delays are kept
LATE_MIN: Final = 5  # late rounds, and one in a hundred, make a server overloaded; a single one does not
PROMPT_MIN: Final = 100  # rounds before the end of an overload is reported
DELAY_GOAL: Final = 50 * MILLISECOND  # from the release to the last customer; above it the server is overloaded
DELAY_GOOD: Final = 40 * MILLISECOND  # below it the server is not overloaded any more
LAG_PERIOD: Final = 500 * MILLISECOND  # between two checks of the delays


class LagMonitor:
    """Whether customers are sent in time what is released; reports each change.

    After a change only new rounds count, so a server at the limit does not report changes twice a second.
    """

    def __init__(self) -> None:
        self.delays: deque[Duration] = deque(maxlen=DELAYS_MAX)  # from the release of a round's first to its end
        self.delayed = False

    def check(self) -> Notice | None:
        """The notice of a change, if there is one."""
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
    """Runs a broadcaster."""

    def __init__(
        self,
        broadcaster: Broadcaster,
        failover: SiteFailover | None = None,
        *,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`failover` reports outages of the site, where it belongs to a deployment; `report` tells the operator."""
        self.broadcaster = broadcaster
        self.connections: set[Any] = set()  # of the server: they are pinged, and closed at the end
        self.began_at = time.time_ns()
        self.ending = False
        self.failure: Exception | None = None  # what made it impossible to go on
        self._failover = failover
        broadcaster.on_replay = broadcaster.ticker.notifications.end_wait
        self._report = report
        self._lag = LagMonitor()
        self._release_errors: deque[Duration] = deque(maxlen=DELAYS_MAX)
        ping_at = time.monotonic_ns() + PING_PERIOD
        self._due = {self._check_site: 0, self._check_lag: 0, self._index: 0, self._ping: ping_at}

    @property
    def stale(self) -> bool:
        """Whether the site does not serve."""
        return self._failover is not None and self._failover.is_silent

    async def run(self, fail: Callable[[], None]) -> None:
        """Run rounds until it is cancelled; keeps what makes that impossible as `failure` and calls `fail`."""
        try:
            await self._run()
        except Exception as error:  # noqa: BLE001 - a mistake of ours, too, must end the server and not only its rounds
            self.failure = error
            self.ending = True
            fail()

    async def _run(self) -> None:
        while True:
            began_at = time.monotonic_ns()
            found = [] if self.ending else self.broadcaster.ticker.advance()
            self._publish(found)
            self._run_tasks(began_at)
            await asyncio.sleep(0)  # the transports send now
            if found:
                self._measure(found)
            await self._pause(began_at, idle=not found)

    async def _pause(self, began_at: Instant, *, idle: bool) -> None:
        """Wait until there is something to do, and leave a part of the time to others."""
        now = time.monotonic_ns()
        if not (self.broadcaster.busy or self.ending):
            ticker, due_at = self.broadcaster.ticker, min(self._due.values())
            await ticker.notifications.wait_in_loop(ticker.read_through, due_at - now, poll_period=PAUSE_MIN)
        if self.broadcaster.busy or self.ending:
            resumes_at = now + PAUSE_MIN
        elif not self.broadcaster.channels:
            resumes_at = began_at + ROUND_PERIOD
        else:
            resumes_at = now if idle else now + pause_after(now - began_at)
        left = resumes_at - time.monotonic_ns()
        if left > 0:
            await asyncio.sleep(left / SECOND)

    def end(self) -> None:
        """The last round: publish what was released by now. Customers that have everything are closed afterwards."""
        if not self.ending:
            while self.failure is None and (found := self.broadcaster.ticker.advance()):
                self._publish(found)
            self.ending = True

    def delays(self) -> dict[str, float]:
        """Percentiles of recent rounds, in milliseconds."""
        return {
            "send_delay_p50_ms": _percentile(self._lag.delays, 50),
            "send_delay_p99_ms": _percentile(self._lag.delays, 99),
            "release_error_p50_ms": _percentile(self._release_errors, 50),
            "release_error_p99_ms": _percentile(self._release_errors, 99),
        }

    @property
    def overloaded(self) -> bool:
        """Whether customers are sent what was released later than they should be."""
        return self._lag.delayed

    def _publish(self, found: list[Delivery]) -> None:
        now = time.time_ns()
        if found:
            self.broadcaster.publish(found, now)
        self.broadcaster.send_replays(now)

    def _measure(self, found: list[Delivery]) -> None:
        now, has_customers = time.time_ns(), self.broadcaster.channels > 0
        for delivery in found:
            if isinstance(delivery, TradeBatch):
                released_at = int(delivery.places["released_at"].min())
                # What was released before is the past, however it came here.
                if has_customers and released_at >= self.began_at:
                    self._lag.delays.append(now - released_at)
                errors = delivery.places["released_at"] - delivery.places["commit_at"]
                self._release_errors.append(int(errors.max()))

    def _run_tasks(self, now: Instant) -> None:
        for task, due_at in self._due.items():
            if now >= due_at:
                self._due[task] = now + task()
        if self.ending:
            for connection in self._websockets():
                connection.shutdown()

    def _check_site(self) -> Duration:
        for notice in () if self._failover is None else notices(self._failover.check()):
            self.broadcaster.announce(notice, time.time_ns())
        return SITE_PERIOD

    def _check_lag(self) -> Duration:
        notice = self._lag.check()
        if notice is not None:
            self.broadcaster.announce(notice, time.time_ns())
        if isinstance(notice, Delayed):
            self.broadcaster.counts["overloads"] += 1
            self._report(
                f"this server cannot keep up; customers: {len(self.broadcaster.customers):,}; one message in a hundred"
                f" is out {notice.delay / MILLISECOND:.0f} ms after its release"
            )
        elif notice is not None:
            self._report(f"this server keeps up again; customers: {len(self.broadcaster.customers):,}")
        return LAG_PERIOD

    def _index(self) -> Duration:
        with suppress(UserError):  # such as too many open files: the next call catches up
            self.broadcaster.ticker.update_index()
        return INDEX_PERIOD

    def _ping(self) -> Duration:
        for connection in self._websockets():
            connection.ping()
        return PING_PERIOD

    def _websockets(self) -> Iterator[WebSocketConnection]:
        return (each for each in list(self.connections) if isinstance(each, WebSocketConnection))


def _percentile(values: deque[Duration], percent: float) -> float:
    return round(float(np.percentile(values, percent)) / MILLISECOND, 3) if values else 0.0

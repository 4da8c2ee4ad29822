"""Messages into a ring as one of its sources: from a queue that another thread fills, or a few of them once."""

import threading
from collections import deque
from collections.abc import Sequence
from typing import Final

from fairtape.core.errors import UserError
from fairtape.core.instants import SECOND, Duration, Instant
from fairtape.deployment.publish.target import PublishTarget
from fairtape.deployment.ring_plan import RingPlan, source_of, source_runtime
from fairtape.net.clock import SharedClock
from fairtape.net.driver import Driver
from fairtape.nodes.source import Source
from fairtape.wire.frames import NodeId

QUEUED_MAX: Final = 1 << 20  # bytes that wait in the source; the rest waits in the queue
WAITING_MAX: Final = 1 << 20  # messages in the queue; a gateway has far fewer pending
CHUNK_MAX: Final = 4_096  # messages that are submitted at once
SILENCE_MAX: Final[Duration] = 5 * SECOND


def source_named(door: PublishTarget, wanted: str) -> NodeId:
    """The source of that name or number. A `UserError` names those that there are."""
    for node, name in door.names.items():
        if wanted.upper() == name.upper() or wanted == str(node):
            return node
    names = ", ".join(f"{name} ({node})" for node, name in door.names.items())
    raise UserError(f"--source is {wanted!r}; the deployment knows {names}")


class PublishQueue:
    """A producer that submits what other threads put into it."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._waiting: deque[bytes] = deque()
        self._lock = threading.Lock()

    def put(self, payloads: Sequence[bytes]) -> None:
        """Let these be published, in this order. From any thread."""
        with self._lock:
            assert len(self._waiting) + len(payloads) <= WAITING_MAX
            self._waiting.extend(payloads)

    @property
    def empty(self) -> bool:
        """Whether everything was submitted."""
        return not self._waiting

    def deadline(self) -> Instant | None:
        """At once, while there is something and the source has room."""
        return 0 if self._waiting and self._source.queued < QUEUED_MAX else None

    def wake(self, now: Instant) -> None:
        """Submit what there is room for."""
        with self._lock:
            chunk = [self._waiting[index] for index in range(min(len(self._waiting), CHUNK_MAX))]
        taken = self._source.publish(chunk, now) if chunk else 0
        with self._lock:
            for _ in range(taken):
                self._waiting.popleft()


class SourceThread:
    """One source of a ring in a thread of its own."""

    def __init__(self, plan: RingPlan, me: NodeId) -> None:
        self.clock = SharedClock()
        self.source = source_of(plan, me, self.clock)
        self._outbox = PublishQueue(self.source)
        self._driver = Driver([source_runtime(plan, self.source, producer=self._outbox)], self.clock)
        self._thread = threading.Thread(target=self._driver.run, name="source", daemon=True)
        self._thread.start()

    def publish(self, payloads: list[bytes]) -> None:
        """Send these; from any thread."""
        self._outbox.put(payloads)
        self._driver.wakeup()

    @property
    def idle(self) -> bool:
        """Whether everything has its place in the order, and enough sites hold it."""
        return self._outbox.empty and self.source.idle

    def close(self) -> None:
        """Let go, whatever is under way."""
        self._driver.stop()
        self._thread.join()
        self._driver.close()


def publish_once(plan: RingPlan, me: NodeId, payloads: Sequence[bytes]) -> None:
    """Publish these and wait until all have their place. A `UserError` where the ring is silent."""
    clock = SharedClock()
    source = source_of(plan, me, clock)
    outbox = PublishQueue(source)
    outbox.put(payloads)
    driver = Driver([source_runtime(plan, source, producer=outbox)], clock)
    heard_at, acknowledged = clock.now(), 0

    def ended() -> bool:
        nonlocal heard_at, acknowledged
        if source.acked_through > acknowledged:
            heard_at, acknowledged = clock.now(), source.acked_through
        return (outbox.empty and source.idle) or clock.now() - heard_at > SILENCE_MAX

    try:
        driver.run(ended)
    finally:
        driver.close()
    if not (outbox.empty and source.idle):
        raise UserError("the ring acknowledges nothing; see whether its sites run with: fairtape status")

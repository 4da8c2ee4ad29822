"""Publishing as one source of a ring: from a queue that other threads fill, or a few messages once."""

import threading
from collections import deque
from collections.abc import Sequence
from typing import Final

from fairtape.core.errors import UserError
from fairtape.core.instants import SECOND, Duration, Instant
from fairtape.deployment.publish.source_runtime import SourceConfig, source_of, source_runtime
from fairtape.deployment.publish.target import PublishTarget
from fairtape.net.clock import SharedClock
from fairtape.net.driver import Driver
from fairtape.nodes.source import Source
from fairtape.wire.frames import NodeId

QUEUED_MAX: Final = 1 << 20  # bytes in the source; the rest waits in the queue
WAITING_MAX: Final = 1 << 20  # messages in the queue; a gateway has far fewer
CHUNK_MAX: Final = 4_096  # messages in one submission
SILENCE_MAX: Final[Duration] = 5 * SECOND


def source_named(target: PublishTarget, wanted: str) -> NodeId:
    """The source of that name or number. Raises `UserError`, which lists the sources."""
    for node, name in target.names.items():
        if wanted.upper() == name.upper() or wanted == str(node):
            return node
    names = ", ".join(f"{name} ({node})" for node, name in target.names.items())
    raise UserError(f"--source is {wanted!r}; the deployment knows {names}")


class PublishQueue:
    """A producer that publishes what other threads put into it."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._waiting: deque[bytes] = deque()
        self._lock = threading.Lock()

    def put(self, payloads: Sequence[bytes]) -> None:
        """Queue these messages, in this order. From any thread."""
        with self._lock:
            assert len(self._waiting) + len(payloads) <= WAITING_MAX
            self._waiting.extend(payloads)

    @property
    def empty(self) -> bool:
        """Whether everything is submitted to the source."""
        return not self._waiting

    def deadline(self) -> Instant | None:
        return 0 if self._waiting and self._source.queued < QUEUED_MAX else None

    def wake(self, now: Instant) -> None:
        with self._lock:
            chunk = [self._waiting[index] for index in range(min(len(self._waiting), CHUNK_MAX))]
        taken = self._source.publish(chunk, now) if chunk else 0
        with self._lock:
            for _ in range(taken):
                self._waiting.popleft()


class SourceThread:
    """One source of a ring in its own thread."""

    def __init__(self, config: SourceConfig) -> None:
        self.clock = SharedClock()
        self.source = source_of(config, self.clock)
        self._queue = PublishQueue(self.source)
        self._driver = Driver([source_runtime(config, self.source, producer=self._queue)], self.clock)
        self._thread = threading.Thread(target=self._driver.run, name="source", daemon=True)
        self._thread.start()

    def publish(self, payloads: list[bytes]) -> None:
        """Queue these messages. From any thread."""
        self._queue.put(payloads)
        self._driver.wakeup()

    @property
    def idle(self) -> bool:
        """Whether everything is in the order and settled."""
        return self._queue.empty and self.source.idle

    def close(self) -> None:
        """Stop at once. What is not acknowledged may be lost."""
        self._driver.stop()
        self._thread.join()
        self._driver.close()


def publish_once(config: SourceConfig, payloads: Sequence[bytes]) -> None:
    """Publish these messages and wait until they are settled. Raises `UserError` where the ring is silent."""
    clock = SharedClock()
    source = source_of(config, clock)
    queue = PublishQueue(source)
    queue.put(payloads)
    driver = Driver([source_runtime(config, source, producer=queue)], clock)
    progress_at, acknowledged = clock.now(), 0

    def ended() -> bool:
        nonlocal progress_at, acknowledged
        if source.acked_through > acknowledged:
            progress_at, acknowledged = clock.now(), source.acked_through
        return (queue.empty and source.idle) or clock.now() - progress_at > SILENCE_MAX

    try:
        driver.run(ended)
    finally:
        driver.close()
    if not (queue.empty and source.idle):
        raise UserError("the ring acknowledges nothing; see whether its sites run with: fairtape status")

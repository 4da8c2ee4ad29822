"""What a site that is a child process sends to its parent, and when."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fairtape.core.effects import Ordered, Release, Report
from fairtape.core.instants import MILLISECOND, Instant
from fairtape.core.spans import messages
from fairtape.deployment.process.release_log import ReleaseLog
from fairtape.nodes.receiver import Receiver
from fairtape.ring.membership.formation import Formation
from fairtape.wire.frames import NodeId

NEWS_PERIOD: Final = 100 * MILLISECOND
MESSAGES_MAX: Final = 24  # of one `SiteNews`: what a screen shows


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteNews:
    """The progress of one site. Counts are totals since it started."""

    site: NodeId
    highest_ack: int  # token
    sequence: int  # the last one released
    late: int  # messages
    requests: int  # retransmission requests that it sent
    repairs: int  # datagrams that it retransmitted to others
    lost: int  # datagrams that fault injection dropped
    releases: tuple[Release, ...]  # the latest ones since the last news
    messages: tuple[tuple[int, bytes], ...]  # the latest ones with their sequence numbers, if the site shows messages
    failure: Report | None


class Rounds:
    """When the processes of one machine do background work: each in its turn, away from the commit instants.

    At a commit instant all sites of the machine need a core at once, and any other work delays a release.
    """

    def __init__(self, formation: Formation, *, turn: int, turns: int) -> None:
        quiet, usable = NEWS_PERIOD // 8, NEWS_PERIOD // 2
        self.due_at = formation.commit_at(formation.first_token) % NEWS_PERIOD + quiet + usable * turn // turns

    def come(self, now: Instant) -> bool:
        """Whether the turn of this process has come. True once in each round."""
        if now < self.due_at:
            return False
        self.due_at += ((now - self.due_at) // NEWS_PERIOD + 1) * NEWS_PERIOD
        return True


def site_news(log: ReleaseLog, receiver: Receiver, *, lost: int) -> SiteNews:
    """What to send to the parent; `lost` counts the datagrams that fault injection dropped."""
    return SiteNews(
        site=receiver.me,
        highest_ack=receiver.highest_ack,
        sequence=log.sequence,
        late=log.late,
        requests=receiver.counts["requests_sent"] + receiver.counts["holes_asked"],
        repairs=receiver.counts["repairs"],
        lost=lost,
        releases=tuple(log.releases),
        messages=tuple(_latest_messages(log.ordered)),
        failure=log.failure,
    )


def _latest_messages(tokens: Iterable[Ordered]) -> list[tuple[int, bytes]]:
    """The last messages of these tokens, oldest first. Fragments of long messages are left out."""
    latest: deque[tuple[int, bytes]] = deque(maxlen=MESSAGES_MAX)
    for ordered in tokens:
        for span in ordered.spans:
            latest.extend(messages(span))
    return list(latest)

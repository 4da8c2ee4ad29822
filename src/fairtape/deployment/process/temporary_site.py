"""One site as a process: it takes its seat when the plan comes, runs until it is told to stop, tells how it fares."""

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairtape.core.effects import Deliver, Ordered, Release, Report
from fairtape.core.instants import MILLISECOND, Instant
from fairtape.core.spans import messages
from fairtape.deployment.process.children import ChildLink, Ready
from fairtape.deployment.process.site_traces import SiteTraces
from fairtape.deployment.ring_plan import RingPlan, gather_period, site_runtime
from fairtape.net.clock import SharedClock
from fairtape.net.driver import Driver, tune_gc
from fairtape.nodes.receiver import Receiver
from fairtape.ring.membership.formation import Formation
from fairtape.wire.frames import NodeId

NEWS_PERIOD: Final = 100 * MILLISECOND
RELEASES_MAX: Final = 256  # of one piece of news
MESSAGES_MAX: Final = 24  # of one piece of news: what a screen shows; the journal has all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteNews:
    """How one site fares. Counts are totals since it started."""

    site: NodeId
    heard_through: int  # token
    sequence: int  # the last one released
    late: int  # messages
    requests: int  # made for what it missed
    repairs: int  # datagrams sent to others who missed them
    lost: int  # datagrams that the injected weather took
    releases: tuple[Release, ...]  # since the last news, the latest ones
    messages: tuple[tuple[int, bytes], ...]  # the latest ones with their numbers, from a site that was asked to show
    failure: Report | None


def run_site(link: ChildLink, me: NodeId, journal: Path, shows: bool = False) -> None:
    """The whole life of a site's process. With `shows` its news carry messages as well."""
    link.tell(Ready())
    plan = link.expect(RingPlan)
    if plan is None:
        return
    clock = SharedClock()
    diary = SiteLog(shows=shows)
    traces = SiteTraces(journal, stripe=plan.stripe, site=me, note=lambda _text: None)
    receiver, seat = site_runtime(
        plan,
        me,
        clock,
        journal=journal,
        consumer=diary.delivered,
        reporter=diary.reported,
        tracer=traces.tracer,
    )
    driver = Driver([seat], clock, gather_period=gather_period(plan))
    rounds = Rounds(plan.formation, turn=plan.formation.members.index(me), turns=len(plan.formation.members))

    def ended() -> bool:
        now = clock.now()
        if rounds.come(now):
            traces.write(now)
            for _ in link.orders():
                pass
            weather_lost = seat.link_faults.lost if seat.link_faults else 0
            if link.offer(diary.news(receiver, lost=weather_lost)):
                diary.told()
        return link.stopped

    try:
        tune_gc()
        driver.run(ended)
    finally:
        traces.close(clock.now())
        driver.close()


class Rounds:
    """When the processes of one machine do what can wait: each in its turn, and well away from the commit instants.

    At a commit instant all sites of the machine want a core at once, and whoever else wants one spoils the release.
    """

    def __init__(self, formation: Formation, *, turn: int, turns: int) -> None:
        quiet, room = NEWS_PERIOD // 8, NEWS_PERIOD // 2
        self.due_at = formation.commit_at(formation.first_token) % NEWS_PERIOD + quiet + room * turn // turns

    def come(self, now: Instant) -> bool:
        """Whether it is time, once in each round."""
        if now < self.due_at:
            return False
        self.due_at += ((now - self.due_at) // NEWS_PERIOD + 1) * NEWS_PERIOD
        return True


class SiteLog:
    """What happened at a site since the last news."""

    def __init__(self, *, shows: bool) -> None:
        self._shows = shows
        self._sequence = 0
        self._late = 0
        self._failure: Report | None = None
        self._releases: deque[Release] = deque(maxlen=RELEASES_MAX)
        self._orders: deque[Ordered] = deque(maxlen=MESSAGES_MAX)

    def delivered(self, delivery: Deliver) -> None:
        """Only note it: at the commit instant every site of the machine wants a core, and reading can wait."""
        release = delivery.release
        self._sequence = release.sequence + release.count - 1
        self._late += release.count if release.late else 0
        self._releases.append(release)
        if self._shows:
            self._orders.append(delivery.ordered)

    def reported(self, report: Report) -> None:
        """A failure that the site declares."""
        self._failure = report

    def told(self) -> None:
        """The news were told: begin anew."""
        self._releases.clear()
        self._orders.clear()

    def news(self, receiver: Receiver, *, lost: int) -> SiteNews:
        """How the site fares."""
        return SiteNews(
            site=receiver.me,
            heard_through=receiver.highest_ack,
            sequence=self._sequence,
            late=self._late,
            requests=receiver.counts["requests_sent"] + receiver.counts["holes_asked"],
            repairs=receiver.counts["repairs"],
            lost=lost,
            releases=tuple(self._releases),
            messages=tuple(_latest_messages(self._orders)),
            failure=self._failure,
        )


def _latest_messages(orders: deque[Ordered]) -> list[tuple[int, bytes]]:
    """The last few messages of these tokens, oldest first. Fragments of long messages are left out."""
    latest: deque[tuple[int, bytes]] = deque(maxlen=MESSAGES_MAX)
    for ordered in orders:
        for span in ordered.spans:
            latest.extend(messages(span))
    return list(latest)

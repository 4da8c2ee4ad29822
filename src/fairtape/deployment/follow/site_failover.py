"""Keeping to a site that serves: when to go on with another one, when to say that nobody serves, what to forgive.

Whoever hears a deployment calls `look` now and then and does its reading with `patiently`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from fairtape.core.instants import MILLISECOND, SECOND, Instant
from fairtape.deployment.follow.site_selection import SiteSelection
from fairtape.journal import Damaged, JournalFollower
from fairtape.net.clock import Clock, SharedClock
from fairtape.wire.frames import NodeId

Found = TypeVar("Found")

CHOICE_PERIOD: Final = 500 * MILLISECOND  # how often somebody asks whether the site still serves: so old are its pages
SILENCE_TOLD_MIN: Final = 1 * SECOND  # a reformation takes less
REPAIR_PERIOD_MAX: Final = 5 * SECOND  # for which a journal may be unreadable while its site cuts it back


@dataclass(frozen=True, slots=True)
class Changed:
    """Another site is heard from now on."""

    before: NodeId
    site: NodeId


@dataclass(frozen=True, slots=True)
class Silenced:
    """The site that is heard does not serve, and no other is here instead."""

    site: NodeId
    since: Instant


@dataclass(frozen=True, slots=True)
class Restored:
    """The site serves again."""

    site: NodeId


Tiding: TypeAlias = Changed | Silenced | Restored


class SiteFailover:
    """Keeps a following to a site that serves."""

    def __init__(self, audience: SiteSelection, following: JournalFollower, *, clock: Clock | None = None) -> None:
        self._audience = audience
        self._following = following
        self._clock = clock or SharedClock()
        self._look_at = self._readable_at = self._served_at = self._clock.now()
        self._silent = False  # and that was told
        self._astray = False  # whether the journal was cut before the place that is read

    def is_due(self) -> bool:
        """Whether it is time to look."""
        return self._clock.now() >= self._look_at

    def look(self) -> Iterator[Tiding]:
        """See whether the site still serves, and go on with another where it does not; what there is to tell."""
        now = self._clock.now()
        self._look_at = now + CHOICE_PERIOD
        present = self._following.site
        chosen = self._audience.choose(present, now)
        if chosen is not None and chosen != present:
            self._following.follow(chosen)
            yield Changed(present, chosen)
        yield from self._silence(self._following.site, now)

    def _silence(self, site: NodeId, now: Instant) -> Iterator[Tiding]:
        """A site that is cut off from the others releases nothing; whoever hears it must know that."""
        if not self._audience.serves(site, now):
            if not self._silent and now - self._served_at > SILENCE_TOLD_MIN:
                self._silent = True
                yield Silenced(site, self._served_at)
            return
        if self._silent:
            yield Restored(site)
        self._silent, self._served_at = False, now

    def patiently(self, read: Callable[[], Found]) -> Found | None:
        """Read; None where that has to wait.

        A site that comes back may cut off what the others went on without. For that moment its journal looks damaged,
        and it is read again next time.
        """
        now = self._clock.now()
        try:
            if self._astray:
                self._following.follow(self._following.site)
            found = read()
        except Damaged:
            if now - self._readable_at > REPAIR_PERIOD_MAX:
                raise
            self._astray = True
            return None
        self._astray, self._readable_at = False, now
        return found

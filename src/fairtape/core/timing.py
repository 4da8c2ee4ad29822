"""The timing of a loop, and named profiles (decision 13, Profiles)."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Final

from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND, Duration

RETRIES_MAX: Final = 10_000
PERIOD_MAX: Final = 3_600 * SECOND
SUSPECT_RETRIES_MIN: Final = 2  # requests that go unanswered: one may be lost
SUSPECT_DELAY_MIN: Final = 900 * MILLISECOND  # a process that does not run for a moment is not suspected


class BadTiming(ValueError):
    """A timing that cannot work; the message names the field, the value and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Three independent intervals (T-RMP §5) and the retry rule from which the third follows."""

    retry_period: Duration  # T_R: one request and its answer; at least a round trip
    retries_max: int  # n: requests for Ack(e) and Msg(e) together (T-RMP §4), or for each (TRMP 2001 §5.1)
    token_period: Duration  # τ_t = T_P = Δ_T: between two scheduled acknowledgments
    commit_delay: Duration  # Δ_A = Δ_C: from the timestamp to the release, the same at every site
    merged: bool = True  # one retry count for both recoveries (T-RMP §4), or two (TRMP 2001)
    clock_error_max: Duration = 10 * MILLISECOND  # a site withdraws when its clock error bound exceeds this

    def __post_init__(self) -> None:
        for name in ("retry_period", "token_period", "commit_delay", "clock_error_max"):
            value = getattr(self, name)
            if not 0 < value <= PERIOD_MAX:
                raise BadTiming(f"{name} is {value} ns; it must be above 0 and at most {PERIOD_MAX} ns (one hour)")
        if not 1 <= self.retries_max <= RETRIES_MAX:
            raise BadTiming(f"retries_max is {self.retries_max}; it must be from 1 to {RETRIES_MAX}")

    @property
    def one_way_max(self) -> Duration:
        """T_R / 2: the nominal bound on the one-way delay; an Ack that takes longer is requested. TRMP 2001 §5.1."""
        return self.retry_period // 2

    @property
    def reform_delay(self) -> Duration:
        """Δ_R: (n + 1/2) T_R merged, (2n + 1/2) T_R separate: complete or reforming by then. T-RMP §3, 2001 §5.1."""
        recoveries = 1 if self.merged else 2
        return recoveries * self.retries_max * self.retry_period + self.one_way_max

    @property
    def suspect_retries(self) -> int:
        """How many requests for Ack(e) go unanswered until a receiver suspects its site (decision 72, Suspicion)."""
        periods = -(-(SUSPECT_DELAY_MIN - self.one_way_max) // self.retry_period)
        return min(max(periods, SUSPECT_RETRIES_MIN), self.retries_max)

    @property
    def suspect_delay(self) -> Duration:
        """From t_e until a receiver suspects the site whose acknowledgment it awaits: at most Δ_R."""
        return self.suspect_retries * self.retry_period + self.one_way_max

    @property
    def lease_period(self) -> Duration:
        """How long a site may act on one grant of a reformation server: as long as it takes to suspect it.

        So the lease of a failed member has ended once the others report it, and nothing waits for it. More retries
        make no longer leases.
        """
        return self.suspect_delay

    @property
    def report_period(self) -> Duration:
        """How often a site reports: several reports may be lost before its lease ends."""
        return max(self.lease_period // 6, MILLISECOND)

    @property
    def delay_max(self) -> Duration:
        """Δ_T + Δ_C: from reception at the token site to the commit. T-RMP §5."""
        return self.token_period + self.commit_delay

    @property
    def resend_delay(self) -> Duration:
        """How long a source waits for an acknowledgment: the wait for a token, one late token, and a round trip."""
        return 2 * self.token_period + 2 * self.retry_period

    @property
    def request_delay(self) -> Duration:
        """How long requests are collected and then sent as one (T-RMP §5). Reordering alone causes no request."""
        return self.retry_period // 8

    def with_resilience(self, resilience: int, *, request_sets: int = 1) -> "Timing":
        """Δ_C + (K + k_p - 1) · Δ_T: a commit also waits for Ack(e + K), which is due K token periods after Ack(e).

        With k_p request sets a recovery takes up to k_p - 1 token periods longer. So neither takes anything from the
        time that recovery and scheduling have (decision 49, Commit delay and K). Releases keep their place between
        tokens.
        """
        return replace(self, commit_delay=self.commit_delay + (resilience + request_sets - 1) * self.token_period)

    def slowed(self, factor: int, tokens: int) -> "Timing":
        """Δ_T times a factor. Δ_C grows with the tokens that a commit, or the last request set, waits for.

        What is left of Δ_C is at least a token period, because a token may be late, and keeps its phase between tokens.
        Δ_R stays: it depends on T_R and n alone.
        """
        if factor == 1:
            return self
        period = factor * self.token_period
        spare = max(self.commit_delay - tokens * self.token_period, 0)
        spare = max(spare, period + spare % self.token_period)
        return replace(self, token_period=period, commit_delay=tokens * period + spare)

    def with_reform_delay(self, delay: Duration) -> "Timing":
        """The timing whose retries fill `delay`: n = ⌊(Δ_R - T_R/2) / T_R⌋, over two when counted apart."""
        per_retry = self.retry_period * (1 if self.merged else 2)
        return replace(self, retries_max=(delay - self.one_way_max) // per_retry)


PROFILES: Final[Mapping[str, Timing]] = MappingProxyType(
    {
        # Sub-millisecond round trips. A crash is detected within a fifth of a second; a scheduling delay is not
        # mistaken for one. Releases fall between tokens, when the processors are idle, and one more token fits before.
        "lan": Timing(
            retry_period=1_600 * MICROSECOND,
            retries_max=94,
            token_period=1 * MILLISECOND,
            commit_delay=1_700 * MICROSECOND,
            clock_error_max=1 * MILLISECOND,
        ),
        # A few milliseconds across a metropolitan area, or several sites on one busy machine. Many retries delay only
        # the detection of a crash, and a machine that stalls for a moment is not mistaken for a crashed one.
        "metro": Timing(
            retry_period=10 * MILLISECOND,
            retries_max=100,
            token_period=5 * MILLISECOND,
            commit_delay=25 * MILLISECOND,
            clock_error_max=5 * MILLISECOND,
        ),
        # The nine-city world: round trips up to 328 ms, and 1 % loss. A token needs about 50 ms per hop. But of the
        # twenty or so blocks of a token the next site often misses one; its request takes two more hops and the delay
        # that collects requests. With a period of 100 ms such a ring runs at its limit and a backlog of tokens does not
        # shrink; with 200 ms it is gone after a few hops. The commit delay covers one token that is late by a whole
        # retry, and the repair of a loss at the farthest site. It is no multiple of the token period, so releases and
        # acknowledgments never compete for a processor.
        "wan": Timing(
            retry_period=360 * MILLISECOND,
            retries_max=8,
            token_period=200 * MILLISECOND,
            commit_delay=1_250 * MILLISECOND,
            clock_error_max=50 * MILLISECOND,
        ),
    }
)


def profile(name: str, **overrides: int | bool) -> Timing:
    """A named profile, overridden field by field."""
    if name not in PROFILES:
        raise BadTiming(f"profile is {name!r}; expected one of {', '.join(PROFILES)}")
    known = {field.name for field in fields(Timing)}
    for field_name in overrides:
        if field_name not in known:
            raise BadTiming(f"timing has no field {field_name!r}; expected one of {', '.join(sorted(known))}")
    return replace(PROFILES[name], **overrides)  # type: ignore[arg-type]  # each field checks its own value

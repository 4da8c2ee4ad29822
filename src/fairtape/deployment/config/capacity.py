"""How many sites one machine can run: each has work for every token, and all share its cores.

An overloaded ring does not slow down. Its tokens come later and later, until a site suspects another one that only
waits for a core. So such a ring is refused before it starts.
"""

import os
from typing import Final

from fairtape.core.errors import UserError
from fairtape.core.instants import MICROSECOND
from fairtape.core.timing import PROFILES, Timing

TOKEN_WORK: Final = 300 * MICROSECOND
"""CPU time of one site for one token, with a reserve. Without messages 100 to 150 µs were measured on a quiet 2-core
virtual machine (`fairtape bench ring --only idle`), and more than twice as much beside busy programs."""

BUSY_MAX: Final = 0.5  # the share of all cores that tokens alone may use; the rest is for messages and other programs


def cores_here() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def cores_wanted(sites: int, timing: Timing) -> float:
    """The number of cores that the tokens of m sites keep busy: m · TOKEN_WORK / token_period."""
    return sites * TOKEN_WORK / timing.token_period


def sites_max(timing: Timing, cores: int) -> int:
    """The most sites that these cores can run with capacity to spare; at least one."""
    return max(int(BUSY_MAX * cores * timing.token_period / TOKEN_WORK), 1)


def candidate_profiles(sites: int, cores: int) -> tuple[str, ...]:
    """The profiles, fastest first, that these cores may sustain. The slowest is not one: it is for long distances."""
    *profiles, _ = PROFILES.items()
    return tuple(name for name, timing in profiles if sites <= sites_max(timing, cores))


def refuse_overload(*, sites: int, profile: str, cores: int) -> None:
    """Raise `UserError` for a ring that these cores cannot run; it names one that they can."""
    timing = PROFILES[profile]
    most = sites_max(timing, cores)
    if sites <= most:
        return
    slower = next((name for name, other in PROFILES.items() if sites <= sites_max(other, cores)), None)
    remedy = f" or --profile {slower}" if slower else ""
    raise UserError(
        f"--sites is {sites} and --profile is {profile}, whose tokens alone would keep"
        f" {cores_wanted(sites, timing):.1f} cores busy; this machine has {cores}, of which tokens may use half:"
        f" give at most {most} sites{remedy}"
    )

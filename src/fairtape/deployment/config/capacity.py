"""What rings one machine can carry: every site of it has work for every token, and all of them share its cores.

A ring that wants more than the machine has does not slow down. Its token comes late, then later, until a site gives up
on another one that only waited for a core. So such a ring is refused before it starts.
"""

import os
from typing import Final

from fairtape.core.errors import UserError
from fairtape.core.instants import MICROSECOND
from fairtape.core.timing import PROFILES, Timing

TOKEN_WORK: Final = 300 * MICROSECOND
"""What one site computes for one token without messages. Measured with idle rings on a 2-core virtual machine that was
busy with other work: 270 to 320 µs in the `lan` profile (1 to 3 sites), 310 to 430 µs in `metro` (2 to 16 sites)."""

BUSY_MAX: Final = 0.5  # the share of all cores that tokens alone may take; the rest is for messages and for others


def cores_here() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


def cores_wanted(sites: int, timing: Timing) -> float:
    """How many cores the tokens of m sites keep busy: m · TOKEN_WORK / token_period."""
    return sites * TOKEN_WORK / timing.token_period


def sites_max(timing: Timing, cores: int) -> int:
    """How many sites this many cores carry with room to spare; one is always tried."""
    return max(int(BUSY_MAX * cores * timing.token_period / TOKEN_WORK), 1)


def refuse_overload(*, sites: int, profile: str, cores: int) -> None:
    """Complain about a ring that this many cores cannot carry, and name one that they can."""
    timing = PROFILES[profile]
    most = sites_max(timing, cores)
    if sites <= most:
        return
    slower = next((name for name, other in PROFILES.items() if sites <= sites_max(other, cores)), None)
    remedy = f" or --profile {slower}" if slower else ""
    raise UserError(
        f"--sites is {sites} and --profile is {profile}, whose tokens alone would keep"
        f" {cores_wanted(sites, timing):.1f} cores busy; this machine has {cores} and carries half of that:"
        f" give at most {most} sites{remedy}"
    )

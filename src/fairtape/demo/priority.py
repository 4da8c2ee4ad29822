"""Scheduling priority: receivers run before the other processes, because releases have deadlines."""

import os
from typing import Final

from fairtape.net.driver import may_run_in_real_time

NICENESS: Final = 15  # of other processes, where receivers have no real-time priority


def lower_priority() -> None:
    """Lower the priority of this process below the receivers, unless those run in real time anyway."""
    if not may_run_in_real_time():
        os.nice(NICENESS)

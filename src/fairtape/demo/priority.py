"""Who comes first on a machine that is a whole world: receivers, because a release is due at an instant."""

import os
from typing import Final

from fairtape.net.driver import may_run_in_real_time

NICENESS: Final = 15  # of the others, where receivers are ordinary programs


def give_way() -> None:
    """Let this process come after the receivers. Where those run in real time they come first anyhow."""
    if not may_run_in_real_time():
        os.nice(NICENESS)

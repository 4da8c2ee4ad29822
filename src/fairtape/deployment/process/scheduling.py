"""Real-time scheduling of the processes of a deployment: those that serve are preferred to ordinary programs.

A site that is far behind has much to compute and nobody waits for it: it runs as an ordinary program until it is near,
or it would take the processors from the sites that serve, and from the kernel's own threads that write to the disk.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from fairtape.core.errors import UserError
from fairtape.deployment.config.description import FILE, Deployment, RealTime
from fairtape.net.driver import may_run_in_real_time

THREADS: Final = Path("/proc/self/task")


class Scheduling:
    """How the kernel schedules this process, all threads of it: one that waits for another must not wait for long."""

    def __init__(self, deployment: Deployment) -> None:
        granted = deployment.real_time is not RealTime.NEVER and may_run_in_real_time()
        if deployment.real_time is RealTime.ALWAYS and not granted:
            raise UserError(
                f"{deployment.folder / FILE}: process.real_time is true, and the kernel refuses it; run as root, grant"
                ' CAP_SYS_NICE, or write "auto"'
            )
        self._granted = granted
        self.preferred = False
        if granted:
            self.words = "real-time scheduling while it serves: no ordinary program of this machine holds it up"
        elif deployment.real_time is RealTime.NEVER:
            self.words = "ordinary scheduling, as the deployment says"
        else:
            self.words = "ordinary scheduling, as the kernel grants no other: releases also wait for other programs"

    def prefer(self, *, serving: bool) -> None:
        """Let this process be preferred while it serves, if the kernel grants it."""
        if not self._granted or serving == self.preferred:
            return
        self.preferred = serving
        policy = os.SCHED_RR if serving else os.SCHED_OTHER
        parameters = os.sched_param(os.sched_get_priority_min(policy))
        for thread in THREADS.iterdir():
            with suppress(OSError):  # a thread that has ended, or a privilege that was taken away
                os.sched_setscheduler(int(thread.name), policy, parameters)

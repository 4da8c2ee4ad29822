"""Keeps processors out of idle states while exact timing matters.

An idle processor is halted, and on a virtual machine the host decides when it runs again: milliseconds may pass. A
dedicated machine is booted with `idle=poll`. Here one process per processor spins at the lowest priority (SCHED_IDLE),
with the same effect.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from fairtape.deployment.process.children import ChildLink, ChildProcesses, Ready

SPINS: Final = 100_000  # between two reads of the link


@contextmanager
def keep_processors_awake() -> Iterator[None]:
    """No processor of this process is idle while the context lasts."""
    with ChildProcesses(imports=[__name__]) as children:
        names = {f"processor {number}": number for number in sorted(os.sched_getaffinity(0))}
        for name, number in names.items():
            children.start(name, stay_awake, number)
        children.await_ready(set(names))
        try:
            yield
        finally:
            for name in names:
                children.kill(name)  # at the lowest priority it would read a command late


def stay_awake(link: ChildLink, processor: int) -> None:
    """Keep one processor busy until the link is stopped."""
    os.sched_setaffinity(0, {processor})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    link.send(Ready())
    while not link.stopped:
        for _ in range(SPINS):
            pass
        for _ in link.commands():
            pass

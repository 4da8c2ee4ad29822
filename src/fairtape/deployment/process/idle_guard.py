"""Processors that do not fall asleep while something exact is done.

A processor without work is put to sleep, and on a virtual machine it is then the host that decides when it runs again:
milliseconds may pass. A dedicated machine is configured so that its processors never sleep (`idle=poll`). Here one
program per processor that does nothing, and that the kernel prefers to nobody (SCHED_IDLE), has the same effect.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from fairtape.deployment.process.children import ChildLink, ChildProcesses, Ready

LOOK_EVERY: Final = 100_000  # turns of nothing between two looks for the end


@contextmanager
def keep_processors_awake() -> Iterator[None]:
    """While it lasts, no processor of this process sleeps."""
    with ChildProcesses(imports=[__name__]) as crew:
        names = {f"processor {number}": number for number in sorted(os.sched_getaffinity(0))}
        for name, number in names.items():
            crew.start(name, stay_awake, number)
        crew.await_ready(set(names))
        try:
            yield
        finally:
            for name in names:
                crew.kill(name)  # whoever is preferred to nobody would hear an order late


def stay_awake(link: ChildLink, processor: int) -> None:
    """Keep one processor from sleeping until the link ends."""
    os.sched_setaffinity(0, {processor})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    link.tell(Ready())
    while not link.stopped:
        for _ in range(LOOK_EVERY):
            pass
        for _ in link.orders():
            pass

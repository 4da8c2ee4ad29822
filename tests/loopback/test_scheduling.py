"""Real-time scheduling: for a process that serves, all of its threads, where the kernel grants it."""

import multiprocessing
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fairtape.core.errors import UserError
from fairtape.deployment.config.description import Deployment, RealTime
from fairtape.deployment.operations.draft import Draft, create_deployment
from fairtape.deployment.process.idle_guard import keep_processors_awake
from fairtape.deployment.process.node import THREADS, Scheduling
from fairtape.net.driver import may_run_in_real_time

REFUSED = "the kernel grants no real-time scheduling here (root or CAP_SYS_NICE)"


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return create_deployment(tmp_path / "new", Draft(loops=(1,), profile="wan"))


@pytest.fixture
def another_thread() -> Iterator[None]:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    yield
    ended.set()
    thread.join()


def policies() -> set[int]:
    return {os.sched_getscheduler(int(thread.name)) for thread in THREADS.iterdir()}


@pytest.mark.skipif(not may_run_in_real_time(), reason=REFUSED)
@pytest.mark.usefixtures("another_thread")
def test_all_threads_of_a_serving_process_and_no_others_are_real_time(deployment: Deployment) -> None:
    scheduling = Scheduling(deployment)
    assert "real-time scheduling while it serves" in scheduling.description
    before = policies()
    try:
        scheduling.prefer(serving=True)
        assert policies() == {os.SCHED_RR}
    finally:
        scheduling.prefer(serving=False)
    assert policies() == before == {os.SCHED_OTHER}


def test_real_time_is_not_requested_unless_configured(deployment: Deployment) -> None:
    scheduling = Scheduling(replace(deployment, real_time=RealTime.NEVER))
    before = policies()
    scheduling.prefer(serving=True)
    assert policies() == before
    assert scheduling.description == "ordinary scheduling, as the deployment says"


@pytest.mark.skipif(may_run_in_real_time(), reason="the kernel grants real-time scheduling here")
def test_a_refusal_is_reported_and_ends_a_process_that_requires_real_time(deployment: Deployment) -> None:
    assert "as the kernel grants no other" in Scheduling(deployment).description
    with pytest.raises(UserError, match=r"process\.real_time is true, and the kernel refuses it"):
        Scheduling(replace(deployment, real_time=RealTime.ALWAYS))


def test_a_processor_is_kept_awake_by_a_process_of_the_lowest_priority() -> None:
    with keep_processors_awake():
        kept = {
            processor: os.sched_getscheduler(child.pid)
            for child in multiprocessing.active_children()
            if child.pid is not None
            for processor in os.sched_getaffinity(child.pid)
        }
    assert kept == dict.fromkeys(os.sched_getaffinity(0), os.SCHED_IDLE)
    assert not multiprocessing.active_children()

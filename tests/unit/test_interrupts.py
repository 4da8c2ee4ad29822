"""Ctrl-C on long work: the first one is noted, the second one interrupts."""

import os
import signal

import pytest

from fairtape.cli.terminal import asked_to_stop


def test_the_first_is_noted_and_the_second_interrupts() -> None:
    before, said = signal.getsignal(signal.SIGINT), []
    with asked_to_stop(lambda: said.append("stopping")) as ended:
        assert not ended()
        os.kill(os.getpid(), signal.SIGINT)
        assert ended()
        assert said == ["stopping"]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before

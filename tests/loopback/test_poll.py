"""Waiting for sockets: few and many, on their own descriptors."""

import socket
from contextlib import ExitStack, closing

import pytest

from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.net.poll import POLLED_MAX, Poll


@pytest.mark.parametrize("count", [1, POLLED_MAX, POLLED_MAX + 1, 10 * POLLED_MAX])
def test_the_descriptors_with_something_to_read_are_named(count: int) -> None:
    with ExitStack() as opened:
        pairs = [socket.socketpair() for _ in range(count)]
        for each in (end for pair in pairs for end in pair):
            opened.enter_context(each)
        poll = opened.enter_context(closing(Poll([one.fileno() for one, _ in pairs])))
        assert list(poll.wait(0)) == []
        assert list(poll.wait(MILLISECOND)) == []
        wanted = {0, count // 2, count - 1}
        for place in wanted:
            pairs[place][1].send(b"x")
        assert set(poll.wait(3_600 * SECOND)) == {pairs[place][0].fileno() for place in wanted}
        for place in wanted:
            pairs[place][0].recv(1)
        assert list(poll.wait(0)) == []


def test_a_wait_that_the_kernel_refuses_is_an_error() -> None:
    poll = Poll([])
    with pytest.raises(OSError, match="Invalid argument"):
        poll.wait(-1)

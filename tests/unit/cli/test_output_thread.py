"""Output to a reader that is slow, stops reading, or closes the pipe: the caller never waits."""

import os
from pathlib import Path

import pytest

from fairtape.cli.output_thread import CHUNKS_MAX, OutputThread
from fairtape.core.errors import UserError

CHUNK = bytes(range(256)) * 1_024  # larger than the buffer of a pipe


def read_all(reader: int) -> bytes:
    """Everything until the writer closes."""
    with os.fdopen(reader, "rb") as file:
        return file.read()


def settle(output: OutputThread) -> None:
    """Wait until everything is written; raises if it cannot be."""
    while not output.idle:
        pass


def test_chunks_are_written_completely_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "out"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    output = OutputThread(descriptor)
    chunks = [bytes([number]) * 5_000 for number in range(CHUNKS_MAX)] + [b""]
    for chunk in chunks:
        while not output.offer(chunk):
            pass
    settle(output)
    assert path.read_bytes() == b"".join(chunks)
    assert output.written == len(chunks)


def test_a_reader_that_stops_fills_the_queue_and_gets_everything_later() -> None:
    reader, writer = os.pipe()
    output = OutputThread(writer)
    offered = 0
    while output.offer(CHUNK):
        offered += 1
    assert CHUNKS_MAX <= offered <= CHUNKS_MAX + 1  # the thread holds one of them
    assert output.written == 0
    received = b""
    while len(received) < offered * len(CHUNK):
        received += os.read(reader, 1 << 20)
    assert received == CHUNK * offered
    settle(output)
    assert output.written == offered


def test_a_closed_pipe_is_reported_to_the_caller() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    output = OutputThread(writer)
    output.offer(CHUNK)
    with pytest.raises(BrokenPipeError):
        settle(output)
    with pytest.raises(BrokenPipeError):
        output.offer(CHUNK)


def test_a_full_disk_is_a_user_error() -> None:
    output = OutputThread(os.open("/dev/full", os.O_WRONLY))
    output.offer(CHUNK)
    with pytest.raises(UserError, match="standard output cannot be written"):
        settle(output)

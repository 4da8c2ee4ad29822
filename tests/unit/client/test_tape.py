"""The tape: the same records in every shape, each once, whatever interrupts the reader."""

import asyncio
import dis
import gc
import sys
from collections.abc import Callable, Iterator
from threading import Thread
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

from fairtape.client import tape as tape_module
from fairtape.client.backlog import Policy
from fairtape.client.errors import ClientError
from fairtape.client.tape import TURN_ROWS, Tape
from fairtape.core.errors import UserError
from fairtape.tape.batches import SCHEMA
from fairtape.tape.feed import Delivery
from fairtape.tape.records import Break, Gap, Merged, Record, Reformation, Skipped, Trade
from unit.tape.tape_values import batch_of, tape_of

ORDER: tuple[Delivery, ...] = (
    batch_of(1, 5),
    Break(6, 2),
    batch_of(6, 4_200),
    Gap(4_206, 4),
    batch_of(4_210, 1),
)
NUMBERS = [*range(1, 4_206), 4_210]


def numbers(records: list[Record]) -> list[int]:
    return [record.sequence for record in records if isinstance(record, Trade)]


def test_records_and_notices_come_in_their_order() -> None:
    records = list(tape_of(ORDER))
    assert numbers(records) == NUMBERS
    assert records[5] == Break(6, 2)
    assert records[-2] == Gap(4_206, 4)


def test_callbacks_get_every_record() -> None:
    tape, received, once = tape_of(ORDER), list[Record](), list[Record]()
    tape.on(received.append)

    @tape.on
    def only_the_first(record: Record) -> None:
        once.extend([record] if not once else [])

    tape.run()
    assert received == list(tape_of(ORDER))
    assert once == received[:1]


def test_running_a_tape_without_callbacks_is_refused() -> None:
    with tape_of(ORDER) as tape, pytest.raises(ClientError, match="run has no callback"):
        tape.run()


def test_batches_hold_trades_and_the_tape_keeps_the_notices() -> None:
    tape = tape_of(ORDER)
    batches = list(tape.batches())
    assert {batch.schema == SCHEMA for batch in batches} == {True}
    assert [number for batch in batches for number in batch["sequence"].to_pylist()] == NUMBERS
    assert tape.notices == [Break(6, 2), Gap(4_206, 4)]


def test_the_shapes_can_be_mixed_and_each_goes_on_where_the_other_stopped() -> None:
    tape = tape_of(ORDER)
    records = iter(tape)
    found = [next(records) for _ in range(8)]
    assert tape.following == 8
    assert tape.to_arrow(rows=10)["sequence"].to_pylist() == list(range(8, 18))
    assert tape.following == 18
    for record in tape:
        found.append(record)
        if isinstance(record, Trade) and record.sequence == 100:
            break
    assert tape.following == 101
    rest = tape.to_arrow()["sequence"].to_pylist()
    assert sorted([*numbers(found), *range(8, 18), *rest]) == NUMBERS
    assert tape.following == 4_211


def test_data_frames_lose_neither_nanoseconds_nor_decimals() -> None:
    table = tape_of(ORDER).to_arrow()
    frame = tape_of(ORDER).to_pandas()
    assert [str(kind) for kind in frame.dtypes[["traded_at_ns", "price"]]] == [
        "int64[pyarrow]",
        "decimal128(38, 9)[pyarrow]",
    ]
    assert frame["price"].tolist() == table["price"].to_pylist()
    assert frame["traded_at_ns"].tolist() == table["traded_at_ns"].to_pylist()
    polars = tape_of(ORDER).to_polars()
    assert polars["price"].to_list() == table["price"].to_pylist()
    assert polars["released_at_ns"].to_list() == table["released_at_ns"].to_pylist()
    assert polars["symbol"].cast(str).to_list() == table["symbol"].to_pylist()


def test_a_missing_library_is_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with tape_of(ORDER) as tape, pytest.raises(ClientError, match=r"polars is not installed; .*fairtape\[frames\]"):
        tape.to_polars()


def test_an_empty_tape_is_an_empty_table() -> None:
    assert tape_of(()).to_arrow() == pa.Table.from_batches([], schema=SCHEMA)


def test_a_table_of_what_has_no_end_needs_a_number_of_rows() -> None:
    with tape_of(ORDER, endless=True) as tape:
        with pytest.raises(ClientError, match="list has no end; say how many rows"):
            tape.to_arrow()
        with pytest.raises(ClientError, match="rows is -1"):
            tape.to_arrow(rows=-1)
        assert tape.to_arrow(rows=4_206)["sequence"].to_pylist() == NUMBERS


def test_async_for_gets_the_same_and_lets_other_tasks_run() -> None:
    async def read() -> tuple[list[Record], int]:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(other())
        found = [record async for record in tape_of(ORDER)]
        beside.cancel()
        return found, turns

    found, turns = asyncio.run(read())
    assert found == list(tape_of(ORDER))
    assert turns >= len(found) // TURN_ROWS


def test_an_async_reader_that_waits_is_woken_and_one_that_is_cancelled_loses_nothing() -> None:
    async def read() -> None:
        with tape_of(ORDER, endless=True) as tape:
            found: list[Record] = []

            async def reader() -> None:
                async for record in tape:
                    found.append(record)  # noqa: PERF401 - what was got before it is cancelled is looked at

            waiting = asyncio.create_task(reader())
            while len(found) < len(NUMBERS) + 2:
                await asyncio.sleep(0)
            waiting.cancel()
            assert numbers(found) == NUMBERS
            again = asyncio.create_task(reader())
            await asyncio.sleep(0)
            Thread(target=tape.close).start()
            await again
            assert numbers(found) == NUMBERS

    asyncio.run(read())


def failing() -> Iterator[Delivery]:
    yield batch_of(1, 2)
    raise UserError("the disk is on fire; put it out")


def test_the_error_of_a_feed_follows_all_of_its_records() -> None:
    for _ in range(3):
        tape, found = tape_of(failing()), list[Record]()
        with pytest.raises(ClientError, match="the disk is on fire"):
            found.extend(record for record in _noting(tape, found))
        assert numbers(found) == [1, 2]
        with pytest.raises(ClientError, match="the disk is on fire"):
            list(tape)

    async def read() -> None:
        async for _ in tape_of(failing()):
            pass

    with pytest.raises(ClientError, match="the disk is on fire"):
        asyncio.run(read())


def _noting(tape: Tape, found: list[Record]) -> Iterator[Record]:
    for record in tape:
        found.append(record)
        if not found:
            yield record


def test_closing_ends_a_reader_within_a_piece_and_a_waiting_one() -> None:
    tape = tape_of(ORDER, endless=True)
    found = []
    for record in tape:
        found.append(record)
        if len(found) == 3:
            tape.close()
    assert numbers(found) == [1, 2, 3]
    assert tape.following == 4
    assert tape.closed
    tape.close()
    assert list(tape) == list(tape.batches()) == []
    waiting = tape_of((), endless=True)
    reader = Thread(target=lambda: list(waiting))
    reader.start()
    waiting.close()
    reader.join()


def feed_thread(tape: Tape) -> Thread:
    known = tape._finalizer.peek()
    assert known is not None
    (thread,) = (argument for argument in known[2] if isinstance(argument, Thread))
    return thread


def test_a_tape_without_references_ends_its_feed() -> None:
    tape = tape_of((batch_of(1, 5) for _ in range(1_000_000)), size_max=10)
    thread = feed_thread(tape)
    assert thread.is_alive()
    del tape
    thread.join()


def test_the_text_of_a_tape_shows_its_state() -> None:
    tape = tape_of(ORDER)
    list(tape)
    assert repr(tape) == "<tape: source list (over), selection everything, following 4211>"
    assert "<th>source</th><td>list (over)</td>" in tape._repr_html_()


@pytest.mark.parametrize("policy", Policy)
def test_notices_account_for_all_that_a_slow_reader_missed(policy: Policy) -> None:
    batches = [batch_of(first, 100) for first in range(1, 5_001, 100)]
    tape = tape_of([*batches, Reformation(5_001, 2)], policy=policy, size_max=250)
    if policy is not Policy.BLOCK:
        feed_thread(tape).join()
    found = list(tape)
    kept, left_out = numbers(found), [each for each in found if isinstance(each, Skipped | Merged)]
    assert kept == sorted(set(kept))
    assert len(kept) + sum(each.count for each in left_out) == 5_000
    assert tape.skipped + tape.merged == sum(each.count for each in left_out)
    assert found[-1] == Reformation(5_001, 2)
    if policy is Policy.BLOCK:
        assert kept == list(range(1, 5_001))
    elif policy is Policy.SKIP:
        assert found[0] == Skipped(1, 4_751, 4_751)
    else:
        assert found[0] == Merged(1, 4_796, 4_796), "the last two lots found room"
        assert kept == list(range(4_797, 5_001))


class Strike:
    """A Ctrl-C at one of the places where the interpreter looks for one: behind a call, a jump back, a resumption."""

    def __init__(self, place: int) -> None:
        self.left = place
        self.struck = False
        self._before: dict[FrameType, str] = {}

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> Callable[..., Any] | None:
        if "fairtape/client/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            before = self._before.get(frame, "")
            self._before[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if before in ("CALL", "JUMP_BACKWARD", "RESUME", "CALL_FUNCTION_EX"):
                self.left -= 1
                if self.left < 0 and not self.struck:
                    self.struck = True
                    raise KeyboardInterrupt
        return self


def test_a_ctrl_c_loses_nothing_wherever_it_strikes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tape_module, "PIECE_ROWS", 2)
    order = (batch_of(1, 5), Gap(6, 1), batch_of(7, 3))
    with tape_of(order) as tape:
        expected = list(tape)
    gc.collect()  # a tape of another test must not be let go while this one is struck
    struck, place = True, 0
    while struck:
        strike, tape, found = Strike(place), tape_of(order), list[Record]()
        finished = False
        sys.settrace(strike)
        while not finished:
            try:
                for record in tape:
                    found.append(record)
                finished = True
            except KeyboardInterrupt:
                pass
        sys.settrace(None)
        tape.close()
        assert found == expected, f"struck at place {place}"
        struck, place = strike.struck, place + 1
    assert place > 100

"""Catching up from a journal in chunks: the same chain, while it grows and after it was truncated."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairtape.core.effects import FormationChange, Ordered
from fairtape.core.entries import Entry, Position, decode_entry, encode_entry, position_of
from fairtape.journal import Damaged, History, SyncPolicy, verify
from unit import journal_values as values

HISTORY = values.first_with_formations(120, seed=2)
ENCODED = list(map(encode_entry, HISTORY))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("history")
    values.write(path, HISTORY)
    return path


def end_of(chunk: list[bytes], before: Position) -> Position:
    return position_of(decode_entry(chunk[-1])) if chunk else before


def test_a_site_that_appends_every_chunk_has_the_same_chain(directory: Path, tmp_path: Path) -> None:
    for size_max in (1, 300, 5_000, 1 << 30):
        history, position = History(directory), Position(0, 0)
        caught_up = tmp_path / str(size_max)
        with values.open_writer(caught_up) as writer:
            while chunk := history.after(position.token, size_max, formation=position.formation):
                assert sum(map(len, chunk)) <= size_max or len(chunk) == 1
                for encoded in chunk:
                    values.append_entry(writer, decode_entry(encoded))
                position = end_of(chunk, position)
        assert verify(caught_up).digest == verify(directory).digest


@settings(max_examples=80)
@given(at=st.integers(0, len(HISTORY) - 1), size_max=st.integers(1, 4_000))
def test_from_any_position_exactly_the_following_entries_are_returned(at: int, size_max: int, directory: Path) -> None:
    position = position_of(HISTORY[at])
    chunk = History(directory).after(position.token, size_max, formation=position.formation)
    assert chunk == ENCODED[at + 1 : at + 1 + len(chunk)]
    assert chunk or at == len(HISTORY) - 1
    following = at + 1 + len(chunk)
    if following < len(ENCODED):
        assert sum(map(len, chunk)) + len(ENCODED[following]) > size_max


@settings(max_examples=80)
@given(token=st.integers(0, HISTORY[-1].token + 1))
def test_without_a_formation_everything_with_a_later_token_is_returned(token: int, directory: Path) -> None:
    expected = [encoded for entry, encoded in zip(HISTORY, ENCODED, strict=True) if entry.token > token]
    assert History(directory).after(token, 1 << 30) == expected


def test_an_unknown_position_skips_nothing(directory: Path) -> None:
    """A site asks from an end that the survivors do not have: it gets the formation that took over."""
    at = next(at for at, entry in enumerate(HISTORY) if isinstance(entry, FormationChange) and entry.token > 20)
    change = HISTORY[at]
    chunk = History(directory).after(change.token + 1_000, 1 << 30, formation=change.formation - 1)
    assert chunk == ENCODED[at:]


def test_everything_appended_before_the_call_is_returned(tmp_path: Path) -> None:
    chance = random.Random(4)
    readers = [Position(0, 0)] * 5
    seen: list[list[bytes]] = [[] for _ in readers]
    history = History(tmp_path)
    assert history.after(0, 1_000) == []
    with values.open_writer(tmp_path) as writer:
        for count, entry in enumerate(HISTORY, 1):
            values.append_entry(writer, entry)
            if isinstance(entry, FormationChange) or count % 2:
                reader = chance.randrange(len(readers))
                position = readers[reader]
                while chunk := history.after(position.token, 2_000, formation=position.formation):
                    seen[reader] += chunk
                    position = end_of(chunk, position)
                readers[reader] = position
                assert seen[reader] == ENCODED[:count]
            elif entry.sequence == 1:
                values.mark(writer, entry)
    assert len(values.segments(tmp_path)) > 3


def test_a_remembered_place_does_not_survive_a_truncation(tmp_path: Path) -> None:
    """Not even where the journal has grown again to the same size."""
    entries: list[Entry] = list(values.tiny(20))
    history = History(tmp_path)
    with values.open_writer(tmp_path, segment_size_max=1 << 20) as writer:
        for entry in entries:
            values.append_entry(writer, entry)
        assert len(history.after(0, 1 << 20)) == 20
        assert history.after(20, 1 << 20, formation=1) == []
        writer.truncate_after(10)
        other = [replace(entry, acknowledged_at=entry.acknowledged_at + 1) for entry in values.tiny(20)[10:]]
        assert history.after(20, 1 << 20, formation=1) == []
        for ordered in other:
            writer.append(ordered, 0)
        assert history.after(10, 1 << 20, formation=1) == list(map(encode_entry, other))
        writer.truncate_after(15)
        writer.append_formation(values.formation_change(values.tiny(16)[15], 2), 0)
        (change,) = history.after(20, 1 << 20, formation=1)
        assert decode_entry(change) == values.formation_change(values.tiny(16)[15], 2)


def test_an_updated_index_finds_the_same_also_after_a_truncation(tmp_path: Path) -> None:
    start = next(at for at, entry in enumerate(HISTORY) if at > 20 and isinstance(entry, Ordered)) + 1
    history, cold = History(tmp_path), ENCODED[start:]
    history.update_index()
    token, formation = HISTORY[start - 1].token, HISTORY[start - 1].formation
    with values.open_writer(tmp_path) as writer:
        for _ in range(3):
            for entry in HISTORY[start if writer.tip else 0 :]:
                values.append_entry(writer, entry)
                history.update_index()
            assert history.after(token, 1 << 30, formation=formation) == cold
            assert history.after(0, 1 << 30) == ENCODED
            writer.truncate_after(token)
            assert history.after(token, 1 << 30, formation=formation) == []
            assert history.after(0, 1 << 30) == ENCODED[:start]


def test_damaged_entries_are_never_returned(tmp_path: Path) -> None:
    """A wrong bit in an entry is detected; a wrong bit in a release mark, which is not returned, need not be."""
    values.write(tmp_path, HISTORY, sync=SyncPolicy.TOKEN)
    file = values.segments(tmp_path)[1]
    content = file.read_bytes()
    noticed = 0
    for at in range(0, len(content), 7):
        file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        try:
            assert History(tmp_path).after(0, 1 << 30) == ENCODED
        except Damaged:
            noticed += 1
    assert noticed > len(content) / 7 / 2


def test_more_readers_than_remembered_places_get_correct_chunks(directory: Path) -> None:
    """Also with more readers than remembered places."""
    history = History(directory)
    for _ in range(2):
        for at, entry in enumerate(HISTORY[:-1]):
            position = position_of(entry)
            assert history.after(position.token, 1, formation=position.formation) == [ENCODED[at + 1]]

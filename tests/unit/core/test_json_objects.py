"""Dataclasses as JSON objects: what is written is read back, and anything of another type is refused."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from fairtape.core.json_objects import EMPTY, INLINE, KEY, OPTIONAL, BadJson, decode, encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    count: int = 0
    ratio: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    title: str = field(metadata={KEY: "name"})
    parent: str | None
    pairs: tuple[tuple[int, int], ...]
    parts: Mapping[int, Part]
    empty: Part | None = field(metadata={EMPTY: True})
    inline: Part = field(metadata={INLINE: True})
    extra: Extra | None = field(default=None, metadata={INLINE: True, OPTIONAL: True})
    ended: bool = field(default=False, metadata={OPTIONAL: True})


WHOLE = Whole(
    title="a", parent=None, pairs=((1, 2), (3, 4)), parts={5: Part(count=6)}, empty=None, inline=Part(count=1, ratio=2)
)
WRITTEN = {
    "name": "a", "parent": None, "pairs": [[1, 2], [3, 4]], "parts": {"5": {"count": 6, "ratio": 0.0}}, "empty": {},
    "count": 1, "ratio": 2,
}  # fmt: skip


def test_a_value_is_written_under_its_keys_and_read_back() -> None:
    assert encode(WHOLE) == WRITTEN
    assert decode(Whole, json.loads(json.dumps(WRITTEN))) == WHOLE


def test_optional_fields_are_written_only_where_they_differ() -> None:
    value = Whole(title="a", parent="b", pairs=(), parts={}, empty=Part(), inline=Part(), extra=Extra(more=True),
                  ended=True)  # fmt: skip
    written = encode(value)
    assert (written["more"], written["ended"], written["empty"]) == (True, True, {"count": 0, "ratio": 0.0})
    assert decode(Whole, json.loads(json.dumps(written))) == value


def test_keys_that_are_not_known_are_ignored() -> None:
    assert decode(Whole, WRITTEN | {"newer": 1}) == WHOLE


@pytest.mark.parametrize(
    "damage",
    [
        {"name": 1}, {"name": None}, {"parent": 3}, {"pairs": [[1, 2, 3]]}, {"pairs": "no"}, {"pairs": [[1, True]]},
        {"parts": {"x": {"count": 1, "ratio": 1}}}, {"parts": {"5": {"count": 1}}}, {"parts": []}, {"count": 1.5},
        {"ratio": True}, {"ended": 1}, {"more": "yes"}, {"empty": {"count": 1}},
    ],
)  # fmt: skip
def test_a_field_of_another_type_is_refused(damage: dict[str, object]) -> None:
    with pytest.raises(BadJson):
        decode(Whole, WRITTEN | damage)


@pytest.mark.parametrize("content", [None, [], "text", 7, {}])
def test_what_is_no_object_or_lacks_fields_is_refused(content: object) -> None:
    with pytest.raises(BadJson):
        decode(Whole, content)

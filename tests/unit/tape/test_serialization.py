"""Notices and messages as objects, and back."""

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.market.notices import Status
from fairtape.tape.records import Notice, Single
from fairtape.tape.serialization import KINDS, BadBatch, parse_record, record_fields

wide = st.integers(0, (1 << 63) - 1)


@st.composite
def notices(draw: st.DrawFn) -> Single | Notice:
    kind = draw(st.sampled_from(sorted(KINDS)))
    values: dict[str, Any] = {}
    for each in fields(KINDS[kind]):
        absent = st.none() if each.name in ("installed_at", "commit_at", "released_at", "acknowledged_at") else wide
        values[each.name] = draw(st.booleans() if each.name == "late" else wide | absent)
    drawn = {
        "payload": st.binary(max_size=40),
        "received_at": st.just(7),
        "status": st.sampled_from(Status),
        "symbol": st.text("ABC", min_size=1, max_size=8),
        "venue": st.text("XYZ", max_size=4),
        "price": st.integers(-(1 << 63), (1 << 63) - 1),
        "flags": st.integers(0, 3),
    }
    values |= {name: draw(strategy) for name, strategy in drawn.items() if name in values}
    return KINDS[kind](**values)


@given(notices())
def test_a_record_comes_back_from_its_object(record: Single | Notice) -> None:
    assert parse_record(record_fields(record), 7) == record


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"kind": "nonsense"},
        {"kind": "gap"},
        {"kind": "gap", "first": "x", "count": 1, "stripe": 0},
        {"kind": "gap", "first": [], "count": 1, "stripe": 0},
        {"kind": "skipped", "first": 1, "last": 2},
    ],
)
def test_an_object_that_is_no_record_is_refused(content: dict[str, Any]) -> None:
    with pytest.raises(BadBatch):
        parse_record(content, 7)

"""Trades and notices as they are sent to customers."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.tape.batches import PLACE_DTYPE, TradeBatch
from fairtape.tape.records import Break, Gap, Message, Reformation, Skipped, Stale
from fairtape.tape.serialization import MAGIC, BadBatch, decode_batch, encode_batch
from fairtape.web.encoding import Encoding, encode_frame, encode_trades
from unit.tape import tape_values
from unit.web.web_values import NOW, WebWorld, payload_of

wide = st.integers(-1, (1 << 63) - 1)


@st.composite
def lots(draw: st.DrawFn) -> TradeBatch:
    count = draw(st.integers(0, 5))
    places = np.zeros(count, PLACE_DTYPE)
    for name in PLACE_DTYPE.names or ():
        most = {"source": (1 << 32) - 1, "stripe": (1 << 16) - 1, "late": 1}.get(name)
        for row in range(count):
            places[name][row] = draw(wide if most is None else st.integers(0, most))
    return TradeBatch(tape_values.trades(1, count), places)


@given(lots(), wide)
def test_a_bundle_gives_back_every_field_of_every_trade(lot: TradeBatch, sent_at: int) -> None:
    found, found_at = decode_batch(encode_batch(lot, sent_at), NOW)
    assert found_at == sent_at
    assert found.trades.tobytes() == lot.trades.tobytes()
    for name in PLACE_DTYPE.names or ():
        expected = [NOW] * lot.rows if name == "received_at" else lot.places[name].tolist()
        assert found.places[name].tolist() == expected


@given(st.binary(max_size=200), lots(), st.integers(0, 400))
def test_what_is_no_bundle_is_refused(noise: bytes, lot: TradeBatch, cut: int) -> None:
    for octets in (noise, MAGIC + noise, encode_batch(lot, NOW)[:cut]):
        try:
            found, _ = decode_batch(octets, NOW)
        except BadBatch:
            continue
        assert len(encode_batch(found, NOW)) == len(octets)


def test_a_trade_has_136_bytes_in_a_bundle_behind_a_head_of_16() -> None:
    assert len(encode_batch(tape_values.batch_of(1, 7), NOW)) == 16 + 7 * (64 + 72)


def test_json_has_the_four_times_the_clock_bound_and_three_numbers_of_every_trade(tmp_path: Path) -> None:
    world = WebWorld(tmp_path, released=2)
    (delivery, _) = world.broadcaster.ticker.tail.at(world.broadcaster.ticker.tail.start)
    assert isinstance(delivery, TradeBatch)
    (first, _) = encode_trades(delivery, NOW)["trades"]
    trade = next(delivery.records())
    assert (first["sequence"], first["source_number"], first["stripe_number"]) == (1, 1_001, 1)
    assert first["traded_at_ns"] == str(trade.traded_at)
    assert first["acknowledged_at_ns"] == str(trade.acknowledged_at)
    assert first["released_at_ns"] == str(trade.released_at)
    assert first["clock_bound_ns"] == 1_000
    assert first["price"] == "-320.81"


def test_no_whole_number_of_json_is_too_wide_for_a_browser(tmp_path: Path) -> None:
    world = WebWorld(tmp_path, released=3)
    delivery, _ = world.broadcaster.ticker.tail.at(world.broadcaster.ticker.tail.start)
    assert isinstance(delivery, TradeBatch)
    message = Message(
        sequence=1, source=1, incarnation=1 << 60, source_number=1, stripe=0, stripe_number=1, payload=b"\xff",
        acknowledged_at=NOW, commit_at=NOW, released_at=NOW, received_at=NOW, clock_bound=5, late=False,
    )  # fmt: skip
    for item in (delivery, message, Stale(NOW), Reformation(7, 2, NOW), Break(7, 2, NOW)):
        _, payload = payload_of(encode_frame(item, Encoding.JSON, NOW))
        json.loads(payload, parse_int=_narrow)


def _narrow(text: str) -> int:
    assert abs(int(text)) < 1 << 53
    return int(text)


@pytest.mark.parametrize("encoding", Encoding)
def test_a_notice_is_text_in_either_encoding(encoding: Encoding) -> None:
    opcode, payload = payload_of(encode_frame(Gap(5, 2, 1), encoding, NOW))
    assert opcode == 1
    assert json.loads(payload) == {"kind": "gap", "first": 5, "count": 2, "stripe": 1}
    _, payload = payload_of(encode_frame(Skipped(1, 9, 4), encoding, NOW))
    assert json.loads(payload) == {"kind": "skipped", "first": 1, "last": 9, "count": 4}

"""The messages of edge stripes as deliveries: trades, cancels, corrections and statuses."""

import pytest

from fairtape.client.stripe_feed import Interpreter
from fairtape.edge.protocol.customer import (
    Delivered,
    StripeGap,
    StripeRecord,
)
from fairtape.edge.protocol.itch_codec import SessionReaders
from fairtape.edge.protocol.sessions import StripePosition
from fairtape.edge.protocol.stripe_sequencer import StripeMessages as Numbered
from fairtape.edge.protocol.stripe_sequencer import StripeSequencer
from fairtape.formats.framing import unframe
from fairtape.market.notices import CancelNotice, CorrectionNotice, Status, StatusNotice, encode_notice
from fairtape.market.trades import encode
from fairtape.tape.batches import TradeBatch
from fairtape.tape.feed import Delivery
from fairtape.tape.records import Canceled, Corrected, Gap, VenueStatus
from unit.edge.edge_values import NOON, edition, plan, token, trade

RIGHT = trade(600, "IBM")
PAYLOADS = [
    encode(trade(5, "IBM")),
    encode(trade(6, "IBM")),
    encode_notice(CancelNotice(1, "XLON", "IBM", NOON)),
    encode(trade(7, "IBM")),
    encode_notice(CorrectionNotice(2, RIGHT, NOON + 1)),
    encode_notice(StatusNotice("XNYS", Status.HALTED, NOON)),
    encode(trade(8, "IBM")),
]


def delivered() -> list[Delivered]:
    sequencer = StripeSequencer(StripePosition.fresh(edition()))
    stripes = {edition().session(stripe.number): stripe.number for stripe in edition().stripes}
    steps = [*sequencer.begin(), *sequencer.deliver(token(1, PAYLOADS))]
    return [
        Delivered(stripes[step.session], step.session, step.first, tuple(unframe(step.framed)))
        for step in steps
        if isinstance(step, Numbered)
    ]


def interpreted(records: list[StripeRecord]) -> list[Delivery]:
    interpreter = Interpreter(SessionReaders(lambda version: plan(version)))
    return [each for record in records for each in interpreter.deliveries(record, 77)]


def one_by_one(records: list[Delivered]) -> list[StripeRecord]:
    return [
        Delivered(each.stripe, each.session, each.first + at, (message,))
        for each in records
        for at, message in enumerate(each.messages)
    ]


@pytest.mark.parametrize("apart", [False, True])
def test_a_broken_trade_is_a_cancel_and_with_its_successor_a_correction(apart: bool) -> None:
    """Wherever the packets begin and end."""
    found = interpreted(one_by_one(delivered()) if apart else [*delivered()])
    trades = [number for each in found if isinstance(each, TradeBatch) for number in each.places["sequence"].tolist()]
    assert trades == [1, 2, 4, 7]
    (canceled,) = (each for each in found if isinstance(each, Canceled))
    assert (canceled.number, canceled.symbol, canceled.venue, canceled.canceled_at) == (1, "IBM", "XLON", NOON)
    assert (canceled.sequence, canceled.received_at, canceled.released_at) == (2, 77, None)
    (corrected,) = (each for each in found if isinstance(each, Corrected))
    assert (corrected.number, corrected.sequence, corrected.corrected_at) == (2, 5, NOON + 1)
    assert (corrected.trade.symbol, corrected.trade.price) == ("IBM", RIGHT.price)
    (status,) = (each for each in found if isinstance(each, VenueStatus))
    assert (status.sequence, status.venue, status.status) == (6, "XNYS", Status.HALTED)


def test_a_trade_whose_correction_is_lost_is_canceled() -> None:
    records = one_by_one(delivered())
    place = next(at for at in range(len(records)) if len(interpreted(records[: at + 1])) == 5)
    lost = records[place]
    assert isinstance(lost, Delivered)
    found = interpreted([*records[:place], StripeGap(lost.stripe, lost.session, lost.first, 1), *records[place + 1 :]])
    assert not any(isinstance(each, Corrected) for each in found)
    gap = next(at for at, each in enumerate(found) if isinstance(each, Gap))
    broken = found[gap - 1]
    assert isinstance(broken, Canceled)
    assert broken.number == 2

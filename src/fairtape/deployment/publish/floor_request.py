"""One request to the floor of a deployment, entered as one of its sources; and what the order made of it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fairtape.core.effects import Ordered
from fairtape.core.errors import UserError
from fairtape.deployment.follow.floor_reader import FloorReader
from fairtape.deployment.publish.source_thread import publish_once
from fairtape.deployment.publish.target import PublishTarget
from fairtape.exchange.order_codec import encode
from fairtape.exchange.orders import Cancel, Control, Funding, NewOrder, OpenMarket, Replace
from fairtape.exchange.outputs import Cancelled, Funded, MarketChanged, Output, Rejected, Replaced, Sequenced
from fairtape.exchange.outputs import TentativeFill as Fill
from fairtape.net.clock import SharedClock
from fairtape.wire.frames import NodeId

ANSWER_PERIOD_MAX: Final = 10.0  # seconds for the commit delay, and for a reformation
LOOK_PERIOD: Final = 0.02  # seconds

Request = NewOrder | Cancel | Replace | OpenMarket | Control | Funding
Making = Callable[[NodeId, int], Request]
"""A request of this gateway under this number."""


@dataclass(frozen=True, slots=True)
class FloorAnswer:
    """What the floor said at the token of a request."""

    token: int
    number: int  # the place of the request in the sequence; 0 where the outputs do not say it
    refusal: str | None
    outputs: list[Output]  # of that token, all of them


def enter(door: PublishTarget, me: NodeId, making: Making, reader: FloorReader) -> FloorAnswer:
    """Enter a request and wait until the floor has answered it. A `UserError` where nobody does.

    The time is the gateway's number: it rises across restarts without a file that remembers it.
    """
    number = SharedClock().now()
    reader.catch_up()
    publish_once(door.plan_for(me), me, [encode(making(me, number))])
    deadline = time.monotonic() + ANSWER_PERIOD_MAX
    while time.monotonic() < deadline:
        for step in reader.steps():
            if isinstance(step.entry, Ordered) and any(span.source == me for span in step.entry.spans):
                return _answer(step.entry.token, me, number, step.outputs)
        time.sleep(LOOK_PERIOD)
    raise UserError("the request has its place in the order, but no site has released it; see: fairtape status")


def _answer(token: int, me: NodeId, number: int, outputs: list[Output]) -> FloorAnswer:
    for output in outputs:
        if isinstance(output, Rejected) and (output.source, output.gateway_number) == (me, number):
            return FloorAnswer(token, output.number, output.reason, outputs)
    placed = [
        output.number
        for output in outputs
        if (isinstance(output, Sequenced | Replaced) and (output.source, output.gateway_number) == (me, number))
        or isinstance(output, MarketChanged | Funded | Cancelled)
    ]
    return FloorAnswer(token, placed[0] if placed else 0, None, outputs)


def fills_of(answer: FloorAnswer, account: str, client_id: str) -> list[Fill]:
    """The trades that an order made at once."""
    return [
        output
        for output in answer.outputs
        if isinstance(output, Fill)
        and (account, client_id)
        in ((output.trade.buyer, output.trade.buy_client_id), (output.trade.seller, output.trade.sell_client_id))
    ]

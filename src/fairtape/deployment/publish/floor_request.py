"""One request to the trading floor of a deployment, published as one of its sources, and its outcome."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fairtape.core.effects import Ordered
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND
from fairtape.deployment.follow.floor_reader import FloorReader
from fairtape.deployment.publish.source_runtime import new_incarnation
from fairtape.deployment.publish.source_thread import publish_once
from fairtape.deployment.publish.target import PublishTarget
from fairtape.exchange.orders import Cancel, Control, Funding, NewOrder, OpenMarket, Replace, encode
from fairtape.exchange.outputs import Cancelled, FloorOutput, Funded, MarketChanged, Rejected, Replaced, Sequenced
from fairtape.exchange.outputs import TentativeFill as Fill
from fairtape.net.clock import SharedClock
from fairtape.wire.frames import NodeId

ANSWER_PERIOD_MAX: Final = 10.0  # seconds: the commit delay, and time for a reformation
POLL_PERIOD: Final = 20 * MILLISECOND  # between two looks at a journal without notifications

Request = NewOrder | Cancel | Replace | OpenMarket | Control | Funding
MakeRequest = Callable[[NodeId, int], Request]
"""Takes the source and the number of the request."""


@dataclass(frozen=True, slots=True)
class FloorAnswer:
    """The outputs of the floor at the token of a request."""

    token: int
    number: int  # the sequence number of the request; 0 where the outputs do not have it
    refusal: str | None
    outputs: list[FloorOutput]  # all outputs of that token


def enter(target: PublishTarget, me: NodeId, make: MakeRequest, reader: FloorReader) -> FloorAnswer:
    """Publish a request and wait for the answer of the floor. Raises `UserError` where none comes.

    Requests are numbered like incarnations of their source, which rise whatever the clock shows.
    """
    config = target.source_config(me)
    number = new_incarnation([config], SharedClock())
    reader.catch_up()
    publish_once(config, [encode(make(me, number))])
    deadline = time.monotonic() + ANSWER_PERIOD_MAX
    while time.monotonic() < deadline:
        for step in reader.steps():
            if isinstance(step.entry, Ordered) and any(span.source == me for span in step.entry.spans):
                return _answer(step.entry.token, me, number, step.outputs)
        reader.wait(poll_period=POLL_PERIOD)
    raise UserError("the request is in the order, but no site has released it; see: fairtape status")


def _answer(token: int, me: NodeId, number: int, outputs: list[FloorOutput]) -> FloorAnswer:
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
    """The trades that an order made immediately."""
    return [
        output
        for output in answer.outputs
        if isinstance(output, Fill)
        and (account, client_id)
        in ((output.trade.buyer, output.trade.buy_client_id), (output.trade.seller, output.trade.sell_client_id))
    ]

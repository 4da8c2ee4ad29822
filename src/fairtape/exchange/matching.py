"""Continuous matching: an arriving order takes what it crosses, best price first, oldest order first."""

from fairtape.exchange.book import Fill, Ladder, Order, Reduction, RemovalReason, reduce_open
from fairtape.exchange.orders import SelfTrade, new_tuple
from fairtape.exchange.rules import Continuous, Pricing, rounded
from fairtape.market.prices import Price, Quantity


def match(
    taker: Order, opposite: Ladder, rule: Continuous, tick: Price, fills: list[Fill], reductions: list[Reduction]
) -> None:
    """Fill `taker` from the other side up to its limit.

    What self-trade prevention removes from either order goes to `reductions`. What is left of the taker stays in
    `taker.open`: whether it rests is decided by the caller.
    """
    keys, queues, owner, policy = opposite.keys, opposite.queues, taker.owner, taker.policy
    at_maker, least, wanted = rule.pricing is Pricing.MAKER, -taker.key, taker.open
    while wanted and keys and keys[-1] >= least:
        key = keys[-1]
        queue = queues[key]
        while wanted and queue:
            maker = next(iter(queue))
            if maker.owner is owner and policy:
                taker.open = wanted
                _prevent(maker, taker, reductions)
                wanted = taker.open
                if not maker.open:
                    del queue[maker]
                    maker.queue = None
                continue
            resting = maker.open
            price = maker.price if at_maker else trade_price(maker, taker, rule, tick)
            if resting <= wanted:
                fills.append(new_tuple(Fill, (maker, taker, price, resting)))
                wanted -= resting
                maker.open = 0
                maker.queue = None
                del queue[maker]
            else:
                fills.append(new_tuple(Fill, (maker, taker, price, wanted)))
                maker.open = resting - wanted
                wanted = 0
        if not queue:
            del queues[key]
            keys.pop()
    taker.open = wanted


def trade_price(maker: Order, taker: Order, rule: Continuous, tick: Price) -> Price:
    """The price of a trade between two limits; a market order has no limit, so the maker's applies."""
    if rule.pricing is Pricing.MAKER or taker.is_market:
        return maker.price
    if rule.pricing is Pricing.TAKER:
        return taker.price
    upward = maker.price > taker.price
    return rounded(maker.price + taker.price, rule.step or tick, rule.rounding, upward=upward)


def _prevent(maker: Order, taker: Order, reductions: list[Reduction]) -> None:
    """Self-trade prevention, as the arriving order's policy says."""
    policy = taker.policy
    if policy is SelfTrade.DECREMENT:
        less = min(maker.open, taker.open)
        reductions += (
            reduce_open(maker, less, RemovalReason.SELF_TRADE),
            reduce_open(taker, less, RemovalReason.SELF_TRADE),
        )
        return
    if policy is not SelfTrade.CANCEL_NEWEST:
        reductions.append(reduce_open(maker, maker.open, RemovalReason.SELF_TRADE))
    if policy is not SelfTrade.CANCEL_OLDEST:
        reductions.append(reduce_open(taker, taker.open, RemovalReason.SELF_TRADE))


def fillable(taker: Order, opposite: Ladder) -> Quantity:
    """How much of the taker the other side can fill.

    An order of the taker's own account is skipped or ends the match, as the policy says.
    """
    found, least = 0, -taker.key
    for order in opposite:
        if order.key < least or found >= taker.open:
            break
        if order.owner is not taker.owner or not taker.policy:
            found += order.open
        elif taker.policy is not SelfTrade.CANCEL_OLDEST:
            break
    return min(found, taker.open)


def cost(taker: Order, opposite: Ladder) -> int:
    """The most that a market order to buy may pay, as price times quantity.

    Orders of its own account are skipped: whatever prevention does with them, the order never buys at worse prices.
    """
    wanted, total = taker.open, 0
    for order in opposite:
        if order.owner is taker.owner and taker.policy:
            continue
        traded = min(order.open, wanted)
        total += traded * order.price
        wanted -= traded
        if not wanted:
            break
    return total

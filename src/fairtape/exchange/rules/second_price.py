"""The sealed auction of one round: whoever bids most gets the lot, at the best price that did not get it.

Vickrey 1961: the price does not depend on the winner's own bid, so nobody gains by bidding anything but what the lot is
worth to him. For several units each unit counts as a bid, and all winners pay the highest one refused.
"""

from fairtape.exchange.book import Book, Fill
from fairtape.exchange.rules.allocation import Share, by_time, paired


def award(book: Book) -> list[Fill]:
    """Sell the offer to the highest bids, the earlier of equal ones first, and take what is filled out of the book."""
    offer = book.asks.first()
    if offer is None:
        return []
    bids = [order for order in book.bids if order.price >= offer.price]
    winners = by_time(bids, offer.open)
    price = max(offer.price, _refused(winners, [order.price for order in bids]))
    sold = sum(quantity for _, quantity in winners)
    fills = list(paired(winners, [(offer, sold)] if sold else [], price))
    for fill in fills:
        book.reduce(fill.maker, fill.quantity)
        book.reduce(fill.taker, fill.quantity)
    return fills


def _refused(winners: list[Share], prices: list[int]) -> int:
    """The highest price of a unit that got nothing; 0 where every unit above the reserve was served."""
    if winners and winners[-1][1] < winners[-1][0].open:
        return winners[-1][0].price
    return prices[len(winners)] if len(prices) > len(winners) else 0

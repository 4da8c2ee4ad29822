"""The encoder makes the same bytes as the plain writer of the format, for all trades."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fairtape.edge.protocol.itch_codec import ItchEncoder, SymbolLookup
from fairtape.edge.protocol.sessions import Edition
from fairtape.formats.framing import unframe
from fairtape.formats.itch.ticker_messages import Listing, TickerItch, fits_directory
from fairtape.market.trades import TRADE_SIZE, BadTrade, PublishedTrade, decode, encode
from unit.edge.edge_values import MIDNIGHT, edition, trade
from unit.formats.trade_values import trades

EDITION = edition(stripes=3)


def listings(of: Edition) -> list[Listing]:
    """In the order of the encoder."""
    named = [Listing(symbol, venue) for s in of.stripes for symbol in s.symbols for venue in s.venues or ("",)]
    return [listing for listing in named if fits_directory(listing)]


def expected(payloads: list[bytes]) -> list[tuple[int, bytes]]:
    """(stripe, message) of every payload that is a trade, one by one."""
    writer = TickerItch(listings(EDITION), midnight_at=MIDNIGHT)
    places = {stripe.number: place for place, stripe in enumerate(EDITION.stripes)}
    found = []
    for number, payload in enumerate(payloads, 1):
        try:
            value = decode(payload)
        except BadTrade:
            continue
        found.append((places[EDITION.plan.edge_of(value.symbol, 0)], writer.trade(number, value)))
    return found


PLAIN = st.integers(1, 10**4).map(trade)
ODD = st.integers(1, 10**4).map(lambda number: trade(number, quantity=number))
SPOILT = st.tuples(PLAIN, st.integers(0, TRADE_SIZE - 1), st.integers(0, 255)).map(
    lambda drawn: bytes((*encode(drawn[0])[: drawn[1]], drawn[2], *encode(drawn[0])[drawn[1] + 1 :]))
)


@given(st.lists((PLAIN | ODD | trades()).map(encode) | SPOILT, min_size=1, max_size=20))
def test_a_token_is_encoded_as_its_trades_are_one_by_one(payloads: list[bytes]) -> None:
    encoder = ItchEncoder(EDITION.plan, 0)
    shares, strays = encoder.encode_few(b"".join(payloads), range(1, len(payloads) + 1))
    assert (shares, strays) == encoder.encode_many(b"".join(payloads), range(1, len(payloads) + 1))
    wanted = expected(payloads)
    for share in shares:
        messages = list(unframe(share.framed))
        assert messages == [message for stripe, message in wanted if stripe == share.stripe]
        assert share.count == len(messages)
        assert not share.size or {share.size} == set(map(len, messages))
    assert sum(share.count for share in shares) == len(wanted)
    assert len(strays) == len(payloads) - len(wanted)
    for place in strays:
        assert not expected([payloads[place]])


def test_a_directory_names_the_listings_of_its_own_stripe() -> None:
    pages = ItchEncoder(EDITION.plan, 0).openings(5)
    everything = TickerItch(listings(EDITION), midnight_at=MIDNIGHT).opening(MIDNIGHT + 5)
    assert sorted(message for page in pages for message in page[1:]) == sorted(everything[1:])
    for page, stripe in zip(pages, EDITION.stripes, strict=True):
        assert bool(page) is not stripe.opaque
        assert all(message[:1] in b"SRL" for message in page)
        assert len(page) == (0 if stripe.opaque else 1 + 2 * len(stripe.symbols) * len(stripe.venues))


@given(
    st.lists(st.binary(min_size=28, max_size=28), unique=True, max_size=200),
    st.lists(st.binary(min_size=28, max_size=28)),
)
def test_every_name_of_a_table_is_found_and_no_other(names: list[bytes], others: list[bytes]) -> None:
    table = SymbolLookup(names)
    looked_up = [*names, *others]
    records = b"".join(b"\1\2\3\4" + name + bytes(32) for name in looked_up)
    found = table.find(np.frombuffer(records, "<u8").reshape(-1, 8))
    assert found.tolist() == [names.index(name) + 1 if name in names else 0 for name in looked_up]


def test_a_trade_of_an_unknown_venue_is_sent_wide_in_the_stripe_of_its_symbol() -> None:
    stranger = PublishedTrade(0, "AAPL", 10**9, 10**9, MIDNIGHT, other_venue="MARS")
    shares, strays = ItchEncoder(EDITION.plan, 0).encode(encode(stranger), [9])
    assert not strays
    (share,) = shares
    assert EDITION.stripes[share.stripe].number == EDITION.plan.edge_of("AAPL")
    assert next(unframe(share.framed))[:1] == b"T"

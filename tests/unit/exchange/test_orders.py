"""The messages of a floor and their bytes: one encoding each, and no other bytes are accepted."""

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.exchange.orders import (
    ACCOUNT_MAX,
    CASH,
    CLIENT_ID_MAX,
    FLOOR_KINDS,
    Action,
    BadOrder,
    Cancel,
    Control,
    FloorMessage,
    Funding,
    NewOrder,
    OpenMarket,
    OrderType,
    Pulse,
    Replace,
    SelfTrade,
    Side,
    TimeInForce,
    TradeReport,
    decode,
    encode,
    rule_fields,
    rule_of,
)
from fairtape.exchange.rules import (
    BadRule,
    BatchAuction,
    CallAuction,
    Candidates,
    Continuous,
    DutchClock,
    Pricing,
    Rounding,
    SecondPrice,
)
from fairtape.market.prices import FIXED_MAX, FIXED_MIN, ONE
from fairtape.market.symbols import SYMBOL_MAX
from fairtape.market.trades import TRADE_KIND

INK = string.ascii_letters + string.digits + string.punctuation


def names(size_max: int) -> st.SearchStrategy[str]:
    return st.text(INK, min_size=1, max_size=size_max)


amounts = st.integers(1, FIXED_MAX)
instants = st.integers(0, FIXED_MAX)
GATEWAY_MAX = (1 << 32) - 1
NUMBER_MAX = (1 << 64) - 1
head: dict[str, Any] = {"gateway": st.integers(0, GATEWAY_MAX), "gateway_number": st.integers(0, NUMBER_MAX)}
accounts, clients, symbols = names(ACCOUNT_MAX), names(CLIENT_ID_MAX), names(SYMBOL_MAX)


def an_order(kind: OrderType) -> st.SearchStrategy[NewOrder]:
    limit = kind in (OrderType.LIMIT, OrderType.STOP_LIMIT)
    stop = kind in (OrderType.STOP, OrderType.STOP_LIMIT)
    return st.builds(
        NewOrder,
        **head,
        account=accounts,
        client_id=clients,
        symbol=symbols,
        side=st.sampled_from(Side),
        quantity=amounts,
        price=amounts if limit else st.just(0),
        stop_price=amounts if stop else st.just(0),
        order_type=st.just(kind),
        time_in_force=st.sampled_from(TimeInForce),
        post_only=st.just(False),
        self_trade=st.sampled_from(SelfTrade),
        entered_at=instants,
    )


resting = an_order(OrderType.LIMIT).map(lambda order: order._replace(post_only=True, time_in_force=TimeInForce.DAY))
rules = st.one_of(
    st.builds(Continuous, pricing=st.sampled_from(Pricing), rounding=st.sampled_from(Rounding), step=instants),
    st.builds(CallAuction, candidates=st.sampled_from(Candidates), reference=instants),
    st.builds(BatchAuction, period=amounts, rounding=st.sampled_from([Rounding.UP, Rounding.DOWN, Rounding.EVEN])),
    st.just(SecondPrice()),
    st.builds(DutchClock, start=amounts, decrement=amounts, step_period=amounts, rewind=instants),
)
messages: st.SearchStrategy[FloorMessage] = st.one_of(
    *map(an_order, OrderType),
    resting,
    st.builds(Cancel, **head, account=accounts, order_id=clients, entered_at=instants),
    st.builds(
        Replace,
        **head,
        account=accounts,
        order_id=clients,
        client_id=clients,
        quantity=amounts,
        price=amounts,
        entered_at=instants,
    ),
    st.builds(
        OpenMarket,
        **head,
        symbol=symbols,
        rule=rules,
        tick=amounts,
        lot=amounts,
        price_min=instants,
        price_max=instants,
    ),
    st.builds(Control, **head, symbol=symbols, action=st.sampled_from(Action)),
    st.builds(
        Funding,
        **head,
        account=accounts,
        asset=symbols | st.just(CASH),
        amount=st.integers(FIXED_MIN, FIXED_MAX).filter(bool),
    ),
    st.just(Pulse()),
    st.builds(
        TradeReport,
        formation=st.integers(0, GATEWAY_MAX),
        token=st.integers(0, NUMBER_MAX),
        trade_count=st.integers(0, GATEWAY_MAX),
        trades_hash=st.binary(min_size=32, max_size=32),
    ),
)

ORDER = NewOrder(7, 1, "ann", "a1", "XYZ", Side.BUY, 5, 10)


@given(messages)
def test_a_message_survives_its_bytes(message: FloorMessage) -> None:
    payload = encode(message)
    assert payload[0] in FLOOR_KINDS
    assert decode(payload) == message
    assert type(decode(payload)) is type(message)


@given(messages, st.data())
def test_whatever_is_read_has_one_form_only(message: FloorMessage, data: st.DataObject) -> None:
    payload = bytearray(encode(message))
    place = data.draw(st.integers(0, len(payload) - 1))
    payload[place] = data.draw(st.integers(0, 255))
    try:
        read = decode(bytes(payload))
    except BadOrder:
        return
    assert encode(read) == bytes(payload)


@given(st.binary(max_size=200))
def test_hostile_bytes_are_refused_in_one_way(payload: bytes) -> None:
    try:
        read = decode(payload)
    except BadOrder:
        return
    assert encode(read) == payload


def test_no_kind_is_that_of_a_ticker_record() -> None:
    assert TRADE_KIND not in FLOOR_KINDS


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"account": ""}, "account is"),
        ({"account": "a b"}, "account is"),
        ({"account": "ä"}, "does not fit"),
        ({"client_id": "x" * 21}, "longer than its field"),
        ({"quantity": 0}, "quantity is 0"),
        ({"quantity": -ONE}, "quantity is -1; it must be above 0"),
        ({"quantity": 1 << 63}, "does not fit"),
        ({"price": 0}, "price is 0; a LIMIT order has one above 0"),
        ({"price": -3 * ONE}, "price is -3"),
        ({"stop_price": 4 * ONE}, "stop_price is 4; a LIMIT order has 0"),
        ({"order_type": OrderType.MARKET, "price": 10 * ONE}, "price is 10; a MARKET order has 0"),
        ({"order_type": OrderType.STOP_LIMIT}, "stop_price is 0"),
        ({"post_only": True, "time_in_force": TimeInForce.IOC}, "post_only is set"),
        ({"entered_at": -1}, "entered_at is -1"),
        ({"side": 9}, "side is 9"),
        ({"order_type": 9}, "order_type is 9"),
        ({"time_in_force": 9}, "time_in_force is 9"),
        ({"self_trade": 9}, "self_trade is 9"),
    ],
)
def test_an_impossible_order_is_refused_by_the_name_of_its_field(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(BadOrder, match=word):
        encode(ORDER._replace(**changes))


def test_sizes_versions_and_kinds_are_exact() -> None:
    payload = encode(ORDER)
    for bad, word in (
        (b"", "kind is missing"),
        (b"\x00" + payload[1:], "kind is 00"),
        (payload[:-1], "size is"),
        (payload[:1] + b"\x02" + payload[2:], "version is 2"),
        (payload[:6] + b"\x02" + payload[7:], "post_only is 2"),
    ):
        with pytest.raises(BadOrder, match=word):
            decode(bad)


def test_a_rule_with_invalid_parameters_is_refused() -> None:
    for period in (0, -1):
        with pytest.raises(BadRule, match="period"):
            BatchAuction(period=period)
    with pytest.raises(BadRule, match="decrement"):
        DutchClock(start=1, decrement=0, step_period=1)
    with pytest.raises(BadRule, match="kind is 9"):
        rule_of((9, 0, 0), (0, 0, 0, 0))
    with pytest.raises(BadRule, match="option"):
        rule_of((1, 9, 1), (0, 0, 0, 0))
    with pytest.raises(BadRule, match="more than"):
        rule_of((4, 0, 0), (1, 0, 0, 0))


@given(rules)
def test_a_rule_survives_its_fields(rule: Any) -> None:
    assert rule_of(*rule_fields(rule)) == rule

"""Subscriptions in queries and messages, and the errors for bad ones."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.tape.feed import AtInstant, AtNumber, Beginning
from fairtape.web.encoding import Encoding
from fairtape.web.subscription import Refusal, RequestVerb, SlowPolicy, Subscription, request_of, subscription_of_query


def test_a_query_and_a_message_are_equivalent() -> None:
    query = subscription_of_query("symbols=ABC,DEF&stripes=1,2&form=binary&policy=conflate&from=12")
    message = {"do": "subscribe", "symbols": ["ABC", "DEF"], "stripes": [1, 2], "form": "binary", "policy": "conflate"}
    assert request_of(json.dumps(message | {"from": 12}).encode()) == (RequestVerb.SUBSCRIBE, query)
    start = AtNumber(12)
    assert query == Subscription(
        symbols=("ABC", "DEF"), stripes=(1, 2), encoding=Encoding.BINARY, policy=SlowPolicy.CONFLATE, start=start
    )


def test_a_start_is_a_number_an_instant_or_the_beginning() -> None:
    assert subscription_of_query("from=7&formation=3") == Subscription(start=AtNumber(7), formation=3)
    assert subscription_of_query("from=beginning") == Subscription(start=Beginning())
    since = 1_750_000_000_000_000_000
    assert subscription_of_query(f"since_ns={since}") == Subscription(start=AtInstant(since))
    assert request_of(f'{{"do":"subscribe","since_ns":"{since}"}}'.encode())[1] == Subscription(start=AtInstant(since))


def test_an_empty_query_is_everything_in_json_from_now_on() -> None:
    assert (
        subscription_of_query("")
        == subscription_of_query("symbols=*")
        == request_of(b'{"do":"subscribe"}')[1]
        == Subscription()
    )


@pytest.mark.parametrize(
    ("query", "field", "expected"),
    [
        ("symbols=", "symbols", "symbol"),
        ("symbols=A%20B", "symbols", "A B"),
        ("stripes=x", "stripes", "whole number"),
        ("stripes=70000", "stripes", "65535"),
        ("form=xml", "form", "json, binary"),
        ("policy=block", "policy", "skip, conflate, disconnect"),
        ("from=0", "from", "1 or above"),
        ("from=-1", "from", "whole number"),
        ("from=99999999999999999999999", "from", "whole number"),
        ("from=3&since_ns=5", "since_ns", "both given"),
        ("since_ns=x", "since_ns", "whole number"),
        ("formation=-1", "formation", "whole number"),
        ("snapshot=maybe", "snapshot", "1 or 0"),
        ("snapshot=1&from=3", "snapshot", "leave one of them out"),
        ("colour=red", "colour", "no field"),
        ("form=json&form=json", "form", "twice"),
        ("nonsense", "query", "expected fields"),
        ("&".join("a=1" for _ in range(20)), "query", "expected fields"),
        ("symbols=" + ",".join(f"S{at}" for at in range(1_001)), "symbols", "1,000"),
    ],
)
def test_a_bad_query_is_refused_with_the_field_and_the_remedy(query: str, field: str, expected: str) -> None:
    with pytest.raises(Refusal, match=expected) as refusal:
        subscription_of_query(query)
    assert refusal.value.field == field


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (b"", "message"),
        (b"[1]", "message"),
        (b"\xff", "message"),
        (b"[" * 10_000, "message"),
        (b"{}", "do"),
        (b'{"do":"dance"}', "do"),
        (b'{"do":["subscribe"]}', "do"),
        (b'{"do":"snapshot","from":1}', "from"),
        (b'{"do":"subscribe","symbols":"ABC"}', "symbols"),
        (b'{"do":"subscribe","symbols":[1]}', "symbols"),
        (b'{"do":"subscribe","symbols":[["ABC"]]}', "symbols"),
        (b'{"do":"subscribe","stripes":[true]}', "stripes"),
        (b'{"do":"subscribe","from":true}', "from"),
        (b'{"do":"subscribe","from":1.5}', "from"),
        (b'{"do":"subscribe","snapshot":1}', "snapshot"),
    ],
)
def test_a_bad_message_is_refused_with_the_field(text: bytes, field: str) -> None:
    with pytest.raises(Refusal) as refusal:
        request_of(text)
    assert refusal.value.field == field


@given(
    st.one_of(st.text(max_size=60), st.from_regex(r"[a-z]{1,9}=[\w,]{0,9}(&[a-z]{1,9}=[\w,]{0,9})?", fullmatch=True))
)
def test_every_query_is_parsed_or_refused(query: str) -> None:
    with suppress(Refusal):
        subscription_of_query(query)


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=9)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(st.sampled_from(["do", "symbols", "stripes", "from", "form", "policy", "x"]), inner),
        ),
        max_leaves=8,
    )
)
def test_every_message_is_parsed_or_refused(content: object) -> None:
    with suppress(Refusal):
        request_of(json.dumps(content).encode())

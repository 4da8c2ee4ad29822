"""HOST:PORT: one parser, one sentence about what is wrong."""

import pytest

from fairtape.core.addresses import check_port, find_address, format_address, is_host, parse_address
from fairtape.core.errors import UserError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9101", ("127.0.0.1", 9_101)),
        ("site-1.example:1", ("site-1.example", 1)),
        ("[::1]:2379", ("::1", 2_379)),
        ("::1:65535", ("::1", 65_535)),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, address: tuple[str, int]) -> None:
    assert parse_address("entry", text) == address


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "here",
            ":9101",
            "here:",
            "here:0",
            "here:65536",
            "here:-1",
            "here:+1",
            "here: 1",
            "here:1_000",
            "here:٣",
        ),
        *("[::1]", "[]:1", "[here]:1", "[::1:1"),
    ],
)
def test_anything_else_is_refused_in_one_sentence(text: str) -> None:
    assert find_address(text) is None
    with pytest.raises(UserError) as refusal:
        parse_address("--server", text, example="10.0.0.7:17001")
    expected = "expected HOST:PORT with a port from 1 to 65535, such as 10.0.0.7:17001"
    assert str(refusal.value) == f"--server is {text!r}; {expected}"


def test_port_zero_is_taken_only_where_the_kernel_may_choose() -> None:
    assert parse_address("--entry", "127.0.0.1:0", port_min=0) == ("127.0.0.1", 0)
    check_port("port", 0, port_min=0)
    with pytest.raises(UserError, match=r"^data port is 0; it must be from 1 to 65535$"):
        check_port("data port", 0)


@pytest.mark.parametrize("text", ["127.0.0.1:9101", "here:1", "[2001:db8::7]:17001"])
def test_a_formatted_address_parses_to_itself(text: str) -> None:
    assert format_address(parse_address("address", text)) == text


def test_a_host_is_a_name_or_a_whole_ipv4_address() -> None:
    assert all(map(is_host, ("localhost", "a", "site_1.example", "10.0.0.7")))
    assert not any(map(is_host, ("", "10.0.0", "10.0.0.256", "1", "-a", "a.", "a b", "::1")))

"""What a gateway says at its door: whoever is too many comes back, whoever is wrong does not."""

import pytest

from fairtape.client.trading import LoginRefused, _check_welcome
from fairtape.gateway.servers.native_messages import BadNativeMessage, encode_line, parse_line


def test_a_gateway_that_is_busy_is_one_to_come_back_to() -> None:
    with pytest.raises(OSError, match="try again"):
        _check_welcome(encode_line({"is": "closed", "cause": "busy", "reason": "too many are at the door; try again"}))


def test_a_wrong_password_is_final() -> None:
    with pytest.raises(LoginRefused, match="wrong user name"):
        _check_welcome(encode_line({"is": "closed", "cause": "login", "reason": "wrong user name or password"}))


def test_a_line_of_brackets_is_no_object() -> None:
    with pytest.raises(BadNativeMessage, match="no JSON"):
        parse_line(b"[" * 100_000)

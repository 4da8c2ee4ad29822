"""What a gateway says at its door: whoever is too many comes back, whoever is wrong does not."""

import pytest

from fairtape.client.trading import LockedOut, _welcome
from fairtape.gateway.servers.native_messages import BadNativeMessage, encode_line, parse_line


def test_a_gateway_that_is_busy_is_one_to_come_back_to() -> None:
    with pytest.raises(OSError, match="try again"):
        _welcome(encode_line({"is": "closed", "cause": "busy", "reason": "too many concurrent logins; try again"}))


def test_a_wrong_password_is_final() -> None:
    with pytest.raises(LockedOut, match="wrong user name"):
        _welcome(encode_line({"is": "closed", "cause": "login", "reason": "wrong user name or password"}))


def test_a_line_of_brackets_is_no_object() -> None:
    with pytest.raises(BadNativeMessage, match="not JSON"):
        parse_line(b"[" * 100_000)

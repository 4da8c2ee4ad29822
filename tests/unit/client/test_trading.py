"""The first answer of a gateway: busy is temporary, a wrong login is final."""

import pytest

from fairtape.client.trading import LoginRefused, _check_welcome
from fairtape.gateway.servers.native_messages import BadNativeMessage, encode_line, parse_line


def test_a_busy_gateway_is_tried_again_later() -> None:
    with pytest.raises(OSError, match="try again"):
        _check_welcome(
            encode_line({"is": "closed", "cause": "busy", "reason": "too many concurrent logins; try again"})
        )


def test_a_wrong_password_is_final() -> None:
    with pytest.raises(LoginRefused, match="wrong user name"):
        _check_welcome(encode_line({"is": "closed", "cause": "login", "reason": "wrong user name or password"}))


def test_a_line_of_brackets_is_no_object() -> None:
    with pytest.raises(BadNativeMessage, match="not JSON"):
        parse_line(b"[" * 100_000)

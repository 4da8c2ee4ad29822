"""Network addresses as text: the one parser of HOST:PORT.

Nothing is looked up here. A host is a name, an IPv4 address, or an IPv6 address; an IPv6 address may stand in brackets
(`[::1]:2379`, RFC 3986), and `format_address` always writes them. A caller with narrower rules checks the host itself.
"""

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final, TypeAlias

from fairtape.core.errors import UserError

Address: TypeAlias = tuple[str, int]  # host and port

PORT_MAX: Final = 65_535

_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_NUMBERS: Final = re.compile(r"[0-9.]+")
_PORT: Final = re.compile(r"[0-9]{1,5}")


def parse_address(field: str, text: str, *, example: str = "127.0.0.1:9101", port_min: int = 1) -> Address:
    """The host and the port of HOST:PORT. The `UserError` names the field, the value and what is expected."""
    address = find_address(text, port_min=port_min)
    if address is None:
        raise UserError(
            f"{field} is {text!r}; expected HOST:PORT with a port from {port_min} to {PORT_MAX}, such as {example}"
        )
    return address


def find_address(text: str, *, port_min: int = 1) -> Address | None:
    """The host and the port of HOST:PORT; None where the text is no such address."""
    host, _, port = text.rpartition(":")
    if not _PORT.fullmatch(port) or not port_min <= int(port) <= PORT_MAX:
        return None
    if host.startswith("["):
        host = host[1:-1] if host.endswith("]") else ""
        if not _is_ipv6(host):
            return None
    return (host, int(port)) if host else None


def format_address(address: Address) -> str:
    """HOST:PORT, with an IPv6 address in brackets."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_port(field: str, port: int, *, port_min: int = 1) -> None:
    """Raise a `UserError` where the number is no port; `port_min` 0 also takes the port that the kernel chooses."""
    if not port_min <= port <= PORT_MAX:
        raise UserError(f"{field} is {port}; it must be from {port_min} to {PORT_MAX}")


def is_host(text: str) -> bool:
    """Whether the text can be a host name or an IPv4 address."""
    if not _HOST.fullmatch(text):
        return False
    if not _NUMBERS.fullmatch(text):
        return True
    try:
        IPv4Address(text)
    except AddressValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether the host always means the machine that looks it up."""
    try:
        return IPv4Address(host).is_loopback
    except AddressValueError:
        return host == "localhost"


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except AddressValueError:
        return False
    return True

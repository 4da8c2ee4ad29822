"""One market, one order, one moment.

`fairtape` merges the messages of many venues into a single sequence, delivers that sequence to every site at the
same instant, and can prove afterwards that it did. ARCHITECTURE.md is the map of the code; PROTOCOL.md is normative.

A program that wants to read it begins with `fairtape.connect`; one that wants to trade, with `fairtape.trade`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairtape import client as client
    from fairtape.client import connect as connect
    from fairtape.client import trade as trade

__version__ = "0.1.0"

if not __debug__:
    raise SystemExit("fairtape refuses python -O: its assertions are part of its safety. Run it without -O.")


def __getattr__(name: str) -> Any:
    """Import the client when it is used: NumPy and Arrow would slow the start of most commands."""
    if name not in ("client", "connect", "trade"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    client = import_module("fairtape.client")
    return client if name == "client" else getattr(client, name)

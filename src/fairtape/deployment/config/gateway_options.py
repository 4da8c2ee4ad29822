"""How a gateway is run, as its command or the deployment's file says it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from fairtape.gateway.core.gateway import GatewayLimits
from fairtape.market.prices import ONE
from fairtape.net.udp import Address

LIMITS: Final[Mapping[str, tuple[int, int]]] = {  # by the names that users know: the least and the most
    "orders_per_s": (1, 1_000_000),
    "open_orders": (1, 10_000),
    "notional": (1, 9_000_000_000),
}
USUAL_LIMITS: Final = GatewayLimits(notional_max=100_000_000 * ONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """Where traders connect, what is kept where, and how much of it one account may have."""

    entry: Address | None = None  # where the native protocol is spoken
    fix: Address | None = None
    ouch: Address | None = None
    cert_file: Path | None = None  # with it and its key, all three are spoken over TLS
    key_file: Path | None = None
    comp_id: str = "FAIRTAPE"  # what FIX clients call us
    accounts: str | None = None  # a URL instead of the file in the folder
    ledger: str | None = None  # where the ledger is projected to; None: nowhere
    limits: GatewayLimits = USUAL_LIMITS

    @property
    def tls_files(self) -> tuple[Path, Path] | None:
        """Certificate and key, where both are given."""
        return None if self.cert_file is None or self.key_file is None else (self.cert_file, self.key_file)

    @property
    def serves(self) -> bool:
        """Whether there is any place where traders connect."""
        return any((self.entry, self.fix, self.ouch))


def limits_of(wanted: Mapping[str, int | None], *, otherwise: GatewayLimits = USUAL_LIMITS) -> GatewayLimits:
    """Limits by the names and in the units of `LIMITS`; those that are left out, or None, stay as they are."""
    chosen = {name: value for name, value in wanted.items() if value is not None}
    return replace(
        otherwise,
        requests_per_s=chosen.get("orders_per_s", otherwise.requests_per_s),
        open_orders_max=chosen.get("open_orders", otherwise.open_orders_max),
        notional_max=chosen["notional"] * ONE if "notional" in chosen else otherwise.notional_max,
    )

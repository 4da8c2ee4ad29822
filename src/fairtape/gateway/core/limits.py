"""Limits of a gateway. Apart from the gateway, so that a deployment file can be read without it."""

from dataclasses import dataclass

from fairtape.core.instants import SECOND, Duration
from fairtape.market.prices import ONE


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits:
    """Limits of one account at one gateway, so that no account disturbs the others."""

    requests_per_s: int = 1_000
    burst_period: Duration = 1 * SECOND
    open_orders_max: int = 1_000
    notional_max: int = 1_000_000_000 * ONE  # value of all open orders, at their limits
    pending_max: int = 100_000  # requests of all accounts without an answer
    account_pending_max: int = 10_000
    accounts_max: int = 100_000  # accounts whose rates are tracked

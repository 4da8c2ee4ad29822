"""The trading rules as values: a market is opened with one of them, and every replica applies exactly that rule.

TRMP 2001 §7.3 leaves the rule to the floor: "should the trade be made at A, B, or somewhere in between", a sealed
second-price auction, the Amsterdam flower auction. Where a price may fall between two steps, the rounding is part of
the rule, because replicas must agree to the last digit.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

from fairtape.core.instants import Duration
from fairtape.market.prices import FIXED_MAX, Price


class BadRule(ValueError):
    """A rule with an invalid parameter; the text names the field, the value and the remedy."""


class Pricing(IntEnum):
    """The price of a continuous trade between two crossing limits."""

    MAKER = 1  # limit of the resting order
    TAKER = 2  # limit of the arriving order
    MIDPOINT = 3  # halfway between


class Rounding(IntEnum):
    """Rounding of a price that falls between two steps."""

    DOWN = 1  # to the lower step, for the buyer
    UP = 2  # to the higher step, for the seller
    MAKER = 3  # towards the resting order's limit
    EVEN = 4  # to the nearest step; from the exact middle to the even one


class Candidates(IntEnum):
    """Which prices a call auction may choose."""

    LIMITS = 1  # the limits of orders, as on Xetra
    TICKS = 2  # and every tick between them, as on ASX
    BEYOND = 3  # and one tick above the highest and below the lowest, for surplus market orders, as on TSE and KRX


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuous:
    """Continuous trading, by price and then by time."""

    pricing: Pricing = Pricing.MAKER
    rounding: Rounding = Rounding.DOWN  # of midpoints
    step: Price = 0  # of midpoints; 0: one tick

    def __post_init__(self) -> None:
        _check("step", self.step, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAuction:
    """Orders rest until an operator uncrosses them, all at one price.

    The price maximises the volume, then minimises the surplus, then follows the side of the surplus; if that does not
    decide, it is the price closest to the reference price.
    """

    candidates: Candidates = Candidates.TICKS
    reference: Price = 0  # before the first trade; 0: none, and then the lowest price that is left is taken

    def __post_init__(self) -> None:
        _check("reference", self.reference, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAuction:
    """A call auction at every multiple of `period`: orders of one batch are equal, and older batches come first.

    If an interval of prices clears, the trade is made in its middle. Budish, Cramton and Shim 2015.
    """

    period: Duration
    rounding: Rounding = Rounding.DOWN

    def __post_init__(self) -> None:
        _check("period", self.period, 1)
        if self.rounding is Rounding.MAKER:
            raise BadRule("rounding is MAKER; a batch has no maker: use DOWN, UP or EVEN")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondPrice:
    """One sealed round: the highest bids win, at the highest price that was refused. Vickrey 1961.

    The limit of the single offer is the reserve.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class DutchClock:
    """The price of a lot falls from `start` by `decrement` every `step_period` until a bid takes it.

    A resting bid takes the lot when the clock reaches its limit. The clock stops at the limit of the lot. After a sale
    of part of a lot the clock rises by `rewind`, but not above `start`.
    """

    start: Price
    decrement: Price
    step_period: Duration
    rewind: Price = 0

    def __post_init__(self) -> None:
        _check("start", self.start, 1)
        _check("decrement", self.decrement, 1)
        _check("step_period", self.step_period, 1)
        _check("rewind", self.rewind, 0)


Rule: TypeAlias = Continuous | CallAuction | BatchAuction | SecondPrice | DutchClock

EXCHANGEABLE: Final = (Continuous, CallAuction, BatchAuction)  # a market may change between these


def _check(field: str, value: int, least: int) -> None:
    if not least <= value <= FIXED_MAX:
        raise BadRule(f"{field} is {value}; it must be from {least} to {FIXED_MAX}")


def rounded(price: int, step: Price, rounding: Rounding, *, upward: bool = False) -> Price:
    """Half of `price`, rounded to a step. `price` is doubled so that no half is lost.

    `upward` is the direction of the maker's limit, for `Rounding.MAKER`.
    """
    whole, rest = divmod(price, 2 * step)
    if rest and _goes_up(whole, rest, step, rounding, upward=upward):
        whole += 1
    return whole * step


def _goes_up(whole: int, rest: int, step: Price, rounding: Rounding, *, upward: bool) -> bool:
    if rounding is Rounding.EVEN:
        return rest > step or (rest == step and whole % 2 == 1)
    return rounding is Rounding.UP or (rounding is Rounding.MAKER and upward)

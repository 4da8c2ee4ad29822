"""The trading rules as values: a market is opened with one of them, and every replica does exactly what it says.

TRMP 2001 §7.3 leaves the rule to the floor: "should the trade be made at A, B, or somewhere in between", a sealed
auction at the second price, the Amsterdam flower auction. Wherever a price may fall between two steps, the rounding is
part of the rule, because two replicas must agree to the last digit.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

from fairtape.core.instants import Duration
from fairtape.market.prices import FIXED_MAX, Price


class BadRule(ValueError):
    """A rule that no market can follow; the message names the field, the value and the remedy."""


class Pricing(IntEnum):
    """At which of two crossing limits a continuous trade is made."""

    MAKER = 1  # the one that was there first
    TAKER = 2  # the one that came
    MIDPOINT = 3  # half way between


class Rounding(IntEnum):
    """Where a price goes that falls between two steps."""

    DOWN = 1  # to the lower step, in the buyer's favour
    UP = 2  # to the higher one, in the seller's
    MAKER = 3  # to the step on the side of the order that was there first
    EVEN = 4  # to the nearest step; from the exact middle to the even one


class Candidates(IntEnum):
    """Which prices a call auction may choose from."""

    LIMITS = 1  # those at which somebody bids or offers, as on Xetra
    TICKS = 2  # every tick between them, too, as on ASX
    BEYOND = 3  # and one tick above the highest and below the lowest, to which market orders press, as on TSE and KRX


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuous:
    """Orders meet as they come, by price and then by time."""

    pricing: Pricing = Pricing.MAKER
    rounding: Rounding = Rounding.DOWN  # of midpoints
    step: Price = 0  # of midpoints; 0: one tick

    def __post_init__(self) -> None:
        _check("step", self.step, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAuction:
    """Orders gather until an operator uncrosses them, all at one price.

    The price trades the most; of those prices, the ones that leave the least; of those, the one that the pressure of
    what is left points to; and where it points both ways or nowhere, the one closest to the reference price.
    """

    candidates: Candidates = Candidates.TICKS
    reference: Price = 0  # until there is a last trade; 0: none, and then the lowest price in question is taken

    def __post_init__(self) -> None:
        _check("reference", self.reference, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAuction:
    """A call auction at every multiple of `period`: orders of one batch are equal, and older batches come first.

    Where a whole interval of prices clears, the trade is made in its middle. Budish, Cramton and Shim 2015.
    """

    period: Duration
    rounding: Rounding = Rounding.DOWN

    def __post_init__(self) -> None:
        _check("period", self.period, 1)
        if self.rounding is Rounding.MAKER:
            raise BadRule("rounding is MAKER; a batch has no maker: take DOWN, UP or EVEN")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondPrice:
    """One sealed round: the highest bids win, at the highest price that was refused. Vickrey 1961.

    The limit of the one offer is the reserve.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class DutchClock:
    """The price of a lot falls from `start` by `decrement` every `step_period` until somebody takes it.

    A resting bid takes the lot when the clock comes down to its limit. The limit of the lot is where the clock stops.
    After a sale of part of a lot the clock goes back up by `rewind`, but not above `start`.
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

EXCHANGEABLE: Final = (Continuous, CallAuction, BatchAuction)  # a market may pass from one to another of these


def _check(field: str, value: int, least: int) -> None:
    if not least <= value <= FIXED_MAX:
        raise BadRule(f"{field} is {value}; it must be from {least} to {FIXED_MAX}")


def rounded(price: int, step: Price, rounding: Rounding, *, upward: bool = False) -> Price:
    """The step that half of `price` (which is a doubled price, so that no half is lost) comes to.

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

"""Rules as the bytes of an `OpenMarket` message: three option bytes and four numbers, unused ones zero."""

from typing import Final, TypeAlias

from fairtape.exchange.rules.values import (
    BadRule,
    BatchAuction,
    CallAuction,
    Candidates,
    Continuous,
    DutchClock,
    Pricing,
    Rounding,
    Rule,
    SecondPrice,
)

CONTINUOUS: Final = 1
CALL_AUCTION: Final = 2
BATCH_AUCTION: Final = 3
SECOND_PRICE: Final = 4
DUTCH_CLOCK: Final = 5

Options: TypeAlias = tuple[int, int, int]
Parameters: TypeAlias = tuple[int, int, int, int]


def rule_fields(rule: Rule) -> tuple[Options, Parameters]:
    """What stands for a rule in a message."""
    match rule:
        case Continuous():
            return (CONTINUOUS, rule.pricing, rule.rounding), (rule.step, 0, 0, 0)
        case CallAuction():
            return (CALL_AUCTION, rule.candidates, 0), (rule.reference, 0, 0, 0)
        case BatchAuction():
            return (BATCH_AUCTION, 0, rule.rounding), (rule.period, 0, 0, 0)
        case SecondPrice():
            return (SECOND_PRICE, 0, 0), (0, 0, 0, 0)
        case DutchClock():
            return (DUTCH_CLOCK, 0, 0), (rule.start, rule.decrement, rule.step_period, rule.rewind)


def rule_of(options: Options, parameters: Parameters) -> Rule:
    """The rule that these fields stand for. Raises `BadRule` for fields that `rule_fields` would not have made."""
    rule = _read(options, parameters)
    if rule_fields(rule) != (options, parameters):
        raise BadRule(f"options {options} and parameters {parameters} hold more than a {type(rule).__name__} has")
    return rule


def _read(options: Options, parameters: Parameters) -> Rule:
    kind, first, second = options
    try:
        match kind:
            case 1:
                return Continuous(pricing=Pricing(first), rounding=Rounding(second), step=parameters[0])
            case 2:
                return CallAuction(candidates=Candidates(first), reference=parameters[0])
            case 3:
                return BatchAuction(period=parameters[0], rounding=Rounding(second))
            case 4:
                return SecondPrice()
            case 5:
                start, decrement, step_period, rewind = parameters
                return DutchClock(start=start, decrement=decrement, step_period=step_period, rewind=rewind)
    except BadRule:
        raise
    except ValueError as error:
        raise BadRule(f"an option is refused: {error}") from None
    raise BadRule(f"kind is {kind}; rules are numbered from {CONTINUOUS} to {DUTCH_CLOCK}")

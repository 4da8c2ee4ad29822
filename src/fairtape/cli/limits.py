"""Numbers that a user types: each has a least and a most, and `nan` is neither."""

from typing import Final

from fairtape.core.errors import UserError

SHOWN_MAX: Final = 32  # characters of a value: enough to recognise what was typed


def check_within(name: str, value: float | None, least: float, most: float, *, hint: str = "") -> None:
    """Refuse a value out of bounds, in one sentence; `hint` ends it. An option that was not given is within."""
    if value is None or least <= value <= most:
        return
    raise UserError(f"{name} is {_shown(value)}; give from {_shown(least)} to {_shown(most)}{hint}")


def _shown(value: float) -> str:
    text = f"{value:,.10g}" if isinstance(value, float) else f"{value:,}"
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"

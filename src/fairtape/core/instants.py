"""Time inside fairtape: integer nanoseconds UTC, always passed in, never read from a clock."""

from typing import Final, TypeAlias

Instant: TypeAlias = int
Duration: TypeAlias = int

MICROSECOND: Final = 1_000
MILLISECOND: Final = 1_000_000
SECOND: Final = 1_000_000_000

NEVER: Final = 1 << 63
"""Later than every instant that fits a datagram: the neutral element of `min` over deadlines."""

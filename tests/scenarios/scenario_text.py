"""The text of a scenario file: commands, a line of four dashes, and what is expected; the words of commands."""

import re
from typing import Final

from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND, Duration
from fairtape.wire.frames import NodeId

RULE_LINE: Final = "----"
UNITS: Final = {"us": MICROSECOND, "µs": MICROSECOND, "ms": MILLISECOND, "s": SECOND}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(us|µs|ms|s)")


class BadScenario(ValueError):
    """A line cannot be parsed; the message names it."""


def parts(text: str) -> tuple[str, str]:
    """The commands and the expected trace or log of a scenario file."""
    commands, _, expected = text.partition(f"{RULE_LINE}\n")
    return commands, expected


def duration(word: str) -> Duration:
    """`150ms` in nanoseconds."""
    found = _DURATION.fullmatch(word)
    if found is None:
        raise BadScenario(f"{word!r} is no duration; write 150ms, 20us or 1.5s")
    return round(float(found[1]) * UNITS[found[2]])


def link(word: str) -> tuple[NodeId | None, NodeId | None]:
    """`2->3`; `*` is any node."""
    origin, arrow, to = word.partition("->")
    if not arrow:
        raise BadScenario(f"{word!r} is no link; write 2->3, or * for any node")
    return (None if origin == "*" else int(origin)), (None if to == "*" else int(to))

"""Names and words that the project has retired, and the search for them.

Each retired word is a metaphor or a stilted phrase with a standard term in its place; the glossary of PROTOCOL.md has
the terms. Run as a program, this module lists the uses below the paths that it is given."""

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# Anywhere in a text, also as a part of a name: a letter before or behind does not match.
WORDS: Final = (
    "whoever", "nobody", "somebody", "everybody", "(?:is|are|was|were|be|been|being)[ _]told", "befall(?:s|en)?",
    "befell", "fares?", "so[ _]many", "weather", "charters?", "surger(?:y|ies)", "govern(?:or|ors|ed|s|ance)?",
    "subgovernor", "postbox", "postman", "doorman", "striper", "soupdesk", "librarian", "learner", "upheavals?",
    "ordeals?", "realms?", "jury", "premises", "bulletins?", "wakefulness", "audience", "intake", "reckoning",
    "posture", "herald", "misfortunes?", "chronicles?", "guardians?", "errands?", "trials?", "shelf", "seat(?:s|ed)?",
    "catalogue", "ears?", "house(?:s|hold|holds)?", "lanes?", "bunch(?:es)?", "stretch(?:es)?", "desks?", "crew",
    "press", "stations?", "town", "wish(?:es)?", "witness(?:es)?", "subloops?", "outlets?", "loopseats", "carriers?",
)  # fmt: skip

# Whole identifiers of Python code.
NAMES: Final = frozenset({
    "Acquaintance", "Adrift", "Away", "Bench", "Catalogue", "Chapter", "Company", "Complaint", "Court", "Crew", "Cut",
    "Door", "Form", "HANDS", "Hearing", "House", "Hub", "Keeping", "Ledgerstore", "Library", "Listen", "Lot", "Memory",
    "Opener", "Outbox", "Pace", "Past", "PastReader", "Places", "Post", "Ruling", "Seat", "Silence", "Stage",
    "Standing", "Tell", "Timekeeper", "Told", "Tuner", "Turn", "TurnedAway", "Turning", "Unwritten", "Wish",
    "cut_after", "life_of", "spare_the_collector", "told", "untold",
})  # fmt: skip

_WORDS: Final = re.compile(rf"(?<![A-Za-z])(?:{'|'.join(WORDS)})(?![A-Za-z])", re.IGNORECASE)
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def retired_in(text: str, *, is_python: bool) -> Iterator[tuple[int, str]]:
    """The line and the word of every use of what is retired."""
    for number, line in enumerate(text.split("\n"), 1):
        for found in _WORDS.finditer(_CAMEL.sub("_", line)):
            yield number, found[0]
    if is_python:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME and token.string in NAMES:
                yield token.start[0], token.string


def main(arguments: list[str]) -> None:
    """List the uses in files below these paths."""
    for argument in arguments:
        top = Path(argument)
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.suffix in (".py", ".md", ".txt", ".toml", ".html", ".js") and "__pycache__" not in path.parts:
                for number, word in retired_in(path.read_text(), is_python=path.suffix == ".py"):
                    sys.stdout.write(f"{path}:{number}: {word}\n")


if __name__ == "__main__":
    main(sys.argv[1:])

"""A site's journal: everything it holds in order, hash-chained, and when it released it. Crash-safe; proves itself.

`Writer` writes one, `Journal` reads it, `verify` proves it and `compare` proves several against each other. `Damaged`
is the only thing that bad bytes can raise; it names the file, the byte and the sequence number.
"""

from fairtape.runtime.journal.audit import Comparison, Difference, Problem, Report, compare, verify
from fairtape.runtime.journal.format import Damaged, Tip
from fairtape.runtime.journal.reader import Cursor, Entry, Journal, Message
from fairtape.runtime.journal.repair import Cut
from fairtape.runtime.journal.segments import Summary
from fairtape.runtime.journal.writer import Sync, Unwritten, Writer

__all__ = [
    "Comparison",
    "Cursor",
    "Cut",
    "Damaged",
    "Difference",
    "Entry",
    "Journal",
    "Message",
    "Problem",
    "Report",
    "Summary",
    "Sync",
    "Tip",
    "Unwritten",
    "Writer",
    "compare",
    "verify",
]

"""A site's journal: everything it holds in order, hash-chained, and when it released it. Crash-safe; proves itself.

`Writer` writes one, `Journal` reads it, `Past` serves those who catch up from it, `verify` proves it and `compare`
proves several against each other. `Damaged` is the only thing that bad bytes can raise; it names the file, the byte and
the sequence number. `Unwritten` says that the disk takes no more.
"""

from fairtape.journal.audit import Comparison, Difference, Extent, Problem, Report, compare, verify
from fairtape.journal.crash_recovery import Cut
from fairtape.journal.format import Damaged, Tip
from fairtape.journal.history import Past
from fairtape.journal.reader import Cursor, Entry, Journal, Message, Turning
from fairtape.journal.summaries import Summary
from fairtape.journal.writer import Sync, Unwritten, Writer

__all__ = [
    "Comparison",
    "Cursor",
    "Cut",
    "Damaged",
    "Difference",
    "Entry",
    "Extent",
    "Journal",
    "Message",
    "Past",
    "Problem",
    "Report",
    "Summary",
    "Sync",
    "Tip",
    "Turning",
    "Unwritten",
    "Writer",
    "compare",
    "verify",
]

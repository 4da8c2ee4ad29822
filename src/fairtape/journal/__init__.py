"""A site's journal: everything it holds in order, hash-chained, and when it released it. Crash-safe; proves itself.

`JournalWriter` writes one, `JournalReader` reads it, `JournalFollower` follows it while it grows. `History` serves the
sites that catch up from it. `verify` proves it, and `compare` proves several against each other. `Damaged` is the only
thing that bad bytes can raise; it names the file, the byte and the sequence number. `WriteFailed` says that the disk
takes no more.
"""

from fairtape.journal.audit import AuditReport, Comparison, Difference, Extent, Problem, compare, verify
from fairtape.journal.crash_recovery import TornTail
from fairtape.journal.follow import JournalFollower
from fairtape.journal.format import Damaged, Tip
from fairtape.journal.history import History
from fairtape.journal.reader import Cursor, FormationChanged, JournalEntry, JournalMessage, JournalReader
from fairtape.journal.segments import Summary
from fairtape.journal.writer import JournalWriter, SyncPolicy, WriteFailed

__all__ = [
    "AuditReport",
    "Comparison",
    "Cursor",
    "Damaged",
    "Difference",
    "Extent",
    "FormationChanged",
    "History",
    "JournalEntry",
    "JournalFollower",
    "JournalMessage",
    "JournalReader",
    "JournalWriter",
    "Problem",
    "Summary",
    "SyncPolicy",
    "Tip",
    "TornTail",
    "WriteFailed",
    "compare",
    "verify",
]

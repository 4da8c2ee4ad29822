"""A site's journal: the ordered messages that it holds, hash-chained, with this site's release marks. Crash-safe.

- `format`: the bytes of segments and records; normative, touches no file
- `segment_list`: the segments of a journal, found without listing its directory
- `segments`: reads segments: record by record, by heads only, or through an index
- `writer`: `JournalWriter` appends; sync policies; new segments
- `crash_recovery`: opens a journal whose writer died, and sets a torn tail aside
- `truncation`: removes the end of the order, atomically
- `reader`: `JournalReader` reads by sequence number or by time, `History` in chunks for sites that catch up
- `follow`: `JournalFollower` follows a journal while it grows
- `notifications`: a site announces to readers in other processes how far its journal has come
- `audit`: `verify` checks one journal, `compare` checks several against each other

Bad bytes raise `Damaged`, which names the file, the byte and the sequence number. A disk that cannot be written raises
`WriteFailed`.
"""

from fairtape.journal.audit import AuditReport, Comparison, Difference, Extent, Problem, compare, verify
from fairtape.journal.crash_recovery import TornTail
from fairtape.journal.follow import JournalFollower
from fairtape.journal.format import Damaged, Tip
from fairtape.journal.notifications import NotificationReceiver, NotificationSender
from fairtape.journal.reader import Cursor, FormationChanged, History, JournalEntry, JournalMessage, JournalReader
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
    "NotificationReceiver",
    "NotificationSender",
    "Problem",
    "Summary",
    "SyncPolicy",
    "Tip",
    "TornTail",
    "WriteFailed",
    "compare",
    "verify",
]

"""A writer to be killed: appends endlessly, and prints after each entry the sequence number that is acknowledged.

With the argument `cuts` it sometimes truncates the journal and appends the same entries again; it prints that before.
"""

import sys

from fairtape.core.effects import Ordered
from fairtape.core.entries import Entry as Content
from fairtape.core.entries import position_of
from fairtape.journal import JournalWriter, SyncPolicy
from unit.journal import journal_values as values

TRUNCATE_EVERY = 20  # entries
TRUNCATE_BACK = 13  # entries


def main(directory: str, policy: str, cuts: str) -> None:
    """Continue the journal where it ended."""
    options = {"stripe": values.STRIPE, "site": values.SITE, "segment_size_max": 2 << 10}
    writer = JournalWriter.open(directory, sync=SyncPolicy(policy), **options)
    written, unreleased = [], []
    for entry in values.stream_with_formations(8):
        tip = writer.tip
        if tip is None or position_of(entry) > tip.position:
            values.append_entry(writer, entry)
            writer.wake(values.instant_of(entry))
            report(entry.sequence)
        written.append(entry)
        if isinstance(entry, Ordered) and (tip is None or entry.sequence >= tip.released):
            unreleased.append(entry)
        if len(unreleased) > 2:
            values.mark(writer, unreleased.pop(0))
        if cuts == "cuts" and len(written) % TRUNCATE_EVERY == 0:
            unreleased = truncate_and_continue(writer, written)


def truncate_and_continue(writer: JournalWriter, written: list[Content]) -> list[Ordered]:
    """Truncate the last entries and append them again; the unreleased entries."""
    kept = values.messages_of(written[:-TRUNCATE_BACK])[-1]
    report(kept.sequence)
    writer.truncate_after(kept.token)
    for entry in written[written.index(kept) + 1 :]:
        values.append_entry(writer, entry)
        report(entry.sequence)
    assert writer.tip is not None
    released = writer.tip.released
    return [ordered for ordered in values.messages_of(written[-3 * TRUNCATE_BACK :]) if ordered.sequence >= released]


def report(sequence: int) -> None:
    """Acknowledge everything up to this sequence number."""
    sys.stdout.write(f"{sequence}\n")
    sys.stdout.flush()


main(*sys.argv[1:])

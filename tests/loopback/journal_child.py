"""A writer to be killed: appends without end and says after each entry up to where it may be asked.

Now and then, if it is told to, it takes out what it appended last and appends it again; it says so before.
"""

import sys

from fairtape.core.effects import Ordered
from fairtape.core.entries import Entry as Content
from fairtape.core.entries import position_of
from fairtape.journal import JournalWriter, SyncPolicy
from unit import journal_values as values

CUT_EVERY = 20  # entries
CUT_BACK = 13  # entries


def main(directory: str, policy: str, cuts: str) -> None:
    """Continue the journal where it ended."""
    options = {"stripe": values.STRIPE, "site": values.SITE, "segment_size_max": 2 << 10}
    writer = JournalWriter.open(directory, sync=SyncPolicy(policy), **options)
    written, unreleased = [], []
    for entry in values.storm(8):
        tip = writer.tip
        if tip is None or position_of(entry) > tip.position:
            values.enter(writer, entry)
            writer.wake(values.instant_of(entry))
            say(entry.sequence)
        written.append(entry)
        if isinstance(entry, Ordered) and (tip is None or entry.sequence >= tip.released):
            unreleased.append(entry)
        if len(unreleased) > 2:
            values.mark(writer, unreleased.pop(0))
        if cuts == "cuts" and len(written) % CUT_EVERY == 0:
            unreleased = cut_and_go_on(writer, written)


def cut_and_go_on(writer: JournalWriter, written: list[Content]) -> list[Ordered]:
    """What is then not released."""
    kept = values.messages_of(written[:-CUT_BACK])[-1]
    say(kept.sequence)
    writer.truncate_after(kept.token)
    for entry in written[written.index(kept) + 1 :]:
        values.enter(writer, entry)
        say(entry.sequence)
    assert writer.tip is not None
    released = writer.tip.released
    return [ordered for ordered in values.messages_of(written[-3 * CUT_BACK :]) if ordered.sequence >= released]


def say(sequence: int) -> None:
    """The journal holds everything before this number, and what stands at it."""
    sys.stdout.write(f"{sequence}\n")
    sys.stdout.flush()


main(*sys.argv[1:])

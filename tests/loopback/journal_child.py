"""A writer to be killed: appends without end and says after each entry up to where it may be asked."""

import sys

from fairtape.runtime.journal import Sync, Writer
from unit import journal_values as values


def main(directory: str, policy: str) -> None:
    """Continue the journal where it ended."""
    writer = Writer.open(directory, stripe=values.STRIPE, sync=Sync(policy), segment_size_max=8 << 10)
    tip = writer.tip
    unreleased = []
    for ordered in values.stream(8):
        if tip is not None and ordered.sequence + ordered.count <= tip.released:
            continue
        unreleased.append(ordered)
        if tip is None or ordered.sequence >= tip.sequence:
            writer.append(ordered, ordered.acknowledged_at)
            writer.wake(ordered.acknowledged_at)
            sys.stdout.write(f"{ordered.sequence + ordered.count - 1}\n")
            sys.stdout.flush()
        if len(unreleased) > 2:
            values.mark(writer, unreleased.pop(0))


main(*sys.argv[1:])

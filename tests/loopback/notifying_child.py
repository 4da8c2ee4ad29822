"""A site to be killed: continues a journal, and releases and announces one more entry for each line that it reads."""

import sys
from pathlib import Path

from fairtape.journal import NotificationSender
from unit.journal import journal_values as values


def main(directory: str, count: str) -> None:
    """Release the next entries of one and the same order."""
    with (
        values.open_writer(Path(directory)) as writer,
        NotificationSender(writer.directory, lambda: writer.tip) as sender,
    ):
        for ordered in values.first(int(count)):
            if writer.tip is not None and ordered.sequence < writer.tip.sequence:
                continue
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            while sys.stdin.readline() == "accept\n":
                sender.update_subscribers()
                sys.stdout.write("accepted\n")
                sys.stdout.flush()
            values.append_entry(writer, ordered)
            values.mark(writer, ordered)
            sender.notify()


main(*sys.argv[1:])

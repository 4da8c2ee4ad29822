"""A FIX store to be killed: counts without end, and prints its number after each sync."""

import sys
from pathlib import Path

from fairtape.gateway.storage.fix_store import FixFile


def main(path: str) -> None:
    """Continue where the file ended; each turn receives one message and sends two."""
    file = FixFile(Path(path))
    store = file.session("FLOOR", "ANN")
    while True:
        store.expect(store.next_in + 1)
        for _ in range(2):
            store.sent(b"message %d" % store.next_out)
        file.sync()
        sys.stdout.write(f"{store.next_out}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""One market, one order, one moment.

`fairtape` merges the messages of many venues into a single sequence, delivers that sequence to every site at the
same instant, and can prove afterwards that it did. ARCHITECTURE.md is the map; PROTOCOL.md is the law.
"""

__version__ = "0.1.0"

if not __debug__:
    raise SystemExit("fairtape refuses python -O: its assertions are part of its safety. Run it without -O.")

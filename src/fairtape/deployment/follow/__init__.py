"""Following the journals of a deployment on this machine.

- `site_failover`: which site to follow, and when to go on with another
- `floor_reader`: the trading floor, computed from a journal
"""

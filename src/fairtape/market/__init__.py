"""Market data as values: symbols, prices, trades, notices, stripe plans, and a generator of flow. Pure.

- `symbols`: names of symbols and venues
- `prices`: fixed-point integers in units of 1e-9
- `trades`: trades and their records of 64 bytes
- `notices`: cancels, corrections and the status of venues
- `stripes`: which symbols travel together, and the simple planner; `stripe_files`: plans as TOML
- `flow`: realistic trades from a seed
"""

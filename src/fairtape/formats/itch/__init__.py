"""Nasdaq TotalView-ITCH 5.0: messages as values, and whole files as tables. Pure.

- `messages`: every message type as a value; the others are derived from it
- `columns`: whole files as Arrow tables, and back; the trades in them
- `ticker_messages`: the unified ticker as ITCH messages, for the edge
"""

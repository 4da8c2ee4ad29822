"""What a gateway stores on disk.

- `accounts`: logins, password hashes, tokens and brokers, in SQLite or PostgreSQL
- `fix_store`: the numbers and sent messages of FIX sessions, in SQLite
- `order_log`: requests that were accepted and are not yet in the sequence
"""

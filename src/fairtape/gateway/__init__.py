"""Order entry: FIX sessions, order checks, the servers that traders connect to, and their storage."""

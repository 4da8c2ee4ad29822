"""The trading floor: orders, books, trading rules, ledger, and replicas that apply the sequence. Pure."""

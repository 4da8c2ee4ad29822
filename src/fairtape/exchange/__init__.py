"""The exchange: orders, books, trading rules, a ledger, and floors that apply the sequence. Pure.

- `orders`, `order_codec`: the messages of a floor, as values and as bytes
- `floor`: `Floor` applies the sequence to all markets; `Replica` is the floor of one site, rebuilt when tokens are lost
- `order_handling`: accounts, reservations, and trades from execution to commit
- `market`, `book`, `rules`: one market, its open orders, and the rules it may trade under
- `ledger`, `transfers`: balances, and the transfers that add up to them
- `outputs`: what a floor reports, equal at every replica
"""

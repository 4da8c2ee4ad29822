"""The exchange: orders, books, trading rules, a ledger, and floors that apply the sequence. Pure.

- `orders`: the messages of a floor, as values and as bytes
- `floor`: `Floor` applies the sequence to all markets, with accounts, reservations, and trades up to their commit;
  `Replica` is the floor of one site, rebuilt when tokens are lost
- `market`, `book`: one market, and its open orders
- `rules`: the rules that a market may trade under, as values; `matching`, `auctions`: the same as functions on a book
- `ledger`: balances, and the transfers that add up to them
- `outputs`: what a floor reports, equal at every replica
"""

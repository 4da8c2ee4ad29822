"""Trading rules: each as a value that opens a market, and as functions that apply it to a book.

- `values`: the rules as values, with their parameters and their rounding
- `continuous`: continuous matching by price and time, self-trade prevention
- `auctions`: the clearing price of call and batch auctions, allocation, and the sealed second-price auction
- `dutch`: the falling clock
"""

"""The pure half of a gateway: checks, pending requests, the state of orders, and events for traders.

- `gateway_core`: checks requests against the floor and its limits, numbers them, and applies the sequence
- `blotter`: the state of every order, and the latest events
- `limits`: limits of one account
- `events`: `OrderEvent`, the reports for traders, and `Answer`, the gateway's immediate answer to a request
"""

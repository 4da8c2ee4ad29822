"""The checks and the state of a gateway: pending requests, the blotter, events for traders. Pure."""

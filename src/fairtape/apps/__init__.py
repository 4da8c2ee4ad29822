"""What the order is for: the unified ticker, unified orders, the trading floor. Pure: `apply(delivery) -> outputs`."""

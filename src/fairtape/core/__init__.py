"""What every machine shares: the contract, effects, instants, timing, the state-table interpreter, injected chance."""

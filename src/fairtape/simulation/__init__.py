"""The same nodes in virtual time: world, network, clocks, faults, swarm, checkers, campaigns, scenarios, traces."""

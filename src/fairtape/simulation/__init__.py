"""The same nodes in virtual time: a world, its network, clocks and faults, and checkers for every guarantee.

`swarm` draws a configuration from a seed, `trial` runs it, `campaign` runs many. `scenario` plays small worlds that are
written down as text, `tracing` draws what happened. Nothing here is random but by a seed, and nothing reads a clock.
"""

"""Sockets and time: UDP, transports, the driver, the runtime of a node, the clock, injected link faults."""

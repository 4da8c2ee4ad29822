"""Sockets and time: runs the pure machines on real UDP sockets and the real clock.

- `clock`: UTC in nanoseconds with an error bound; never goes back
- `udp`: sockets that send and receive batches of datagrams in one system call
- `transports`: IP multicast, or a mesh of unicast
- `loopback`: free ports and addresses for a ring on one machine
- `fault_injection`: loss, delay and duplication on the receive path of a node
- `node_runtime`: one machine with its sockets, journal, store and callbacks
- `poll`: waiting for sockets, to the microsecond
- `driver`: the event loop of one process
"""

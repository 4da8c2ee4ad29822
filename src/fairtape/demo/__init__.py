"""The demonstration: nine sites and six trading floors on one machine, over real sockets with injected faults.

Every node is a process. Link delays follow the real distances between the cities, and losses are injected.

- `world`: cities, floors, regions, and the plan that all processes share
- `run`: starts the processes, kills a receiver, closes the floors
- `receivers`, `reformers`, `floors`, `retransmitters`, `customers`: the child processes
- `tally`, `view`: state reported by the children, and the live view of it
- `findings`, `audit`, `delays`: the report, computed from the journals
- `priority`: scheduling priority of processes that are not receivers
- `trading_floor`: `fairtape demo --floor`, a simulated session of the exchange
"""

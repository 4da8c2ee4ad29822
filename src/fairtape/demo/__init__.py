"""The demonstration: a deployment of nine sites on one machine, with trading floors, customers and a scripted fault.

Link delays follow the real distances between the cities, and losses are injected.

- `world`: cities, floors, regions, and the deployment that is made of them
- `run`: starts the deployment and the processes beside it, kills a site, closes the floors
- `floors`, `customers`: the processes beside the deployment
- `tally`, `view`: the state of the deployment and of the processes beside it, and the live view of it
- `findings`: the results, computed from the journals
- `trading_floor`: `fairtape demo --floor`, a simulated session of the exchange
"""

"""Benchmarks of `fairtape bench`. Each prints ratios to a baseline that is measured in the same run.

`ring`                  `bench ring`: the rate on time, cost, release spread and latency, beside its baselines
`deployed_ring`         a deployment under load: the search for the highest rate on time, flood, spread, idle
`ring_processes`        the processes of a ring without the rest of a deployment: all sources, and each site
`ring_baselines`        what the machine allows: bare UDP, programs that sleep, seals and hashes alone, the disk
`journal_trim`          removes old segments while a ring is flooded
`sources`               `bench sources`: the cost of a message when many sources share a process
`failover`              `bench failover`: silence after a site is killed
`edge`                  `bench edge`: WebSocket customers, the Python client, ITCH
`websocket_customers`   one run of a WebSocket server, and its baseline
`floor`                 `bench floor`: the engine beside other Python engines, FIX beside simplefix, settlement
`journal`               `bench journal`: a journal of many segments beside one of ten, and a ring with each
`ordinary`              `bench ordinary`: the commands of a new user with their defaults, beside a busy program
`pipeline`              `bench pipeline` and `bench memory`: journals, Spark and Delta tables
`disturbance`           the share of other programs, and which rounds count
`results`               types of results, and resource usage
"""

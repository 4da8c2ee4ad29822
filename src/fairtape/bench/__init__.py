"""Benchmarks of `fairtape bench`. Each prints ratios to a baseline that is measured in the same run.

`ring`                  `bench ring`: throughput, release error and latency, beside bare UDP and sleeping programs
`ring_processes`        the processes of a ring: all sources, and each site
`failover`              `bench failover`: silence after a site is killed
`edge`                  `bench edge`: WebSocket customers, the Python client, ITCH
`websocket_customers`   one run of a WebSocket server, and its baseline
`floor`                 `bench floor`: the engine beside other Python engines, FIX beside simplefix, settlement
`journal`               `bench journal`: a journal of many segments beside one of ten, and a ring with each
`ordinary`              `bench ordinary`: the commands of a new user with their defaults, beside a busy program
`pipeline`              `bench pipeline` and `bench memory`: journals, Spark and Delta tables
`results`               types of results, and resource usage
"""

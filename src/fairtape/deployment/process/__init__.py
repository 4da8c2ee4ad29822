"""The processes of a deployment, and their supervision.

- `node`: a site, a reformation server, or a load source
- `edge`: the publisher of a site, and its retransmit server
- `gateway`: order entry of a source
- `ledger_projection`: the ledger tables of a gateway
- `arbiter`: trade reports of a site
- `resources`: what a process opens: clock, sockets, journal, store
- `site_traces`: trace files of a site
- `fork_server`: forks commands from a process that has imported their modules
- `supervisor`: starts and stops processes by name
- `local_cluster`: all processes of a deployment on this machine, and the restart of those that end
- `children`: child processes that are connected by pipes
- `idle_guard`: keeps processors out of idle states
"""

"""Deployments: rings of real processes on one machine or several.

Layers, the highest first; each imports only from those below it.

- `operations`: new deployments, checks of a machine, drills, commands of the operator
- `process`: the processes: nodes, edge, gateway, arbiter, and their supervision
- `publish`: publishing into a ring as one of its sources
- `follow`: reading the journals of a deployment, with failover between sites
- `config`: the deployment file and keys: plain values
- `status_files`: the run folder: status files, controls of drills, the log
- `status`: what processes report about themselves, and its JSON
- `lock_file`: the lock of a deployment folder
"""

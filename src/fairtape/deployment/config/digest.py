"""The digest of a deployment file: two nodes that have read different files have different ones.

Decision 64, One deployment file. The digest covers what all nodes must agree on: the nodes and their addresses, loops
with their timing, rules and groups. It leaves out what may differ between machines: paths, access to the store, clocks,
scheduling and how journals are synced.
"""

import json
from dataclasses import asdict
from hashlib import blake2b
from typing import Final

from fairtape.deployment.config.description import Deployment

_SIZE: Final = 7  # bytes, so that a digest is a number of the wire


def deployment_digest(deployment: Deployment) -> int:
    """Names what the nodes of a deployment must agree on. Never 0."""
    nodes = [(node.kind.value, node.name, node.number, node.host, node.port) for node in deployment.nodes.values()]
    agreed = {
        "stripe": deployment.stripe,
        "datagram_max": deployment.datagram_max,
        "nodes": sorted(nodes),
        "groups": None if deployment.groups is None else asdict(deployment.groups),
        "topology": asdict(deployment.topology),
        "commit_passes": deployment.floor.commit_passes,
        "operators": sorted(deployment.floor.operators or ()),
        "arbiters": sorted(deployment.floor.arbiters.items()),
    }
    text = json.dumps(agreed, sort_keys=True, default=str)
    return int.from_bytes(blake2b(text.encode(), digest_size=_SIZE).digest()) or 1

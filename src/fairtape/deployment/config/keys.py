"""The keys of a deployment: one file for each node, readable only by its owner, with no more keys than the node needs.

A site holds the keys of all nodes; a reformation server and the operator those of the sites, the servers and the
operator; a source only its own.
"""

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fairtape.core.errors import UserError
from fairtape.deployment.config.description import Deployment, Node, NodeKind
from fairtape.wire.frames import NodeId
from fairtape.wire.seals import KEY_SIZE, Keys

KEYS: Final = "keys"


def write_keys(deployment: Deployment) -> None:
    """Generate keys for all nodes."""
    members = [node.number for node in deployment.nodes.values() if node.kind is not NodeKind.SOURCE]
    sources = [node.number for node in deployment.of_kind(NodeKind.SOURCE)]
    keys = Keys.from_secret(secrets.token_bytes(KEY_SIZE), members, sources)
    (deployment.folder / KEYS).mkdir(mode=0o700, exist_ok=True)
    for node in deployment.nodes.values():
        _write_private(_key_path(deployment.folder, node), _held_by(node, keys))


def _held_by(node: Node, keys: Keys) -> dict[str, object]:
    match node.kind:
        case NodeKind.SITE:
            held = keys
        case NodeKind.SOURCE:
            held = keys.for_source(node.number)
        case _:
            held = Keys(keys.sites, {})
    return {"node": node.number, "sites": _hex(held.sites), "sources": _hex(held.sources)}


def _hex(keys: Mapping[NodeId, bytes]) -> dict[str, str]:
    return {str(node): key.hex() for node, key in keys.items()}


def _write_private(path: Path, content: object) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(content, file, indent=2)
        file.write("\n")


def _key_path(folder: Path, node: Node) -> Path:
    return folder / KEYS / f"{node.name}.json"


def keys_of(deployment: Deployment, node: Node) -> Keys:
    """Read the keys of one node. Raises `UserError`."""
    path = _key_path(deployment.folder, node)
    try:
        held = json.loads(path.read_text())
        if held["node"] != node.number:
            raise UserError(f"{path} holds the keys of node {held['node']}; {node.name} is node {node.number}")
        sites, sources = (
            {int(number): bytes.fromhex(key) for number, key in held[kind].items()} for kind in ("sites", "sources")
        )
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); every node needs its own key file") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path} holds no keys; take the file that `fairtape init` wrote") from None
    return Keys(sites, sources)

"""Notices speak of node numbers, because machines know no others; people get names."""

import re
from typing import Final

from fairtape.deployment.config.description import Deployment

_NAMED: Final = re.compile(r"\b(site|server|reports|suspects) (\d+)\b")
_MOVING: Final = re.compile(r"\b(\d+)(?=(?:, \d+)* (?:joins|leaves|is gone)\b)")
_LISTED: Final = re.compile(r"\((\d+(?:, \d+)*),?\)")


def with_names(text: str, deployment: Deployment) -> str:
    """The same notice, with the names of the deployment's file."""
    text = _NAMED.sub(lambda found: f"{found[1]} {deployment.name_of(int(found[2]))}", text)
    text = _MOVING.sub(lambda found: deployment.name_of(int(found[1])), text)
    return _LISTED.sub(lambda found: " ".join(deployment.name_of(int(n)) for n in found[1].split(", ")), text)

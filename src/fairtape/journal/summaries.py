"""Segments at a glance: what `fairtape journal ls` shows, found by hops over heads."""

from dataclasses import dataclass
from pathlib import Path

from fairtape.core.instants import Instant
from fairtape.journal.segments import Point, Segment, heads_from
from fairtape.wire.frames import NodeId


@dataclass(frozen=True, slots=True)
class Summary:
    """One segment at a glance. The last of each pair is that of the last whole token."""

    path: Path
    number: int
    stripe: int
    site: NodeId
    size: int  # bytes
    entries: int
    first_sequence: int
    last_sequence: int
    first_token: int
    last_token: int
    first_at: Instant
    last_at: Instant
    changes: int  # of formation
    breaks: int  # of the changes: those after which numbers may have been used otherwise


def summarize(path: Path) -> Summary:
    """Hop over one segment."""
    with Segment(path) as segment:
        header = segment.header
        heads = [head for _, head in heads_from(segment, Point.at_start(segment))]
        tokens = [head for head in heads if not head.turns]
        return Summary(
            path,
            header.number,
            header.stripe,
            header.site,
            segment.size,
            len(tokens),
            header.tip.sequence,
            tokens[-1].end - 1 if tokens else header.tip.sequence - 1,
            tokens[0].token if tokens else 0,
            tokens[-1].token if tokens else 0,
            tokens[0].instant if tokens else 0,
            tokens[-1].instant if tokens else 0,
            len(heads) - len(tokens),
            sum(head.broken for head in heads),
        )

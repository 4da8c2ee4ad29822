"""The encoding of a formation, in the formation log, in Install frames and in journals.

Every formation has exactly one encoding, so all sites write the same bytes. A formation with a stripe plan has version
2, and the plan follows its head; one without a plan has version 1.
"""

import struct
from typing import Final

from fairtape.core.timing import BadTiming, Timing
from fairtape.ring.membership.formation import MEMBERS_MAX, BadFormation, Formation
from fairtape.wire.frames import Malformed

VERSION: Final = 1
PLANNED: Final = 2

_LAYOUT: Final = struct.Struct(">BBHIHHHHIQQQHHQIQQQ")
_PLAN: Final = struct.Struct(">I")
_TIMED: Final = 1
_MERGED: Final = 2
_BROKEN: Final = 4
_ROLL: Final = 8


def encode_formation(formation: Formation) -> bytes:
    timing = formation.timing
    flags = (
        _TIMED * formation.timed | _MERGED * timing.merged | _BROKEN * formation.broken | _ROLL * bool(formation.roll)
    )
    version = PLANNED if formation.plan else VERSION
    head = _LAYOUT.pack(
        version, flags, formation.loop, formation.number, formation.resilience, formation.resilience_before,
        formation.stride, formation.request_sets, formation.keeper, formation.first_token, formation.first_sequence,
        formation.starts_at, len(formation.members), len(formation.leaving), timing.retry_period, timing.retries_max,
        timing.token_period, timing.commit_delay, timing.clock_error_max,
    )  # fmt: skip
    plan = _PLAN.pack(formation.plan) if formation.plan else b""
    listed = formation.members + formation.leaving + formation.roll
    return head + plan + b"".join(number.to_bytes(4) for number in listed)


def decode_formation(layout: bytes) -> Formation:
    """Decode a formation. Raises `Malformed` for anything that `encode_formation` does not produce."""
    try:
        formation = _decode(layout)
    except (struct.error, BadFormation, BadTiming) as error:
        raise Malformed(str(error)) from None
    if encode_formation(formation) != layout:
        raise Malformed("not the canonical encoding of a formation")
    return formation


def _decode(layout: bytes) -> Formation:
    (
        version, flags, loop, number, resilience, before, stride, request_sets, keeper, first_token, first_sequence,
        starts_at, count, leaving, retry_period, retries_max, token_period, commit_delay, clock_error_max,
    ) = _LAYOUT.unpack_from(layout)  # fmt: skip
    listed = leaving + (2 * count if flags & _ROLL else count)
    begin = _LAYOUT.size + (_PLAN.size if version == PLANNED else 0)
    if version not in (VERSION, PLANNED) or count > MEMBERS_MAX or len(layout) != begin + 4 * listed:
        raise Malformed("unknown version or wrong length of a formation")
    numbers = tuple(number for (number,) in struct.iter_unpack(">I", layout[begin:]))
    return Formation(
        number=number,
        members=numbers[:count],
        leaving=numbers[count : count + leaving],
        roll=numbers[count + leaving :],
        timing=Timing(
            retry_period=retry_period,
            retries_max=retries_max,
            token_period=token_period,
            commit_delay=commit_delay,
            merged=bool(flags & _MERGED),
            clock_error_max=clock_error_max,
        ),
        starts_at=starts_at,
        first_token=first_token,
        first_sequence=first_sequence,
        resilience=resilience,
        resilience_before=before,
        timed=bool(flags & _TIMED),
        loop=loop,
        stride=stride,
        request_sets=request_sets,
        keeper=keeper,
        plan=_PLAN.unpack_from(layout, _LAYOUT.size)[0] if version == PLANNED else 0,
        broken=bool(flags & _BROKEN),
    )

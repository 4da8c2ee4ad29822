"""The encoding of a formation, in the formation log, in Install frames and in journals.

Every formation has exactly one encoding, so all sites write the same bytes. Version 3 is a head, the lists of members
and ascending (type, length, value) fields, so that what is added later needs no new version; a field that this release
does not know is refused. Version 1 has no fields. Version 2 is version 1 with a stripe plan after the head. Formations
of both are read and keep their bytes.
"""

import struct
from hashlib import blake2b
from typing import Final

from fairtape.core.timing import BadTiming, Timing
from fairtape.ring.membership.formation import LAYOUT_VERSION, MEMBERS_MAX, BadFormation, Formation
from fairtape.wire.frames import Malformed

WITHOUT_PLAN: Final = 1
WITH_PLAN: Final = 2

_LAYOUT: Final = struct.Struct(">BBHIHHHHIQQQHHQIQQQ")
_PLAN: Final = struct.Struct(">I")
_FIELD: Final = struct.Struct(">BH")  # type and length of a field
_PLAN_FIELD: Final = 1
_JOURNALS_FIELD: Final = 2
_STORES_FIELD: Final = 3
_FIELDS: Final = (_PLAN_FIELD, _JOURNALS_FIELD, _STORES_FIELD)
_TIMED: Final = 1
_MERGED: Final = 2
_BROKEN: Final = 4
_ROLL: Final = 8
_NUMBER_SIZE: Final = 4
_DIGEST_SIZE: Final = 7  # bytes, so that a digest is a number of the wire


def encode_formation(formation: Formation) -> bytes:
    timing = formation.timing
    flags = (
        _TIMED * formation.timed | _MERGED * timing.merged | _BROKEN * formation.broken | _ROLL * bool(formation.roll)
    )
    version = formation.layout_version
    head = _LAYOUT.pack(
        version, flags, formation.loop, formation.number, formation.resilience, formation.resilience_before,
        formation.stride, formation.request_sets, formation.keeper, formation.first_token, formation.first_sequence,
        formation.starts_at, len(formation.members), len(formation.leaving), timing.retry_period, timing.retries_max,
        timing.token_period, timing.commit_delay, timing.clock_error_max,
    )  # fmt: skip
    plan = _PLAN.pack(formation.plan) if version == WITH_PLAN else b""
    fields = _encode_fields(formation) if version == LAYOUT_VERSION else b""
    return head + plan + _encode_numbers(formation.members + formation.leaving + formation.roll) + fields


def _encode_fields(formation: Formation) -> bytes:
    fields = (
        (_PLAN_FIELD, (formation.plan,) * bool(formation.plan)),
        (_JOURNALS_FIELD, formation.journals),
        (_STORES_FIELD, formation.stores),
    )
    return b"".join(
        _FIELD.pack(kind, _NUMBER_SIZE * len(numbers)) + _encode_numbers(numbers) for kind, numbers in fields if numbers
    )


def proposal_digest(formation: Formation) -> int:
    """Names one proposal: two leaders may propose different formations with one number. Never 0."""
    return int.from_bytes(blake2b(encode_formation(formation), digest_size=_DIGEST_SIZE).digest()) or 1


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
    if version not in (WITHOUT_PLAN, WITH_PLAN, LAYOUT_VERSION) or count > MEMBERS_MAX:
        raise Malformed("unknown version or too many members of a formation")
    begin = _LAYOUT.size + (_PLAN.size if version == WITH_PLAN else 0)
    end = begin + _NUMBER_SIZE * (leaving + (2 * count if flags & _ROLL else count))
    if len(layout) < end or (version != LAYOUT_VERSION and len(layout) > end):
        raise Malformed("wrong length of a formation")
    numbers = _decode_numbers(layout[begin:end])
    fields = _decode_fields(layout[end:])
    plan = _PLAN.unpack_from(layout, _LAYOUT.size) if version == WITH_PLAN else fields.get(_PLAN_FIELD, (0,))
    return Formation(
        layout_version=version,
        number=number,
        members=numbers[:count],
        leaving=numbers[count : count + leaving],
        roll=numbers[count + leaving :],
        journals=fields.get(_JOURNALS_FIELD, ()),
        stores=fields.get(_STORES_FIELD, ()),
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
        plan=plan[0],
        broken=bool(flags & _BROKEN),
    )


def _decode_fields(encoded: bytes) -> dict[int, tuple[int, ...]]:
    """The numbers of each field. That they ascend and are canonical follows from the comparison of the encodings."""
    fields: dict[int, tuple[int, ...]] = {}
    at = 0
    while at < len(encoded):
        kind, size = _FIELD.unpack_from(encoded, at)
        value = encoded[at + _FIELD.size : at + _FIELD.size + size]
        if kind not in _FIELDS or not value or len(value) != size or size % _NUMBER_SIZE:
            raise Malformed(f"field {kind} of a formation is unknown, or has a wrong length")
        fields[kind] = _decode_numbers(value)
        at += _FIELD.size + size
    return fields


def _encode_numbers(numbers: tuple[int, ...]) -> bytes:
    return b"".join(number.to_bytes(_NUMBER_SIZE) for number in numbers)


def _decode_numbers(encoded: bytes) -> tuple[int, ...]:
    return tuple(number for (number,) in struct.iter_unpack(">I", encoded))

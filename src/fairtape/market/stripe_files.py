"""A stripe plan as TOML, with one normal form.

`to_toml` writes the normal form; its bytes are the canonical bytes of a plan, and `digest` is their SHA-256.
`from_toml` reads any TOML file of a plan, and refuses unknown fields.
"""

from collections.abc import Iterable
from hashlib import sha256
from typing import Final

import numpy as np

from fairtape.core.errors import UserError
from fairtape.core.toml_table import TomlTable
from fairtape.market.stripes import DAY, BadPlan, CoreStripe, EdgeStripe, Endpoint, StripePlan

TEXT_MAX: Final = 4 << 20  # characters
_SHOWN_MAX: Final = 60
_LINE_MAX: Final = 100  # characters of symbols in a line


def canonical(plan: StripePlan) -> bytes:
    """The canonical bytes of a plan: equal plans have equal bytes."""
    return to_toml(plan).encode()


def digest(plan: StripePlan) -> bytes:
    """The SHA-256 of the canonical bytes."""
    return sha256(canonical(plan)).digest()


def to_toml(plan: StripePlan) -> str:
    """The normal form."""
    lines = [f"version = {plan.version}", f"day = {np.datetime64(plan.midnight_at // DAY, 'D')}"]
    for core in plan.core:
        lines += ["", "[[core]]", f"number = {core.number}", f'at = "{core.at}"']
        lines.append(f"bits_per_s_max = {core.bits_per_s_max}")
    for edge in plan.edge:
        lines += ["", "[[edge]]", f"number = {edge.number}", f"core = {edge.core}"]
        lines.append(f"bits_per_s_max = {edge.bits_per_s_max}")
        if edge.opaque:
            lines.append("opaque = true")
        lines += _list("symbols", edge.symbols) + _list("venues", edge.venues)
        lines.append("[edge.feeds]")
        lines += [f'{name} = "{endpoint}"' for name, endpoint in edge.feeds]
    return "\n".join(lines) + "\n"


def _list(name: str, values: Iterable[str]) -> list[str]:
    """A list of names, wrapped into lines; nothing where the list is empty."""
    lines, line = [], ""
    for value in values:
        quoted = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '", '
        if line and len(line) + len(quoted) > _LINE_MAX:
            lines.append(f"    {line.rstrip()}")
            line = ""
        line += quoted
    return [f"{name} = [", *lines, f"    {line.rstrip()}", "]"] if line else []


def from_toml(text: str) -> StripePlan:
    """The plan in a TOML text. Raises `BadPlan` for anything else."""
    if len(text) > TEXT_MAX:
        raise BadPlan(f"the plan has {len(text)} characters; it must have at most {TEXT_MAX}")
    try:
        return _read_plan(TomlTable.parse("the plan", text.encode()))
    except UserError as error:
        raise BadPlan(str(error)) from None


def _read_plan(fields: TomlTable) -> StripePlan:
    version, day = fields.take("version", int), fields.take("day", object)
    core = tuple(_read_core(each) for each in fields.tables("core"))
    edge = tuple(_read_edge(each) for each in fields.tables("edge"))
    fields.finish()
    return StripePlan(version=version, midnight_at=_midnight(day), core=core, edge=edge)


def _midnight(day: object) -> int:
    """TOML has a type for dates; numpy counts its days, so this pure package needs no calendar."""
    if type(day).__name__ != "date":
        raise BadPlan(f"day is {str(day)[:_SHOWN_MAX]!r}; expected a date without a time, such as 2026-11-16")
    return int(np.datetime64(str(day), "D").astype(np.int64)) * DAY


def _read_core(fields: TomlTable) -> CoreStripe:
    number = fields.take("number", int)
    at = Endpoint.parse(fields.take("at", str), f"core stripe {number}: at")
    stripe = CoreStripe(number=number, at=at, bits_per_s_max=fields.take("bits_per_s_max", int))
    fields.finish()
    return stripe


def _read_edge(fields: TomlTable) -> EdgeStripe:
    number = fields.take("number", int)
    feeds: dict[str, str] = fields.take("feeds", dict)
    for name, text in feeds.items():
        if not isinstance(text, str):
            raise BadPlan(f"feed {name} of edge stripe {number} is {text!r}; expected a text such as 239.195.7.1:31001")
    stripe = EdgeStripe(
        number=number,
        core=fields.take("core", int),
        bits_per_s_max=fields.take("bits_per_s_max", int),
        feeds=tuple((n, Endpoint.parse(text, f"feed {n} of edge stripe {number}")) for n, text in feeds.items()),
        symbols=fields.names("symbols", optional=True),
        venues=fields.names("venues", optional=True),
        opaque=fields.take("opaque", bool, default=False),
    )
    fields.finish()
    return stripe

"""The state tables of the membership that `PROTOCOL.md` prints are the tables that run."""

import re
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import pytest

from fairtape.core.state_table import Edge, StateTable
from fairtape.nodes.membership_tables import AGREEMENT, PARTICIPATION, Agreement, Participation, always
from tidy.rules import ROOT

PAGE = ROOT / "PROTOCOL.md"
HEADINGS = "| state | on | if | to | * |\n| --- | --- | --- | --- | --- |\n"


def words(name: str) -> str:
    return name.lower().replace("_", " ")


def numbered(state: IntEnum) -> str:
    return f"{state} {words(state.name)}"


def condition(edge: Edge[Any], edges: tuple[Edge[Any], ...]) -> str:
    """The guard; an arrow without one is taken otherwise, if there are others before it."""
    if edge.guard is not always:
        return words(edge.guard.__name__)
    alternatives = [each for each in edges if (each.at, each.on) == (edge.at, edge.on)]
    return "otherwise" if alternatives[0] is not edge else ""


def grouped(edges: tuple[Edge[Any], ...]) -> list[list[Edge[Any]]]:
    """Arrows of one row: they differ only in the state that they leave, or each leads back to its state."""
    groups: dict[tuple[object, ...], list[Edge[Any]]] = {}
    for edge in edges:
        groups.setdefault((edge.on, condition(edge, edges), edge.actions, edge.to), []).append(edge)
    merged: dict[tuple[object, ...], list[Edge[Any]]] = {}
    for (*alike, to), group in groups.items():
        leads_back = [edge.at for edge in group] == [to]
        merged.setdefault((*alike, None if leads_back else to), []).extend(group)
    return list(merged.values())


def rows(edges: tuple[Edge[Any], ...]) -> Iterator[str]:
    for group in grouped(edges):
        first = group[0]
        at = numbered(first.at) if len(group) == 1 else ", ".join(str(int(edge.at)) for edge in group)
        to = numbered(first.to) if len({edge.to for edge in group}) == 1 else "the same"
        actions = ", ".join((action.__doc__ or "").removeprefix("* ").removesuffix(".") for action in first.actions)
        cells = (at, words(first.on.name) if first.on else "–", condition(first, edges), to, actions)
        yield "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def printed(table: StateTable[Any]) -> str:
    """The table as a page shows it."""
    return HEADINGS + "\n".join(rows(table.edges)) + "\n"


@pytest.mark.parametrize("table", [PARTICIPATION, AGREEMENT], ids=["participation", "agreement"])
def test_the_page_prints_the_table_that_runs(table: StateTable[Any]) -> None:
    assert printed(table) in PAGE.read_text(), printed(table)


@pytest.mark.parametrize("states", [Participation, Agreement])
def test_the_page_explains_every_state(states: type[IntEnum]) -> None:
    explained = re.findall(r"^\| (\d+ [a-z ]+) \| [^|]+ \|$", PAGE.read_text(), re.MULTILINE)
    assert [each for each in explained if each in map(numbered, states)] == [numbered(state) for state in states]


def test_the_printed_table_shows_every_arrow() -> None:
    for table in (PARTICIPATION, AGREEMENT):
        arrows = 0
        for row in rows(table.edges):
            arrows += len(row.split("|")[1].split(", "))
        assert arrows == len(table.edges)

"""The bytes on the wire and in files, made from fixed inputs, are compared with golden files: one file per kind.

A golden file has one line per value: its name, then its text, its bytes in hexadecimal, or their SHA-256.
`pytest tests/golden --rewrite` writes the files from the present code. A change in them means that nodes, journals or
files of the release before can no longer be read, so it needs a new version of the format.
"""

from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from fairtape.exchange.orders import FLOOR_KINDS
from fairtape.wire.frames import Kind
from golden import database_values, edge_values, file_values, format_values, market_values, ring_values

HERE = Path(__file__).parent
HEX_BYTES_MAX = 256  # of a value that is shown whole

Values = Iterator[tuple[str, bytes | str]]
KINDS: dict[str, Callable[[Path], Values]] = {
    "frames": lambda _: ring_values.frames(),
    "membership": lambda _: ring_values.membership(),
    "entries": lambda _: ring_values.entries(),
    "formations": lambda _: ring_values.formations(),
    "journal": file_values.journal,
    "notifications": lambda _: file_values.notifications(),
    "order_log": file_values.order_log,
    "traces": file_values.traces,
    "deployment": file_values.deployment,
    "fix_store": database_values.fix_store,
    "formation_store": database_values.formation_store,
    "accounts": database_values.accounts,
    "ledger": database_values.ledger,
    "stripe_plan": lambda _: edge_values.stripe_plan(),
    "edge_files": edge_values.edge_files,
    "edge_packets": lambda _: edge_values.edge_packets(),
    "orders": lambda _: market_values.orders(),
    "trades": lambda _: market_values.trades(),
    "native": lambda _: market_values.native(),
    "client": lambda _: market_values.client(),
    "formats": lambda _: format_values.formats(),
}


def shown(value: bytes | str) -> str:
    if isinstance(value, str):
        return f"text {value.encode('unicode_escape').decode()}"
    if len(value) > HEX_BYTES_MAX:
        return f"sha256 {sha256(value).hexdigest()} of {len(value)} bytes"
    return f"hex {value.hex() or 'empty'}"


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_equal_those_of_the_golden_file(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    values = list(KINDS[kind](tmp_path))
    names = [name for name, _ in values]
    assert len(set(names)) == len(names), "two values have the same name"
    text = "".join(f"{name}: {shown(value)}\n" for name, value in values)
    path = HERE / f"{kind}.txt"
    if request.config.getoption("--rewrite"):
        path.write_text(text)
    assert text.splitlines() == path.read_text().splitlines()


def test_every_golden_file_belongs_to_a_kind() -> None:
    assert {path.stem for path in HERE.glob("*.txt")} == set(KINDS)


def test_every_kind_of_message_has_a_golden_value() -> None:
    datagrams = [value for name, value in (*ring_values.frames(), *ring_values.membership()) if name.isupper()]
    assert {value[2] for value in datagrams} == set(Kind)
    assert {value[0] for _, value in market_values.orders()} == FLOOR_KINDS

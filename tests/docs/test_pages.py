"""Pages that are checked: their examples run, and every setting of a deployment is listed."""

import re
from pathlib import Path
from typing import Any

import pytest

from tidy.rules import RETIRED_ALLOWED, ROOT
from unit.tape.tape_values import order, write

DOCS = ROOT / "docs"
DRIVER_PAGE = DOCS / "how-to" / "drive-a-machine.md"
CLIENT_PAGE = DOCS / "reference" / "client.md"


def examples_of(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def test_the_example_drives_three_sites_and_a_source() -> None:
    """The example ends with its own assertions: one order, one release instant, every message."""
    (example,) = examples_of(DRIVER_PAGE)
    exec(compile(example, str(DRIVER_PAGE), "exec"), {})  # noqa: S102 - it is our own page


def test_every_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples of the client run one after the other, beside a journal."""
    write(tmp_path / "journal", order(40))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    examples = examples_of(CLIENT_PAGE)
    assert len(examples) > 4
    for example in examples:
        exec(compile(example, str(CLIENT_PAGE), "exec"), names)  # noqa: S102 - it is our own page


def test_every_field_of_the_deployment_file_is_in_its_page() -> None:
    path = "src/fairtape/deployment/config/description.py"
    readers = r"(?:\.(?:take|number|choice|names|table|tables)|_address)\((?:\w+, )?\"([a-z_]+)\""
    fields = {*re.findall(readers, (ROOT / path).read_text())} - RETIRED_ALLOWED[path]
    page = (DOCS / "reference" / "deployment.md").read_text()
    assert len(fields) > 40
    assert not [name for name in fields if not re.search(rf"\b{name}\b", page)]

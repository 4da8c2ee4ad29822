"""The page about the client is true: its examples run, one after the other, beside a journal."""

import re
from pathlib import Path
from typing import Any

import pytest

from tidy.rules import ROOT
from unit.tape.tape_values import order, write

PAGE = ROOT / "docs" / "reference" / "client.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_every_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "journal", order(40))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    assert len(EXAMPLES) > 4
    for example in EXAMPLES:
        exec(compile(example, str(PAGE), "exec"), names)  # noqa: S102 - it is our own page

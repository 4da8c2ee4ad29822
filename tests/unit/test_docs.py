"""The page about driving a machine is true: its example runs."""

import re

from tidy.rules import ROOT

PAGE = ROOT / "docs" / "how-to" / "drive-a-machine.md"


def test_the_example_drives_three_sites_and_a_source() -> None:
    """The example ends with its own assertions: one order, one release instant, every message."""
    (example,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    exec(compile(example, str(PAGE), "exec"), {})  # noqa: S102 - it is our own page

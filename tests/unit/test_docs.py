"""Pages that are checked: the example that drives a machine runs, and every setting of a deployment is listed."""

import re

from tidy.rules import RETIRED_ALLOWED, ROOT

PAGE = ROOT / "docs" / "how-to" / "drive-a-machine.md"


def test_the_example_drives_three_sites_and_a_source() -> None:
    """The example ends with its own assertions: one order, one release instant, every message."""
    (example,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    exec(compile(example, str(PAGE), "exec"), {})  # noqa: S102 - it is our own page


def test_every_field_of_the_deployment_file_is_in_its_page() -> None:
    path = "src/fairtape/deployment/config/description.py"
    readers = r"(?:\.(?:take|number|choice|names|table|tables)|_address)\((?:\w+, )?\"([a-z_]+)\""
    fields = {*re.findall(readers, (ROOT / path).read_text())} - RETIRED_ALLOWED[path]
    page = (ROOT / "docs" / "reference" / "deployment.md").read_text()
    assert len(fields) > 40
    assert not [name for name in fields if not re.search(rf"\b{name}\b", page)]

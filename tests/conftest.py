"""Equal runs everywhere: property tests draw the same examples each time and never fail for being slow.

With FAIRTAPE_DRILLS=all they draw twenty times as many. With --rewrite, tests with golden files write those files.
"""

import os

import pytest
from hypothesis import settings

EXAMPLES = 1_000 if os.environ.get("FAIRTAPE_DRILLS") == "all" else 50

settings.register_profile("steady", derandomize=True, deadline=None, database=None, max_examples=EXAMPLES)
settings.load_profile("steady")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write the golden files of the tests that run, from this code"
    )

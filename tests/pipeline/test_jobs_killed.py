"""A streaming driver that is killed while journals grow: no row is duplicated or missing in any table.

The suite kills it once. With FAIRTAPE_DRILLS=all it is killed twenty times, which takes some minutes.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra `pipeline` (PySpark) is not installed")

from pipeline.kill_campaign import campaign

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KILLS = 20 if os.environ.get("FAIRTAPE_DRILLS") == "all" else 1


@pytest.mark.timeout(7_200)
def test_a_driver_that_is_killed_and_a_checkpoint_that_is_lost_double_and_lose_nothing(
    spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def report(text: str) -> None:
        if KILLS > 2:
            with capsys.disabled():
                sys.stdout.write(f"\n{text}")

    result = campaign(spark, tmp_path, kills=KILLS, seed=5, report=report)
    report(str(result))
    assert result.kills == KILLS
    assert not result.different, str(result)
    assert not result.different_again, str(result)
    assert result.rows["deliveries"] >= result.numbers

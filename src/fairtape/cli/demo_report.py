"""The end of `fairtape demo`: its own journals go through the pipeline, and a page tells what they say.

By then the demonstration has proved itself. So whatever keeps Spark from its work is a complaint, told in one sentence
beside the proof, and fails nothing.
"""

import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fairtape.cli.pipeline_spark import needed, spark_at
from fairtape.cli.progress import steps
from fairtape.core.errors import UserError
from fairtape.demo.world import FLOORS, SITES
from fairtape.journal import Damaged

MASTER: Final = "local[2]"  # more would take longer to start than the journals of a demonstration to read
TABLES: Final = "tables"
REPORT: Final = "report"
REASON_MAX: Final = 200  # characters of what Spark says


def write_page(journals: Iterable[Path], folder: Path) -> Path:
    """Make all tables and the page in `folder`; a Complaint says why there is none."""
    with _in_one_sentence(), steps(quiet=False) as step:
        step("report: starting Spark")
        with spark_at(MASTER) as spark:
            from fairtape.pipeline.report.report import make_report
            from fairtape.pipeline.report.sections import Names
            from fairtape.pipeline.tables.jobs import run_batch

            run_batch(spark, list(journals), folder / TABLES, step=lambda text: step(f"report: {text}"))
            step("report: writing the page")
            names = Names(
                sites={number: site.name for number, site in SITES.items()},
                sources={number: f"{floor.name} ({floor.city})" for number, floor in FLOORS.items()},
            )
            return make_report(spark, folder / TABLES, folder / REPORT, names=names).page


def commands(folder: Path) -> str:
    """What a person types to make the same page later."""
    tables, out = shlex.quote(str(folder / TABLES)), shlex.quote(str(folder / REPORT))
    journals = shlex.quote(str(folder))
    return f"fairtape pipeline run {journals} --out {tables} && fairtape pipeline report --tables {tables} --out {out}"


@contextmanager
def _in_one_sentence() -> Iterator[None]:
    """Turn everything that Spark may fail of into a complaint."""
    needed()
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except Damaged as damage:
        raise UserError(f"{damage}; compare the journals with: fairtape journal verify") from None
    except ImportError as missing:
        raise UserError(f"package {missing.name} is missing; pip install 'fairtape[pipeline]'") from None
    except OSError as error:
        raise UserError(f"{error.filename or 'a file'} cannot be used ({error.strerror})") from None
    except (Py4JError, PySparkException) as error:
        said = " ".join(str(error).split())[:REASON_MAX]
        raise UserError(f"Spark gave up ({type(error).__name__}: {said}); give it more memory, or try again") from None

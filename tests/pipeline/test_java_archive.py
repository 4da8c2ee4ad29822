"""The archive of Spark's classes: the flags of Java, and the error where no archive could be made."""

import os
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra `pipeline` (PySpark) is not installed")

from fairtape.core.errors import UserError
from fairtape.pipeline.spark import java as archive
from fairtape.pipeline.spark.java import Java

DRILLS = os.environ.get("FAIRTAPE_DRILLS") == "all"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(archive.MAKING, raising=False)
    return tmp_path


def java(release: int) -> Java:
    return Java(Path("/somewhere"), release, f'openjdk version "{release}"')


@pytest.mark.parametrize(("release", "kind"), [(17, "-XX:SharedArchiveFile="), (25, "-XX:AOTCache=")])
def test_java_gets_the_archive_where_there_is_one(cache: Path, release: int, kind: str) -> None:
    assert archive.archive_flags(java(release)) == []
    path = archive.archive_path(java(release))
    assert path.is_relative_to(cache)
    path.parent.mkdir(parents=True)
    path.touch()
    assert archive.archive_flags(java(release))[0] == f"{kind}{path}"


@pytest.mark.usefixtures("cache")
def test_a_java_with_an_aot_cache_gets_no_sharing_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses to start with both."""
    monkeypatch.setenv(archive.MAKING, "draft")
    assert archive.archive_flags(java(25))[0] == "-XX:AOTCacheOutput=draft"
    assert not any("-Xshare" in flag for flag in archive.archive_flags(java(25)))
    assert archive.archive_flags(java(17))[:2] == ["-XX:ArchiveClassesAtExit=draft", "-Xshare:auto"]


def test_an_archive_that_could_not_be_made_is_reported_in_one_sentence(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_TRAINING_PROGRAM", "raise SystemExit('no, thank you')")
    with pytest.raises(UserError, match=r"^the class archive .* was not made: no, thank you$"):
        archive.make_archive()
    assert not list(cache.rglob("*.jsa"))
    assert not list(cache.rglob("*.aot"))


@pytest.mark.timeout(1_800)
@pytest.mark.skipif(not DRILLS, reason="it takes a minute: set FAIRTAPE_DRILLS=all")
def test_an_archive_is_made_and_kept(cache: Path) -> None:
    path = archive.make_archive()
    assert path.stat().st_size > 50 << 20
    assert [each for each in cache.rglob("*") if each.suffix in (".jsa", ".aot")] == [path]
    assert archive.make_archive() == path

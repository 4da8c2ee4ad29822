"""Rules for every text file of the repository. A rule looks at one page and yields a sentence for every breach.

A rule is a plain function, so that a test can also apply it to a page that breaks it.
"""

import ast
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Final, TypeAlias

from fairtape import __version__
from tidy.retired import retired_in

ROOT: Final = Path(__file__).parents[2]
HIDDEN_BUT_OURS: Final = {".ci", ".github"}

FILE_LINES_REPORTED: Final = 800
FUNCTION_LINES_MAX: Final = 60
LINE_MAX: Final = 120
JOB_WORDS_MIN: Final = 4
TEST_NAME_WORDS_MIN: Final = 3

# Each pattern has a letter in brackets, so that this page does not break its own rule.
UNFINISHED: Final = re.compile(r"\b(?:T[O]DO|F[I]XME|X[X]X|H[A]CK)\b")
INDEX_HOST: Final = re.compile(r"p[y]pi\.org|python[h]osted\.org|[i]ndex-url|find-[l]inks")
PRIVATE_PATH: Final = re.compile(r"(?<![\w.])/(?:home|root|work|Users)/\w")
PIN: Final = re.compile(r"[\w.-]+==[\w.!+]+")
LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
CITATION: Final = re.compile(r"\b[Dd]ecision (\d+)\b")
DECISION: Final = re.compile(r"^(\d+)\. \*\*(.+?)\.\*\*", re.MULTILINE)
QUOTED_PATH: Final = re.compile(r"`((?:src|tests|docs|benchmarks|examples|\.ci)/[\w./-]+)`")

# Retired words that are part of a format or of a seed, which must not change.
_COMPATIBLE_KEYS: Final = frozenset({"carrier", "stations", "posture"})  # of deployment files, status files and reports
RETIRED_ALLOWED: Final[Mapping[str, frozenset[str]]] = {
    "PROTOCOL.md": _COMPATIBLE_KEYS,
    "pyproject.toml": frozenset({"audience"}),  # a classifier
    "src/fairtape/demo/findings.py": _COMPATIBLE_KEYS,
    "tests/loopback/test_demo.py": _COMPATIBLE_KEYS,
    "src/fairtape/deployment/config/description.py": _COMPATIBLE_KEYS,
    "src/fairtape/deployment/status.py": _COMPATIBLE_KEYS,
    "tests/loopback/test_deployment.py": _COMPATIBLE_KEYS,
    "tests/loopback/test_edge.py": _COMPATIBLE_KEYS,
    "tests/unit/deployment/test_description.py": _COMPATIBLE_KEYS,
    "tests/unit/deployment/test_status.py": _COMPATIBLE_KEYS,
    "tests/unit/edge/test_stripe_plans.py": _COMPATIBLE_KEYS,
    "src/fairtape/deployment/operations/doctor.py": frozenset({"governor"}),  # a file of the kernel
    "src/fairtape/deployment/process/gateway.py": frozenset({"intake"}),  # the suffix of order logs
    "src/fairtape/simulation/cluster.py": frozenset({"realm"}),  # seeds
    "src/fairtape/simulation/fault_schedule.py": frozenset({"upheaval"}),
    "tests/scenarios/cluster_scenario.py": frozenset({"chronicle"}),
}

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Page:
    """One text file of the repository."""

    path: PurePosixPath  # from the root of the repository
    text: str

    @property
    def lines(self) -> list[str]:
        """The lines without their ends; only a line feed ends one."""
        return self.text.split("\n")

    @property
    def nodes(self) -> list[ast.AST]:
        """The syntax tree of Python code, flat; nothing for other pages."""
        return list(ast.walk(ast.parse(self.text))) if self.path.suffix == ".py" else []

    @property
    def functions(self) -> list[Function]:
        """All functions and methods."""
        return [node for node in self.nodes if isinstance(node, Function)]

    @property
    def docstring(self) -> str:
        """What the module says about itself."""
        return ast.get_docstring(ast.parse(self.text)) or ""

    def is_in(self, *folders: str) -> bool:
        """Whether one of these folders is above the page."""
        return bool(set(folders) & set(self.path.parts[:-1]))


Rule: TypeAlias = Callable[[Page], Iterator[str]]


def decision_titles() -> dict[int, str]:
    """The numbered decisions of PROTOCOL.md."""
    return {int(number): title for number, title in DECISION.findall((ROOT / "PROTOCOL.md").read_text())}


def _undocumented(module: str) -> set[str]:
    """The classes and functions of a module that have no docstring."""
    path = ROOT / "src" / f"{module.replace('.', '/')}.py"
    tree = ast.parse(path.read_text() if path.exists() else "")
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in tree.body if isinstance(node, kinds) and not ast.get_docstring(node)}


def every_page() -> Iterator[Page]:
    """All text files that belong to the project, whether or not they are committed yet."""
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines() if line.endswith("/")]
    yield from _pages_under(ROOT, ignored)


def _pages_under(folder: Path, ignored: list[str]) -> Iterator[Page]:
    for entry in sorted(folder.iterdir()):
        if entry.is_dir():
            hidden = entry.name.startswith(".") and entry.name not in HIDDEN_BUT_OURS
            if not hidden and not any(fnmatch(entry.name, pattern) for pattern in ignored):
                yield from _pages_under(entry, ignored)
        elif entry.is_file() and b"\0" not in (content := entry.read_bytes()):
            yield Page(PurePosixPath(entry.relative_to(ROOT).as_posix()), content.decode())


def pure_packages() -> tuple[str, ...]:
    """The packages that the import contract calls pure; the contract has the only list."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = (each for each in settings["tool"]["importlinter"]["contracts"] if each["id"] == "pure")
    return tuple(f"src/{module.replace('.', '/')}" for module in contract["source_modules"])


def modules_have_a_docstring(page: Page) -> Iterator[str]:
    """A module opens with what it is for."""
    if page.path.suffix == ".py" and not page.docstring:
        yield "has no docstring"


def exported_names_have_a_docstring(page: Page) -> Iterator[str]:
    """What a package exports in `__all__` is documented where it is defined."""
    if page.path.name != "__init__.py" or not page.is_in("src"):
        return
    for node in page.nodes:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fairtape."):
            undocumented = _undocumented(node.module)
            yield from (f"exports {each.name} without a docstring" for each in node.names if each.name in undocumented)


def packages_state_their_job(page: Page) -> Iterator[str]:
    """A package's `__init__` states the job of the package in a sentence."""
    if page.path.name == "__init__.py" and page.is_in("src"):
        first = page.docstring.partition("\n\n")[0]
        if len(first.split()) < JOB_WORDS_MIN or not first.endswith("."):
            yield "does not state the job of its package in a sentence"


def citations_name_number_and_title(page: Page) -> Iterator[str]:
    """A decision of PROTOCOL.md is cited as `decision 6, Commit`."""
    if page.path.suffix == ".py" and not page.is_in("tidy"):
        titles = decision_titles()
        text = " ".join(page.text.replace("#", " ").split())
        for found in CITATION.finditer(text):
            title = titles.get(int(found[1]))
            if title is None:
                yield f"cites decision {found[1]}, which does not exist"
            elif not text[found.end() :].startswith(f", {title}"):
                yield f"cites decision {found[1]} without its title; write: decision {found[1]}, {title}"


def functions_fit_a_screen(page: Page) -> Iterator[str]:
    """Decisions in the parent, work in leaves."""
    for function in page.functions:
        assert function.end_lineno is not None
        size = function.end_lineno - function.lineno + 1
        if size > FUNCTION_LINES_MAX:
            yield f"{function.name} has {size} lines; at most {FUNCTION_LINES_MAX}"


def lines_are_short(page: Page) -> Iterator[str]:
    """Two pages fit side by side."""
    if page.path.suffix == ".py":
        for number, line in enumerate(page.lines, 1):
            if len(line) > LINE_MAX:
                yield f"line {number} has {len(line)} characters; at most {LINE_MAX}"


def only_the_command_line_prints(page: Page) -> Iterator[str]:
    """A library speaks through values and effects."""
    if not page.is_in("cli", "benchmarks"):
        for node in page.nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                yield f"line {node.lineno} prints"


def pure_packages_hold_no_global(page: Page) -> Iterator[str]:
    """Equal inputs in equal order give equal effects, so nothing is remembered beside the machine."""
    if page.is_in("src") and page.path.as_posix().startswith(pure_packages()):
        for node in page.nodes:
            if isinstance(node, ast.Global):
                yield f"line {node.lineno} declares {', '.join(node.names)} global"


def nothing_is_left_unfinished(page: Page) -> Iterator[str]:
    """What is not done is not in the code; what should be done is in an issue."""
    yield from _finds(UNFINISHED, page)


def no_index_host_is_named(page: Page) -> Iterator[str]:
    """Where packages come from is the business of each machine."""
    yield from _finds(INDEX_HOST, page)


def no_private_path_is_named(page: Page) -> Iterator[str]:
    """Nobody else has that folder."""
    yield from _finds(PRIVATE_PATH, page)


def blanks_are_clean(page: Page) -> Iterator[str]:
    """No tab (but those of a Makefile), no blank at a line's end, no carriage return, one line feed at the end."""
    for number, line in enumerate(page.lines, 1):
        if line.endswith("\r"):
            yield f"line {number} ends with a carriage return"
        if line.rstrip("\r").endswith((" ", "\t")):
            yield f"line {number} ends with a blank"
        if "\t" in (line.lstrip("\t") if page.path.name == "Makefile" else line):
            yield f"line {number} has a tab"
    if page.text and (not page.text.endswith("\n") or page.text.endswith("\n\n")):
        yield "does not end with exactly one line feed"


def names_of_tests_are_sentences(page: Page) -> Iterator[str]:
    """A test's name says what is true when it passes."""
    if page.path.name.startswith("test_"):
        for function in page.functions:
            if function.name.startswith("test_") and len(function.name.split("_")) <= TEST_NAME_WORDS_MIN:
                yield f"{function.name} has fewer than {TEST_NAME_WORDS_MIN} words"


def unit_tests_stand_beside_their_package(page: Page) -> Iterator[str]:
    """A unit test and its helpers are in `tests/unit/PACKAGE`."""
    if page.path.parts[:2] == ("tests", "unit") and not (ROOT / "src" / "fairtape" / page.path.parts[2]).is_dir():
        yield "is not in the folder of a package"


def no_retired_name_is_used(page: Page) -> Iterator[str]:
    """One name per idea: `retired.py` lists the words that have a standard term in their place."""
    if page.is_in("tidy") or page.path.name == "CHANGELOG.md":
        return
    allowed = RETIRED_ALLOWED.get(page.path.as_posix(), frozenset())
    for number, word in retired_in(page.text, is_python=page.path.suffix == ".py"):
        if word.lower() not in allowed:
            yield f"line {number} has the retired word {word!r}"


def documents_name_only_what_exists(page: Page) -> Iterator[str]:
    """Relative links resolve, and so do paths in backquotes."""
    if page.path.suffix != ".md":
        return
    here = ROOT / page.path.parent
    for target in LINK.findall(page.text):
        file = target.partition("#")[0]
        if file and ":" not in file and not (here / file).exists():
            yield f"links to {target}, which does not exist"
    for path in QUOTED_PATH.findall(page.text):
        if not (ROOT / path).exists():
            yield f"names {path}, which does not exist"


def the_changelog_names_the_version(page: Page) -> Iterator[str]:
    """The topmost heading of the changelog is the version of the package."""
    if page.path.name == "CHANGELOG.md":
        topmost = next((line for line in page.lines if line.startswith("## ")), "no heading")
        if not re.search(rf"(?<![\d.]){re.escape(__version__)}(?![\d.])", topmost):
            yield f"begins with {topmost!r}; the version is {__version__}"


def constraints_pin_everything(page: Page) -> Iterator[str]:
    """The same packages on every machine, from wherever that machine gets its packages."""
    if page.path.name == "constraints.txt":
        for number, line in enumerate(page.lines, 1):
            if line and not line.startswith("#") and not PIN.fullmatch(line):
                yield f"line {number} is {line!r}; expected name==version"


def _finds(pattern: re.Pattern[str], page: Page) -> Iterator[str]:
    for number, line in enumerate(page.lines, 1):
        if found := pattern.search(line):
            yield f"line {number} has {found[0]!r}"

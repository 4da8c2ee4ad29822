"""Strict reading of TOML: every field is read by name and type, and a field that was not read is an error.

A mistake is one sentence that names the file, the field, what was found there, and what is expected.
"""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from fairtape.core.errors import UserError

FILE_SIZE_MAX: Final = 1 << 20
SHOWN_MAX: Final = 60  # characters of a value in an error

Kind = TypeVar("Kind")

_TYPE_NAMES: Final[Mapping[type, str]] = {
    str: "a text",
    int: "a whole number",
    list: "a list",
    dict: "a table",
    bool: "true or false",
}
_MISSING: Final = object()


class TomlTable:
    """One table of a document, and its path there."""

    def __init__(self, file: Path | str, fields: Mapping[str, Any], *, at: str = "") -> None:
        self.file = file
        self._fields = dict(fields)
        self._at = at

    @classmethod
    def load(cls, file: Path) -> "TomlTable":
        """Read a file. Raises `UserError`."""
        try:
            with file.open("rb") as opened:
                return cls.parse(file, opened.read(FILE_SIZE_MAX))
        except OSError as error:
            raise UserError(f"{file} cannot be read ({error.strerror}); correct its permissions") from None

    @classmethod
    def parse(cls, file: Path | str, content: bytes) -> "TomlTable":
        """Parse a document; `file` is what errors call it. Raises `UserError`."""
        try:
            return cls(file, tomllib.loads(content.decode()))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UserError(f"{file} is not valid TOML: {error}; correct that line") from None

    def take(self, name: str, kind: type[Kind], default: Any = _MISSING) -> Kind:
        """Read a field; `default` where it is left out. Without a default it is required."""
        value = self._fields.pop(name, default)
        if value is _MISSING:
            raise UserError(f"{self.file} lacks {self._path(name)}; give {_TYPE_NAMES.get(kind, 'a value')} there")
        if value is default:
            return default  # type: ignore[no-any-return]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.wrong(name, value, f"expected {_TYPE_NAMES.get(kind, 'something else')}")
        return value

    def number(self, name: str, least: int, most: int, default: Any = _MISSING) -> int:
        """Read a whole number within limits."""
        value = self.take(name, int, default)
        if value is not default and not least <= value <= most:
            raise self.wrong(name, value, f"expected from {least:,} to {most:,}")
        return value

    def choice(self, name: str, choices: Mapping[str, Kind], default: str | None = None) -> Kind:
        """Read one of these texts; returns what it stands for."""
        value = self.take(name, str, _MISSING if default is None else default)
        if value not in choices:
            raise self.wrong(name, value, f"expected one of {', '.join(choices)}")
        return choices[value]

    def names(self, name: str, *, optional: bool = False) -> tuple[str, ...]:
        """Read a list of texts."""
        values: list[Any] = self.take(name, list, [] if optional else _MISSING)
        for value in values:
            if not isinstance(value, str):
                raise self._wrong_item(name, value, "a list of names")
        return tuple(values)

    def table(self, name: str, *, optional: bool = False) -> "TomlTable":
        fields: dict[str, Any] = self.take(name, dict, {} if optional else _MISSING)
        return TomlTable(self.file, fields, at=self._path(name))

    def tables(self, name: str) -> list["TomlTable"]:
        """Read a list of tables, written as `[[name]]`."""
        values: list[Any] = self.take(name, list)
        for value in values:
            if not isinstance(value, dict):
                raise self._wrong_item(name, value, f"tables, each under [[{name}]]")
        return [TomlTable(self.file, value, at=f"{self._path(name)}[{place}]") for place, value in enumerate(values)]

    def items(self) -> Iterator[tuple[str, "TomlTable"]]:
        """Read all remaining fields, each a table under a name that the user chose."""
        for name in list(self._fields):
            yield name, self.table(name)

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def finish(self) -> None:
        """Refuse the fields that were not read."""
        for name, value in self._fields.items():
            raise self.wrong(name, value, "no such field is known: correct its name or remove it")

    def wrong(self, name: str, value: object, remedy: str) -> UserError:
        """The error about the value of a field."""
        return UserError(f"{self.file}: {self._path(name)} is {_shown(value)}; {remedy}")

    def _wrong_item(self, name: str, value: object, expected: str) -> UserError:
        return UserError(f"{self.file}: {self._path(name)} has {_shown(value)} in it; expected {expected}")

    def _path(self, name: str) -> str:
        return f"{self._at}.{name}" if self._at else name


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= SHOWN_MAX else f"{shown[:SHOWN_MAX]}…"

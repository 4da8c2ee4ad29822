"""Frozen dataclasses as JSON objects.

A field is written under its own name unless its metadata says otherwise: `{KEY: name}` for another name,
`{INLINE: True}` for a dataclass whose fields belong to the object around it, `{OPTIONAL: True}` for a field that is
left out while it has its default, `{EMPTY: True}` for None as an empty object. Reading checks the type of every field
and ignores keys that it does not know.
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

__all__ = ["EMPTY", "INLINE", "KEY", "OPTIONAL", "BadJson", "decode", "encode"]

EMPTY: Final = "empty"
KEY: Final = "key"
INLINE: Final = "inline"
OPTIONAL: Final = "optional"

Value = TypeVar("Value")


class BadJson(ValueError):
    """JSON that does not have the shape of the dataclass."""


def encode(value: Any) -> Any:
    """The JSON of a dataclass, or of what its fields hold."""
    if is_dataclass(value):
        return _encode_object(value)
    if isinstance(value, Mapping):
        return {str(name): encode(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [encode(each) for each in value]
    return value


def _encode_object(value: Any) -> dict[str, Any]:
    written: dict[str, Any] = {}
    for each in fields(value):
        held = getattr(value, each.name)
        if each.metadata.get(OPTIONAL) and held == each.default:
            continue
        if each.metadata.get(INLINE):
            written |= encode(held)
        else:
            written[_key(each)] = {} if held is None and each.metadata.get(EMPTY) else encode(held)
    return written


def decode(kind: type[Value], content: object) -> Value:
    """The dataclass of this kind that was written so. Raises `BadJson`."""
    if not isinstance(content, dict):
        raise BadJson(f"expected an object, found {type(content).__name__}")
    hints = _hints(kind)  # type: ignore[arg-type]
    found: dict[str, Any] = {}
    for each in fields(kind):  # type: ignore[arg-type]
        hint, optional = hints[each.name], bool(each.metadata.get(OPTIONAL))
        if each.metadata.get(INLINE):
            (inner,) = (part for part in (get_args(hint) or (hint,)) if part is not NoneType)
            if not optional or any(_key(part) in content for part in fields(inner)):
                found[each.name] = decode(inner, content)
        elif _key(each) in content:
            held = content[_key(each)]
            found[each.name] = _decode_value(
                hint, None if held == {} and each.metadata.get(EMPTY) else held, _key(each)
            )
        elif not optional:
            raise BadJson(f"{_key(each)} is missing")
    return kind(**found)


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _key(each: "Field[Any]") -> str:
    assert each.default is not MISSING or not each.metadata.get(OPTIONAL)
    return str(each.metadata.get(KEY, each.name))


def _decode_value(hint: Any, value: Any, key: str) -> Any:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if value is None and NoneType in parts:
            return None
        (inner,) = (part for part in parts if part is not NoneType)
        return _decode_value(inner, value, key)
    if is_dataclass(hint):
        assert isinstance(hint, type)
        return decode(hint, value)
    if origin is tuple and isinstance(value, list):
        kinds = (parts[0],) * len(value) if parts[1:] == (...,) else parts
        if len(kinds) == len(value):
            return tuple(_decode_value(each, held, key) for each, held in zip(kinds, value, strict=True))
    elif origin is Mapping and isinstance(value, dict):
        return {_decode_name(parts[0], name, key): _decode_value(parts[1], held, key) for name, held in value.items()}
    elif type(value) is hint or (hint is float and type(value) is int):
        return value
    raise BadJson(f"{key} is {value!r}, which is not {hint}")


def _decode_name(hint: Any, name: str, key: str) -> Any:
    """JSON has only texts for the names in an object; numbers are written in decimals."""
    if hint is str:
        return name
    try:
        return int(name)
    except ValueError:
        raise BadJson(f"{key} has {name!r} in the place of a number") from None

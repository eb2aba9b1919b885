"""Turns the plain values of a YAML document into frozen settings, guided by the types of a msgspec.Struct.

Input: a Document and a class. Output: an instance, or None and a problem for each wrong value. Every key is examined,
also after a problem. A key has its default if it is absent, or null in place of a mapping or a list (all its lines are
commented out).

A type may have these entries in `extra` of its `msgspec.Meta`:
- `read` turns the scalar into the value, or raises ValueError with what is expected;
- `resolve` makes a path absolute from the document's directory, or reads the file there; also of a list's items;
- `secret` keeps the value out of messages;
- `kinds` names the classes of a list's items, which are imported only if the list is not empty.
A class may have `problems()`, which yields (key, message) for a wrong combination of values. A key may have dots.
"""

import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pkgutil import resolve_name
from typing import Any, TypeVar, cast

from msgspec import inspect

from megatron_monitor.config.document import Document, KeyPath

T = TypeVar("T")


def decode(document: Document, target: type[T]) -> T | None:
    """Return the instance of `target` that the document describes; None if the document now has problems."""
    value = _build(document, inspect.type_info(target), document.value, ())
    return None if document.problems else cast("T", value)


def _build(document: Document, info: inspect.Type, raw: Any, path: KeyPath) -> Any:
    """Return the value, or None and a problem."""
    extra: dict[str, Any] = {}
    while isinstance(info, inspect.Metadata):
        extra |= {**(info.extra or {}), **(info.extra_json_schema or {})}
        info = info.type
    before = len(document.problems)
    value = _value(document, info, raw, path, extra)
    if "resolve" in extra and len(document.problems) == before:
        try:
            return extra["resolve"](value, document.base)
        except (OSError, ValueError) as error:
            document.problem(path, str(error))
    return value


def _value(document: Document, info: inspect.Type, raw: Any, path: KeyPath, extra: dict[str, Any]) -> Any:
    if isinstance(info, inspect.UnionType):  # `X | None`, or classes with a tag
        if raw is None and info.includes_none:
            return None
        kinds = [kind for kind in info.types if not isinstance(kind, inspect.NoneType)]
        if len(kinds) == 1:
            return _build(document, kinds[0], raw, path)
        return _tagged(document, cast("list[inspect.StructType]", kinds), raw, path)
    if isinstance(info, inspect.StructType) and info.tag_field:
        return _tagged(document, [info], raw, path)
    if not isinstance(info, inspect.StructType | inspect.DictType | inspect.VarTupleType):
        return _scalar(document, info, raw, path, extra)
    kind, word = (list, "a list") if isinstance(info, inspect.VarTupleType) else (dict, "a mapping")
    if not isinstance(raw, kind | None):
        document.problem(path, f"expected {word}, got {_shown(raw)}")
        return None
    given: Any = raw or kind()
    if isinstance(info, inspect.VarTupleType):
        return _listed(document, info, given, path, extra)
    if isinstance(info, inspect.DictType):
        return _keyed(document, info, given, path)
    return _mapped(document, info, given, path)


def _scalar(document: Document, info: inspect.Type, raw: Any, path: KeyPath, extra: dict[str, Any]) -> Any:
    try:
        return _read(info, raw, extra)
    except ValueError as error:
        got = "" if extra.get("secret") else f", got {_shown(raw)}"
        hint = None
        if isinstance(info, inspect.StrType) and not isinstance(raw, str | list | dict | None):
            with suppress(ValueError):  # a number, a date or a boolean that would be valid as text
                _read(info, str(raw), extra)
                hint = "put it in quotes"
        document.problem(path, f"{error}{got}", hint)
        return None


def _read(info: inspect.Type, raw: Any, extra: dict[str, Any]) -> Any:
    """Return the value. Raises ValueError with what is expected."""
    if "read" in extra:
        return extra["read"](raw)
    if not _fits(info, raw):
        raise ValueError(f"expected {extra.get('description') or _expected(info)}")
    return float(raw) if isinstance(info, inspect.FloatType) else raw


def _fits(info: inspect.Type, raw: Any) -> bool:
    if isinstance(info, inspect.LiteralType):
        return isinstance(raw, str) and raw in info.values
    if isinstance(info, inspect.StrType):
        short, long, pattern = info.min_length or 0, info.max_length or math.inf, info.pattern or ""
        return isinstance(raw, str) and short <= len(raw) <= long and re.search(pattern, raw) is not None
    if isinstance(raw, bool) or isinstance(info, inspect.BoolType):
        return isinstance(raw, bool) is isinstance(info, inspect.BoolType)
    if not isinstance(raw, int if isinstance(info, inspect.IntType) else int | float):
        return False
    above, least = _bounds(info)  # excludes infinity, NaN and integers beyond the range of floats
    return raw < 1e300 and (raw > above if above is not None else raw >= least)


def _bounds(info: inspect.Type) -> tuple[float | None, float]:
    """Return (exclusive minimum, inclusive minimum). No configured number is negative."""
    return getattr(info, "gt", None), getattr(info, "ge", None) or 0


def _expected(info: inspect.Type) -> str:
    if isinstance(info, inspect.LiteralType):
        return "one of " + ", ".join(str(value) for value in info.values)
    if isinstance(info, inspect.StrType):
        return "text" + (f" of {info.min_length or 0} to {info.max_length} characters" if info.max_length else "")
    if isinstance(info, inspect.BoolType):
        return "true or false"
    above, least = _bounds(info)
    bound = f"above {above:g}" if above is not None else f"of at least {least:g}"
    return f"a whole number {bound}" if isinstance(info, inspect.IntType) else f"a number {bound}"


def _shown(raw: Any) -> str:
    """Return a value as one short line for an error message."""
    if raw is None or isinstance(raw, bool):
        return {None: "null", True: "true", False: "false"}[raw]
    if isinstance(raw, list | dict):
        return "a list" if isinstance(raw, list) else "a mapping"
    if isinstance(raw, int | float) and not -1e18 < raw < 1e18:
        return "a number without bounds"
    text = repr(raw) if isinstance(raw, str) else str(raw)
    return text if len(text) <= 60 else text[:57] + "..."


def _listed(
    document: Document, info: inspect.VarTupleType, raw: list[Any], path: KeyPath, extra: dict[str, Any]
) -> tuple[Any, ...]:
    if len(raw) < (info.min_length or 0):
        document.problem(path, "expected at least one item")
    kind = info.item_type
    if raw and "kinds" in extra:
        kind = inspect.UnionType(tuple(map(inspect.type_info, resolve_name(extra["kinds"]))))
    return tuple(_build(document, kind, item, (*path, index)) for index, item in enumerate(raw))


def _keyed(document: Document, info: inspect.DictType, raw: dict[str, Any], path: KeyPath) -> dict[str, Any]:
    for key in raw:
        _build(document, info.key_type, key, (*path, key))
    return {key: _build(document, info.value_type, value, (*path, key)) for key, value in raw.items()}


def _tagged(document: Document, kinds: list[inspect.StructType], raw: Any, path: KeyPath) -> Any:
    """Build one of several classes, selected by the mapping's tag (`type: webhook`)."""
    field, tags = str(kinds[0].tag_field), [str(kind.tag) for kind in kinds]
    if not isinstance(raw, dict):
        document.problem(path, f"expected a mapping with the key {field}, got {_shown(raw)}")
    elif field not in raw:
        document.problem(path, f"the key {field} is missing, expected one of {', '.join(tags)}")
    elif (tag := raw[field]) in tags:
        return _mapped(document, kinds[tags.index(tag)], {key: raw[key] for key in raw if key != field}, path)
    else:
        message = f"expected one of {', '.join(tags)}, got {_shown(tag)}"
        document.problem((*path, field), message, _nearest(tag, tags))
    return None


def _mapped(document: Document, info: inspect.StructType, raw: dict[str, Any], path: KeyPath) -> Any:
    before, fields = len(document.problems), {field.encode_name: field for field in info.fields}
    _refuse_unknown(document, raw, fields, path)
    values: dict[str, Any] = {}
    for key, field in fields.items():
        if key in raw:
            values[field.name] = _build(document, field.type, raw[key], (*path, key))
        elif field.required:
            document.problem(path, f"the key {key} is missing")
    if len(document.problems) > before:
        return None
    instance = info.cls(**values)
    for key, message in instance.problems() if hasattr(instance, "problems") else ():
        below = [int(part) if part.isdecimal() else part for part in key.split(".") if part]
        document.problem((*path, *below), message)
    return instance


def _refuse_unknown(document: Document, raw: Mapping[str, Any], known: Iterable[str], path: KeyPath) -> None:
    names = list(known)
    for key in raw:
        if key in names:
            continue
        here = f"known here: {', '.join(names)}" if names else "nothing can be set here"
        document.problem((*path, key), "unknown key", _nearest(key, names) or here)


def _nearest(word: Any, names: list[str]) -> str | None:
    import difflib  # needed for an unknown key only

    close = difflib.get_close_matches(str(word)[:100], names, n=1)
    return f'did you mean "{close[0]}"?' if close else None

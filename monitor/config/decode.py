"""Plain values -> frozen settings, led by the types alone. Knows no key of ours.

Comes in: values of YAML, and a class (msgspec.Struct or frozen dataclass). Goes out: an instance, or None and a problem
for each value that does not fit.
Law: every key of the document is looked at once, whatever was wrong before it. A key that is absent, or null where a
mapping or a list is expected (its lines are all commented out), has its default.

What a type can say of itself, under `extra` of its `msgspec.Meta`:
`read` turns the scalar into the value or raises ValueError with what is expected; `resolve` makes a path of it absolute
from the document's directory, or reads what is there; `secret` keeps the value out of messages; `unique` names the key
in which no two items of a list may be equal; `kinds` names the classes of a list's items, which are loaded only where
the list is not empty; `first` is the type of a list's first item. A class may have `problems()`, which yields (key,
message) for what its values together have wrong.
"""

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

from msgspec import inspect

from megatron_monitor.config.document import Document, Path

T = TypeVar("T")

_INVALID: Final = object()  # a value that did not fit: its problem is noted, what holds it cannot be built either
_BOUNDS: Final[tuple[tuple[str, str, Callable[[Any, Any], Any]], ...]] = (
    ("gt", "above", operator.gt),
    ("ge", "of at least", operator.ge),
    ("lt", "below", operator.lt),
    ("le", "of at most", operator.le),
)


def decode(document: Document, target: type[T]) -> T | None:
    """The instance of `target` that the document describes; None if it has problems, which are then noted in it."""
    value = _build(document, inspect.type_info(target), document.value, ())
    return None if value is _INVALID or document.problems else cast("T", value)


def _build(document: Document, info: inspect.Type, raw: Any, path: Path) -> Any:
    extra: dict[str, Any] = {}
    while isinstance(info, inspect.Metadata):
        extra |= {**(info.extra or {}), **(info.extra_json_schema or {})}
        info = info.type
    if isinstance(info, inspect.UnionType):
        return _chosen(document, info, raw, path)
    if isinstance(info, inspect.StructType) and info.tag_field:
        return _tagged(document, [info], raw, path)
    if isinstance(info, inspect.StructType | inspect.DataclassType):
        return _mapped(document, info, raw, path)
    if isinstance(info, inspect.VarTupleType):
        return _listed(document, info, raw, path, extra)
    if isinstance(info, inspect.DictType):
        return _keyed(document, info, raw, path)
    return _scalar(document, info, raw, path, extra)


def _chosen(document: Document, info: inspect.UnionType, raw: Any, path: Path) -> Any:
    """Ours are `X | None`, or classes with a tag."""
    if raw is None and info.includes_none:
        return None
    rest = [kind for kind in info.types if not isinstance(kind, inspect.NoneType)]
    if all(isinstance(kind, inspect.StructType) and kind.tag_field for kind in rest):
        return _tagged(document, cast("list[inspect.StructType]", rest), raw, path)
    return _build(document, rest[0], raw, path)


def _scalar(document: Document, info: inspect.Type, raw: Any, path: Path, extra: dict[str, Any]) -> Any:
    value, trouble = _read(info, raw, extra)
    if value is not _INVALID and "resolve" in extra:
        try:
            value = extra["resolve"](value, document.base)
        except (OSError, ValueError) as error:
            document.problem(path, str(error))
            return _INVALID
    if value is not _INVALID:
        return float(value) if isinstance(info, inspect.FloatType) else value
    got = "" if extra.get("secret") else f", got {_shown(raw)}"
    unquoted = isinstance(info, inspect.StrType) and raw is not None and not isinstance(raw, str | list | dict)
    helps = unquoted and _read(info, str(raw), extra)[0] is not _INVALID
    document.problem(path, trouble + got, "put it in quotes" if helps else None)
    return _INVALID


def _read(info: inspect.Type, raw: Any, extra: dict[str, Any]) -> tuple[Any, str]:
    if "read" not in extra:
        return raw if _fits(info, raw) else _INVALID, f"expected {extra.get('description') or _expected(info)}"
    try:
        return extra["read"](raw), ""
    except ValueError as error:
        return _INVALID, str(error)


def _fits(info: inspect.Type, raw: Any) -> bool:
    if isinstance(info, inspect.LiteralType):
        return isinstance(raw, str) and raw in info.values
    if isinstance(info, inspect.StrType):
        short, long, pattern = info.min_length or 0, info.max_length or math.inf, info.pattern or ""
        return isinstance(raw, str) and short <= len(raw) <= long and re.search(pattern, raw) is not None
    if isinstance(raw, bool) or isinstance(info, inspect.BoolType):
        return isinstance(raw, bool) and isinstance(info, inspect.BoolType)
    return _is_number(info, raw)


def _is_number(info: inspect.Type, raw: Any) -> bool:
    if not isinstance(raw, int if isinstance(info, inspect.IntType) else int | float):
        return False
    if not -1e300 < raw < 1e300:  # neither infinite nor NaN, nor an integer that no float can hold
        return False
    return all(compare(raw, limit) for _, limit, compare in _bounds(info))


def _bounds(info: inspect.Type) -> list[tuple[str, float, Callable[[Any, Any], Any]]]:
    """The limits of a number. Nothing that can be configured is negative, unless its type names limits of its own."""
    stated = [(word, getattr(info, bound), compare) for bound, word, compare in _BOUNDS]
    return [limit for limit in stated if limit[1] is not None] or [("of at least", 0.0, operator.ge)]


def _expected(info: inspect.Type) -> str:
    if isinstance(info, inspect.LiteralType):
        return "one of " + ", ".join(str(value) for value in info.values)
    if isinstance(info, inspect.StrType):
        return "text" + (f" of {info.min_length or 0} to {info.max_length} characters" if info.max_length else "")
    if isinstance(info, inspect.BoolType):
        return "true or false"
    bounds = " and ".join(f"{word} {limit:g}" for word, limit, _ in _bounds(info))
    return f"a whole number {bounds}" if isinstance(info, inspect.IntType) else f"a number {bounds}"


def _shown(raw: Any) -> str:
    """A value as an error message may repeat it: one line, bounded."""
    if raw is None or isinstance(raw, bool):
        return {None: "null", True: "true", False: "false"}[raw]
    if isinstance(raw, list | dict):
        return "a list" if isinstance(raw, list) else "a mapping"
    if isinstance(raw, int) and abs(raw) > 10**18:
        return "a very large number"
    if isinstance(raw, float) and not math.isfinite(raw):
        return "a number without bounds"
    text = repr(raw) if isinstance(raw, str) else str(raw)
    return text if len(text) <= 60 else text[:57] + "..."


def _listed(document: Document, info: inspect.VarTupleType, raw: Any, path: Path, extra: dict[str, Any]) -> Any:
    raw = [] if raw is None else raw
    if not isinstance(raw, list):
        document.problem(path, f"expected a list, got {_shown(raw)}")
        return _INVALID
    if len(raw) < (info.min_length or 0):
        document.problem(path, "expected at least one item")
        return _INVALID
    loaded = resolve_name(extra["kinds"]) if raw and "kinds" in extra else ()
    kind = inspect.UnionType(tuple(map(inspect.type_info, loaded))) if loaded else None
    kinds = [kind or info.item_type] * len(raw)
    if "first" in extra:
        kinds[0] = inspect.type_info(extra["first"])
    items = [_build(document, kinds[index], item, (*path, index)) for index, item in enumerate(raw)]
    if "unique" in extra:
        _refuse_twins(document, raw, path, extra["unique"])
    return _INVALID if _INVALID in items else tuple(items)


def _refuse_twins(document: Document, raw: list[Any], path: Path, key: str) -> None:
    first: dict[str, int] = {}
    for index, item in enumerate(raw):
        name = item.get(key) if isinstance(item, dict) else None
        if isinstance(name, str) and first.setdefault(name, index) != index:
            message = f"{name!r} is already the {key} of {'.'.join(map(str, path))}.{first[name]}"
            document.problem((*path, index, key), message)


def _keyed(document: Document, info: inspect.DictType, raw: Any, path: Path) -> Any:
    if raw is None:
        raw = {}
    if not isinstance(raw, dict):
        document.problem(path, f"expected a mapping, got {_shown(raw)}")
        return _INVALID
    built: dict[str, Any] = {}
    for key, value in raw.items():
        name = _build(document, info.key_type, key, (*path, key))
        item = _build(document, info.value_type, value, (*path, key))
        built[key] = _INVALID if name is _INVALID else item
    return _INVALID if _INVALID in built.values() else MappingProxyType(built)


def _tagged(document: Document, kinds: list[inspect.StructType], raw: Any, path: Path) -> Any:
    """One of several classes, chosen by the mapping's own tag (`type: webhook`)."""
    field = str(kinds[0].tag_field)
    if not isinstance(raw, dict):
        document.problem(path, f"expected a mapping with the key {field}, got {_shown(raw)}")
        return _INVALID
    tags = [str(kind.tag) for kind in kinds]
    tag = raw.get(field)
    for kind in kinds:
        if kind.tag == tag:
            return _mapped(document, kind, {key: value for key, value in raw.items() if key != field}, path)
    known = f"expected one of {', '.join(tags)}"
    if field in raw:
        document.problem((*path, field), f"{known}, got {_shown(tag)}", _nearest(tag, tags))
    else:
        document.problem(path, f"the key {field} is missing, {known}")
    return _INVALID


def _mapped(document: Document, info: inspect.StructType | inspect.DataclassType, raw: Any, path: Path) -> Any:
    if raw is None:
        raw = {}
    if not isinstance(raw, dict):
        document.problem(path, f"expected a mapping, got {_shown(raw)}")
        return _INVALID
    fields = {field.encode_name: field for field in info.fields}
    _refuse_unknown(document, raw, fields, path)
    values: dict[str, Any] = {}
    for key, field in fields.items():
        if key in raw:
            values[field.name] = _build(document, field.type, raw[key], (*path, key))
        elif field.required:
            document.problem(path, f"the key {key} is missing")
            values[field.name] = _INVALID
    if _INVALID in values.values():
        return _INVALID
    instance = info.cls(**values)
    checks: Iterable[tuple[str, str]] = instance.problems() if hasattr(instance, "problems") else ()
    found = [((*path, key) if key else path, message) for key, message in checks]
    for place, message in found:
        document.problem(place, message)
    return _INVALID if found else instance


def _refuse_unknown(document: Document, raw: Mapping[str, Any], known: Iterable[str], path: Path) -> None:
    names = list(known)
    for key in raw:
        if key not in names:
            here = f"known here: {', '.join(names)}" if names else "nothing can be set here"
            document.problem((*path, key), "unknown key", _nearest(key, names) or here)


def _nearest(word: Any, names: list[str]) -> str | None:
    import difflib  # for those who mistyped

    close = difflib.get_close_matches(str(word)[:100], names, n=1)
    return f'did you mean "{close[0]}"?' if close else None

"""A site's own dialects: files or folders of them, read, decoded, and tried on their own samples.

Law: what is given back works as its samples say; else DialectError with every mistake, its file and line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from monitor.config.decode import decode
from parsers.declared.schema import Dialect
from parsers.registry import rules_with
from parsers.samples import claims, differences


class DialectError(ValueError):
    """Dialects that cannot be used."""


def dialects_at(name: str, base: str) -> tuple[Dialect, ...]:
    """The dialects of a file, or of all `.yaml` files in a folder. Raises DialectError."""
    path = Path(base) / name
    files = sorted([*path.glob("*.yaml"), *path.glob("*.yml")]) if path.is_dir() else [path]
    if not files:
        raise DialectError(f"{path}: no .yaml file is there")
    found = [dialect_of(file, file.read_bytes()) for file in _readable(files)]
    names = [dialect.name for dialect in found]
    if len(set(names)) < len(names):
        raise DialectError(f"{path}: several files have the same name: {', '.join(sorted(names))}")
    return tuple(found)


def dialect_of(path: Path, data: bytes) -> Dialect:
    """The dialect in a file's text, which gives for its samples what it says. Raises DialectError."""
    from monitor.config.yaml_text import read_yaml  # PyYAML is a tenth of a start, and most need none

    document = read_yaml(data.decode("utf-8-sig", "replace"))
    dialect = decode(document, Dialect)
    if dialect is not None:
        for index, trouble in differences(dialect, rules_with((dialect,))):
            document.problem(("samples", index), trouble)
    if dialect is None or document.problems:
        places = (f"{path}:{problem.line or ''}: {problem}" for problem in document.problems)
        raise DialectError("; ".join(places) or f"{path}: is empty")
    return dialect


def notes(dialects: Sequence[Dialect]) -> Iterator[str]:
    """What is worth knowing of dialects that work: lines that another one reads, too."""
    yield from claims(dialects)


def _readable(files: Sequence[Path]) -> Iterator[Path]:
    for file in files:
        if not file.is_file():
            raise DialectError(f"{file}: there is no such file")
        yield file

"""A site's own line formats: files or folders of them, read, decoded, and tried on their own samples.

Law: what is given back works as its samples say; else FormatError with every mistake of every file, its file and line.
Reading takes bounded time and memory, whatever stands there.
"""

from pathlib import Path

from megatron_monitor.config.decode import decode
from megatron_monitor.parsers.declared.schema import Format
from megatron_monitor.parsers.registry import rules_with
from megatron_monitor.parsers.samples import differences

_MOST_FILES = 100  # of a folder
_MOST_BYTES = 256 * 1024  # of a file; the longest of ours has 6 KB, and YAML takes 10 s a megabyte
_SHOWN = 20  # mistakes of a file


class FormatError(ValueError):
    """Formats that cannot be used."""


def formats_at(name: str, base: str) -> tuple[Format, ...]:
    """The formats of a file, or of all `.yaml` files in a folder. Raises FormatError."""
    path = Path(base) / name
    files = sorted([*path.glob("*.yaml"), *path.glob("*.yml")]) if path.is_dir() else [path]
    if not files:
        raise FormatError(f"{path}: no .yaml file is there")
    if len(files) > _MOST_FILES:
        raise FormatError(f"{path}: holds more than {_MOST_FILES} files")
    found: dict[str, Path] = {}
    dialects, wrong = list[Format](), list[str]()
    for file in files:
        try:
            dialects.append(dialect := format_of(file, _read(file)))
            if (other := found.setdefault(dialect.name, file)) != file:
                wrong.append(f"{file}: its name {dialect.name!r} is that of {other}, too")
        except FormatError as error:
            wrong.append(str(error))
    if wrong:
        raise FormatError("; ".join(wrong))
    return tuple(dialects)


def format_of(path: Path, data: bytes) -> Format:
    """The format in a file's text, which gives for its samples what it says. Raises FormatError."""
    from megatron_monitor.config.yaml_text import read_yaml  # PyYAML is a tenth of a start, and most need none

    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FormatError(f"{path}:{line}: not UTF-8 text, from byte {error.start}") from error
    document = read_yaml(text)
    if document.value is None and not document.problems:
        raise FormatError(f"{path}:1: is empty; `megatron-monitor formats NAME` prints an example")
    dialect = decode(document, Format) if not document.problems else None
    if dialect is not None:
        for index, trouble in differences(dialect, rules_with((dialect,))):
            document.problem(("samples", index), trouble)
    if dialect is None or document.problems:
        problems = document.problems[:_SHOWN]
        shown = [f"{path}:{f'{problem.line}:' if problem.line else ''} {problem}" for problem in problems]
        more = len(document.problems) - len(shown)
        raise FormatError("; ".join([*shown, *([f"and {more} more"] if more else [])]))
    return dialect


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise FormatError(f"{file}: cannot be read: {error.strerror or error}") from error
    if len(data) > _MOST_BYTES:
        raise FormatError(f"{file}: is longer than {_MOST_BYTES // 1024} KiB")
    return data

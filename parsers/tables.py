"""Reads data files beside the code: TOML and CSV tables, and the YAML files that describe the lines of formats."""

import csv
import sys
import tomllib
from contextlib import suppress
from importlib import resources
from importlib.util import cache_from_source
from pkgutil import get_data
from typing import Any, TypeVar
from zlib import crc32

import msgspec

T = TypeVar("T")


def table_in(package: str, name: str) -> dict[str, Any]:
    """Return the contents of a package's TOML file."""
    data = get_data(package, name)
    assert data is not None
    return tomllib.loads(data.decode())


def rows_of(package: str, name: str, row: type[T]) -> list[T]:
    """Return the lines of a package's CSV file below its head, without those that begin with `#`. An empty cell is
    unknown.
    """
    data = get_data(package, name)
    assert data is not None
    lines = csv.reader(line for line in data.decode().splitlines() if not line.startswith("#"))
    cells = [[cell or None for cell in line] for line in lines]
    return msgspec.convert(cells[1:], list[row], strict=False)  # type: ignore[valid-type]


def documents_in(package: str, kind: type[T]) -> T:
    """Return the contents of a package's YAML files, by name without `.yaml`, as a mapping of this type.

    They are kept as JSON with Python's own compiled files, because YAML takes a sixth of the start. The copy is used
    while the files are those of which it was made.
    """
    folder = resources.files(package)
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    texts = {file.name.removesuffix(".yaml"): file.read_bytes() for file in files}
    of = b"%d" % crc32(b"\0".join(name.encode() + b"\0" + text for name, text in texts.items()))
    copy: Any = folder / cache_from_source(str(folder / "documents.py")).replace(".pyc", ".json")
    with suppress(OSError, msgspec.MsgspecError):
        made_of, _, known = copy.read_bytes().partition(b"\n")
        if made_of == of:
            return msgspec.json.decode(known, type=kind)
    from secrets import token_hex

    import yaml  # it takes a tenth of the start

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C if there is one
    documents = {name: yaml.load(text, loader) for name, text in texts.items()}  # noqa: S506 - a safe one
    if not sys.dont_write_bytecode:
        with suppress(OSError, AttributeError):  # nothing can be written into a zip file
            copy.parent.mkdir(parents=True, exist_ok=True)
            fresh = copy.with_suffix(f".{token_hex(4)}")
            fresh.write_bytes(of + b"\n" + msgspec.json.encode(documents))
            fresh.replace(copy)
    return msgspec.convert(documents, kind)

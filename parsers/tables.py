"""Reads data files beside the code: TOML tables, and the YAML files that describe the lines of formats."""

import hashlib
import secrets
import sys
import tomllib
from contextlib import suppress
from importlib import resources
from pkgutil import get_data
from typing import Any

import msgspec
import yaml


class _Copy(msgspec.Struct):
    of: str
    """The hash of the files."""
    documents: dict[str, Any]


def table_in(package: str, name: str) -> dict[str, Any]:
    """Return the contents of a package's TOML file."""
    data = get_data(package, name)
    assert data is not None
    return tomllib.loads(data.decode())


def documents_in(package: str) -> dict[str, Any]:
    """Return the contents of a package's YAML files, by name without `.yaml`.

    They are kept as JSON with Python's own compiled files, because YAML takes a sixth of the start. The copy is used
    while the files are those of which it was made.
    """
    folder = resources.files(package)
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    texts = {file.name.removesuffix(".yaml"): file.read_bytes() for file in files}
    of = hashlib.sha256(b"\0".join(name.encode() + b"\0" + text for name, text in texts.items())).hexdigest()
    copy = folder / "__pycache__" / "documents.json"
    with suppress(OSError, msgspec.MsgspecError):
        known = msgspec.json.decode(copy.read_bytes(), type=_Copy)
        if known.of == of:
            return known.documents
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C if there is one
    documents = {name: yaml.load(text, loader) for name, text in texts.items()}  # noqa: S506 - a safe one
    if not sys.dont_write_bytecode:
        with suppress(OSError, AttributeError):  # nothing can be written into a zip file
            fresh: Any = copy.with_suffix(f".{secrets.token_hex(4)}")  # type: ignore[attr-defined]
            fresh.write_bytes(msgspec.json.encode(_Copy(of, documents)))
            fresh.replace(copy)
    return documents

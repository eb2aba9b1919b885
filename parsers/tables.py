"""Reads data files beside the code: TOML tables, and the YAML files that describe the lines of formats."""

import tomllib
from importlib import resources
from pkgutil import get_data
from typing import Any

import yaml


def table_in(package: str, name: str) -> dict[str, Any]:
    """Return the contents of a package's TOML file."""
    data = get_data(package, name)
    assert data is not None
    return tomllib.loads(data.decode())


def documents_in(package: str) -> dict[str, Any]:
    """Return the contents of a package's YAML files, by name without `.yaml`."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    files = sorted(resources.files(package).iterdir(), key=lambda file: file.name)
    texts = {file.name.removesuffix(".yaml"): file.read_bytes() for file in files if file.name.endswith(".yaml")}
    return {name: yaml.load(text, loader) for name, text in texts.items()}  # noqa: S506 - a safe one, in C if there is

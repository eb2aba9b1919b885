"""Data files beside the code."""

import sys
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import pytest

from megatron_monitor.parsers.tables import documents_in as read


def test_the_compiled_copy_is_that_of_the_present_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is used, made anew after a change, and not believed if it is damaged."""
    package = tmp_path / "documents_of_a_test"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "one.yaml").write_text("a: 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "compiled"))
    copy = Path(cache_from_source(str(package / "documents.py"))).with_suffix(".json")

    def documents_in(name: str) -> dict[str, Any]:
        return read(name, dict[str, Any])

    assert documents_in(package.name) == {"one": {"a": 1}}
    copy.write_text(copy.read_text().replace('{"a":1}', '{"a":2}'))
    assert documents_in(package.name) == {"one": {"a": 2}}
    (package / "one.yaml").write_text("a: 3\n")
    assert documents_in(package.name) == {"one": {"a": 3}}
    copy.write_text("{")
    assert documents_in(package.name) == {"one": {"a": 3}}
    assert list(copy.parent.glob("documents.*")) == [copy]

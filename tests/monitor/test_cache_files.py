"""What is kept between two starts: only what nobody else can have written is believed."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from megatron_monitor.parsers.engine import search
from megatron_monitor.system.cache_files import CacheFiles

LITERALS = (b"iteration", b"CUDA", b"| 0")
TEXT = b"iteration 0 | 0\nCUDA\n" * 3


def _change(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"?")


def _link(path: Path) -> None:
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


SPOILT: dict[str, Callable[[Path], object]] = {
    "a byte is another": _change,
    "it is cut": lambda path: os.truncate(path, 20),
    "others may write it": lambda path: path.chmod(0o666),
    "others may write its directory": lambda path: path.parent.chmod(0o777),
    "it is a link": _link,
    "it is a pipe": _pipe,
    "it is gone": Path.unlink,
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_spoilt(tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    """It is read as it was kept, and not at all once somebody else may have changed it."""
    files = CacheFiles(tmp_path / "cache")
    files.write("one", b"data")
    assert files.read("one") == b"data"
    spoil(files.directory / "one")
    assert files.read("one") is None


def test_foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's directory is neither read nor written."""
    files = CacheFiles(tmp_path / "cache")
    files.write("one", b"data")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    files.write("two", b"data")
    assert files.read("one") is None
    assert [path.name for path in files.directory.iterdir()] == ["one"]


def test_no_place() -> None:
    """Where nothing can be written nothing is kept, and nothing is raised."""
    files = CacheFiles(Path("/dev/null/cache"))
    files.write("one", b"data")
    assert files.read("one") is None


class _Counted(CacheFiles):
    reads = writes = 0

    def read(self, name: str) -> bytes | None:
        self.reads += 1
        return super().read(name)

    def write(self, name: str, data: bytes) -> None:
        self.writes += 1
        super().write(name, data)


def test_database(tmp_path: Path) -> None:
    """Hyperscan's database is compiled once, found again, made anew for other literals and where it was spoilt; the
    hits are the same each time.
    """
    pytest.importorskip("hyperscan")
    kept, expected = _Counted(tmp_path / "cache"), search.plain(LITERALS)(TEXT)

    def hits(literals: tuple[bytes, ...] = LITERALS) -> search.Hits:
        found = search.compiled(literals, kept)
        assert found is not None
        return found(TEXT)

    assert hits() == hits() == expected
    assert (kept.reads, kept.writes) == (2, 1)
    assert hits((b"0",)) == search.plain((b"0",))(TEXT)
    assert kept.writes == 2
    for path in kept.directory.iterdir():
        kept.write(path.name, b"no database")  # whole, and nothing that this Hyperscan can load
    assert hits() == expected
    assert kept.writes == 5

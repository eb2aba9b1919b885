"""Rows as JSON lines, written as they come, in a file that a second call goes on with.

A line is a row's columns as in `--format json`, and `files`: [path, bytes, ns of the last writing] of what it was read
from. Files without a run have a line too, with `run` null, so that they are not read again.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from monitor.archive.tasks import Done, Reading, Stamp, Task
from monitor.reports import columns


def lines_of(task: Task, reading: Reading) -> Iterator[dict[str, Any]]:
    """What is written of a task that was read."""
    left = {stamp[0]: stamp for stamp in task.stamps}
    for row in reading.rows:
        yield {**columns.as_json(row, None), "files": [stamp for stamp in task.stamps if stamp[0] in row.sources]}
        left = {path: stamp for path, stamp in left.items() if path not in row.sources}
    if left:
        yield {"run": None, "notes": reading.problems, "files": list(left.values())}


def write(stream: TextIO, lines: Iterable[dict[str, Any]]) -> None:
    """Each as a line, all the way to the file."""
    stream.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    stream.flush()


class RowFile:
    """The file at `path`, with the rows that it had when it was opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = list(_read(path))

    @property
    def known(self) -> dict[str, Stamp]:
        """By path: the files whose rows it has."""
        return {path: (path, size, at) for line in self._lines for path, size, at in line["files"]}

    @property
    def rows(self) -> int:
        """How many it has now."""
        return sum(line["run"] is not None for line in _read(self._path))

    def without(self, groups: Sequence[Task]) -> list[Task]:
        """The groups of which it does not have all; what it has of those is made anew, and leaves it."""
        while True:
            known = self.known
            left = [group for group in groups if any(known.get(stamp[0]) != stamp for stamp in group.stamps)]
            gone = {stamp[0] for group in left for stamp in group.stamps} | (known.keys() - _paths(groups))
            kept = [line for line in self._lines if gone.isdisjoint(path for path, _, _ in line["files"])]
            if len(kept) == len(self._lines):
                self._replace(kept)
                return left
            self._lines = kept

    def append(self) -> TextIO:
        """To write to its end."""
        return self._path.open("a", encoding="utf-8")

    def exchange(self, old: Sequence[Done], new: Done) -> None:
        """What several tasks gave for what they give when they are read together."""
        gone = _paths(task for task, _ in old)
        kept = [line for line in _read(self._path) if gone.isdisjoint(path for path, _, _ in line["files"])]
        self._replace([*kept, *lines_of(*new)])

    def _replace(self, lines: Iterable[dict[str, Any]]) -> None:
        beside = self._path.with_name(self._path.name + ".new")
        with beside.open("w", encoding="utf-8") as stream:
            write(stream, lines)
            os.fsync(stream.fileno())
        os.replace(beside, self._path)


def _paths(tasks: Iterable[Task]) -> set[str]:
    return {stamp[0] for task in tasks for stamp in task.stamps}


def _read(path: Path) -> Iterator[dict[str, Any]]:
    """Its whole lines; the last one may have been cut by a kill."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as stream:
        for text in stream:
            try:
                line = json.loads(text)
                known = [(str(name), int(size), int(at)) for name, size, at in line["files"]]
            except (ValueError, TypeError, KeyError):
                continue
            yield {**line, "files": known}

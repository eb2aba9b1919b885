"""The files that PATH arguments mean: files, directories, globs, and - for standard input."""

from __future__ import annotations

import os
from collections.abc import Iterator

import click

from monitor.follow.discovery import Walk, plan
from monitor.follow.mounts import read_mounts
from monitor.follow.os_layer import OsLayer
from monitor.follow.patterns import Watch, has_magic


def files_of(paths: tuple[str, ...]) -> Iterator[str]:
    """Every file once named, in order; what matches nothing is said on standard error."""
    for path in paths:
        if path == "-":
            yield path
            continue
        found = _found(path)
        if not found and not has_magic(path):
            found = [path]  # so that opening it tells why
        elif not found:
            click.echo(f"{path}: no file matches", err=True)
        yield from found


def _found(path: str) -> list[str]:
    """The files that the daemon would follow for PATH, in the order of their names."""
    planned = plan([Watch(path)], read_mounts(), os.path.realpath)
    walk = Walk(OsLayer(), [job for jobs in planned.values() for job in jobs], frozenset())
    return sorted({step.path for step in walk.run() if step is not None})

"""Tables beside the code as CSV: facts that people add to. Pure."""

import csv
from pkgutil import get_data
from typing import TypeVar

import msgspec

T = TypeVar("T")


def rows_of(package: str, name: str, row: type[T]) -> list[T]:
    """Return the lines of a package's table below its head. An empty cell is unknown."""
    data = get_data(package, name)
    assert data is not None
    cells = [[cell or None for cell in line] for line in csv.reader(data.decode().splitlines())]
    return msgspec.convert(cells[1:], list[row], strict=False)  # type: ignore[valid-type]

"""A real Prometheus on the backfilled day, ended by its fixture."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests import programs
from tests.grafana.history import DAY, write

END = 1_763_000_000.0  # any moment that is past: backfilled data is not now
STEP = 60.0


class Prometheus(programs.Prometheus):
    """Asked at the end of that day, or over its last seconds."""

    def at(self, expression: str, at: float = END) -> list[dict[str, Any]]:
        """Series with their value."""
        return self.instant(expression, at)

    def over(self, expression: str, seconds: float = DAY, step: float = 120.0) -> list[dict[str, Any]]:
        """Series with their values."""
        return self.range(expression, END - seconds, END, step)

    def values(self, expression: str, *labels: str) -> dict[Any, float]:
        """The value of each series by its labels (one label: its text; several: a tuple)."""
        found = {}
        for series in self.at(expression):
            key = tuple(series["metric"].get(label, "") for label in labels)
            found[key[0] if len(labels) == 1 else key] = float(series["value"][1])
        return found

    def one(self, expression: str) -> float:
        """The value of an expression that has one series."""
        (series,) = self.at(expression)
        return float(series["value"][1])


@pytest.fixture(scope="session")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Debian's Prometheus with the day in its store."""
    folder = tmp_path_factory.mktemp("prometheus")
    write(folder / "day.om", END, STEP)
    with programs.prometheus_on_blocks(folder, folder / "day.om") as server:
        yield Prometheus(server.address)

"""Lowest and highest values of the last minute: what a scrape now and then would not see. Pure.

Prometheus asks every 15 to 60 s; a run of 2 s an iteration finishes eight to thirty between two questions. Not "since
the last scrape": two that ask would take each other's values.
"""

from dataclasses import dataclass, field

SECONDS = 60.0
"""No longer interval between two scrapes loses an iteration; a value is shown for twice as long at most."""


@dataclass(slots=True)
class Recent:
    """Two stretches of a minute, the older one given up when the next begins. Name -> [lowest, highest]."""

    began: float | None = None
    last: float = 0.0
    now: dict[str, list[float]] = field(default_factory=dict)
    before: dict[str, list[float]] = field(default_factory=dict)

    def add(self, at: float, **values: float | None) -> None:
        """Values at an instant; what is unknown or no finite number is left out."""
        if self.began is None or not 0.0 <= at - self.began < SECONDS:
            self.before = self.now if self.began is not None and 0.0 <= at - self.last < SECONDS else {}
            self.now, self.began = {}, at
        self.last = at
        for name, value in values.items():
            if value is None or value - value != 0.0:
                continue
            bounds = self.now.get(name)
            if bounds is None:
                self.now[name] = [value, value]
            elif value < bounds[0]:
                bounds[0] = value
            elif value > bounds[1]:
                bounds[1] = value

    def bounds(self, name: str) -> tuple[float, float] | None:
        """(lowest, highest); None where nothing was told."""
        known = [bounds for bounds in (self.now.get(name), self.before.get(name)) if bounds is not None]
        return (min(low for low, _ in known), max(high for _, high in known)) if known else None

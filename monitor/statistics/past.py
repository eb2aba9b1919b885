"""What a run printed by iteration, thin enough to keep: learning rate, batch size, consumed samples. Pure."""

import bisect

from msgspec import Struct, field

_KEPT = 1024  # lines; the older half is thinned when they are more, for a schedule is smooth


class Past(Struct):
    """Lists of equal length, by rising iteration. Everything here can be written as JSON."""

    iterations: list[int] = field(default_factory=list)
    rates: list[float | None] = field(default_factory=list)
    batches: list[int | None] = field(default_factory=list)
    samples: list[int | None] = field(default_factory=list)

    def add(self, iteration: int, rate: float | None, batch: int | None, samples: int | None) -> None:
        """One more line. An iteration that was seen before adds nothing: it is computed again."""
        if self.iterations and iteration <= self.iterations[-1]:
            return
        self.iterations.append(iteration)
        self.rates.append(rate)
        self.batches.append(batch)
        self.samples.append(samples)
        if len(self.iterations) > _KEPT:
            self._thin()

    def _thin(self) -> None:
        half = _KEPT // 2
        self.iterations[:half] = self.iterations[:half:2]
        self.rates[:half] = self.rates[:half:2]
        self.batches[:half] = self.batches[:half:2]
        self.samples[:half] = self.samples[:half:2]

    @property
    def interval(self) -> int:
        """Iterations between the last two lines."""
        return max(1, self.iterations[-1] - self.iterations[-2]) if len(self.iterations) > 1 else 1

    def _around(self, iteration: int) -> tuple[int, int] | None:
        """The places before and after an iteration, the last two for one beyond; None before all that is known."""
        if not self.iterations or iteration < self.iterations[0]:
            return None
        after = min(bisect.bisect_left(self.iterations, iteration), len(self.iterations) - 1)
        if self.iterations[after] == iteration and after + 1 < len(self.iterations) and after == 0:
            return 0, 1
        return max(0, after - 1), after

    def rate_at(self, iteration: int) -> tuple[float, float] | None:
        """(learning rate, its change per iteration) at an iteration, as the lines around it say."""
        return self._line(self.rates, iteration)

    def samples_at(self, iteration: int) -> float | None:
        """Consumed samples at an iteration."""
        found = self._line(self.samples, iteration)
        return found[0] if found else None

    def _line(self, values: list[float | None] | list[int | None], iteration: int) -> tuple[float, float] | None:
        places = self._around(iteration)
        if places is None:
            return None
        low, high = places
        one, two = values[low], values[high]
        if one is None or two is None:
            return None
        steps = self.iterations[high] - self.iterations[low]
        if not steps and iteration != self.iterations[low]:
            return None  # one line gives no slope
        slope = (two - one) / steps if steps else 0.0
        return one + slope * (iteration - self.iterations[low]), abs(slope)

    def batches_at(self, iteration: int) -> tuple[int, int] | None:
        """(smallest, largest) batch size of the lines around an iteration."""
        places = self._around(iteration)
        around = [value for place in set(places or ()) if (value := self.batches[place])]
        return (min(around), max(around)) if around else None

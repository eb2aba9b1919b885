"""Time between the steps of DeepSpeed's engine: how often more of it is told where nothing has changed, and how soon
where 5 % of a step has been added.

    python -m benchmarks.detection.outside [--final] [--runs 150]

Each run is 2,000 steps of a loader that takes 0.1 to 30 % of a step, varies (autocorrelated by 0.5) and stumbles,
in single lines or in bursts.
"""

import argparse
import math
import random

from megatron_monitor.breakdown.outside import Outside

SEEDS = {"development": 0, "final": 3_900_000}
NOISES = {"quiet": (0.3, 0.01, 1), "noisy": (0.8, 0.03, 3), "bursts": (0.5, 0.05, 8)}
"""Name -> deviation of the logarithm, share of the lines at which it stumbles, the longest burst of such lines."""
_LINES, _FAULT, _THRESHOLD = 2000, 60, 0.02


def play(seed: int, deviation: float, stumbles: float, longest: int) -> tuple[int, int | None]:
    """(times told falsely, lines until the added 5 % is told)."""
    chance, outside = random.Random(seed), Outside()
    share, noise, burst, false = 10 ** chance.uniform(-3, -0.5), 0.0, 0, 0
    for line in range(_LINES + _FAULT):
        slow = line >= _LINES
        noise = 0.5 * noise + chance.gauss(0, deviation * math.sqrt(0.75))
        took = share * math.exp(noise) + (0.05 * (1 + share) if slow else 0.0)
        if not burst and chance.random() < stumbles:
            burst = chance.randint(1, longest)
        if burst:
            burst -= 1
            took += chance.expovariate(5.0)
        if outside.add(line, (took, 1 + took), float(line), _THRESHOLD, lambda _: 0.0) and outside.longer is not None:
            if slow:
                return false, line - _LINES + 1
            false += 1
    return false, None


def main() -> None:
    """Print a row for each noise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--final", action="store_true")
    parser.add_argument("--runs", type=int, default=150)
    options = parser.parse_args()
    first = SEEDS["final" if options.final else "development"]
    for name, noise in NOISES.items():
        played = [play(first + number, *noise) for number in range(options.runs)]
        after = sorted(lines for _, lines in played if lines is not None)
        middle = after[len(after) // 2] if after else None
        print(f"{name}: {sum(false for false, _ in played)} false in {options.runs * _LINES} lines; "
              f"{len(after)} of {options.runs} found, half of them within {middle} lines")  # fmt: skip


if __name__ == "__main__":
    main()

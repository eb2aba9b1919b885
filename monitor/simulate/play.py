"""Writes a scenario's log, at once or in real time."""

from __future__ import annotations

from typing import IO

from monitor.clock import Clock
from monitor.simulate.scenario import Scenario
from monitor.simulate.timeline import timeline


def write(scenario: Scenario, stream: IO[bytes], speed: float | None = None, clock: Clock | None = None) -> None:
    """Write the log to `stream`. With `speed`, each text at its time divided by it, flushed; else at once.

    A `buffered` fault holds texts back and lets them go in bursts, as a launcher's buffer does.
    """
    burst = next((fault for fault in scenario.faults if fault.kind == "buffered"), None)
    released = 0.0
    began = clock.monotonic() if clock is not None else 0.0
    for emission in timeline(scenario):
        due = emission.at
        if burst is not None and emission.truth is not None and emission.truth.get("iteration", 0) >= burst.at:
            released = max(released, due - due % burst.seconds + burst.seconds)
        due = max(due, released)
        if speed is not None and clock is not None:
            clock.sleep(began + due / speed - clock.monotonic())
        stream.write(emission.text.encode())
        if speed is not None:
            stream.flush()
    stream.flush()

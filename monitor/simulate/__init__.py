"""Synthetic training logs with faults: for the demo, for tests of alert routes, and for the test suite.

`timeline` is deterministic for a scenario. `write` writes it at once or in real time.
"""

from megatron_monitor.simulate.scenario import FAULTS, PROGRAMS, Fault, Scenario
from megatron_monitor.simulate.timeline import Emission, timeline, write

__all__ = ["FAULTS", "PROGRAMS", "Emission", "Fault", "Scenario", "timeline", "write"]

"""Synthetic training logs with faults: for the demo, drills of alert routes, and tests.

`timeline` is deterministic from the scenario; `write` plays it at once or in real time.
"""

from megatron_monitor.simulate.scenario import FAULTS, PROGRAMS, WITH_MEGATRON_SETUP, Fault, Scenario
from megatron_monitor.simulate.timeline import Emission, timeline, write

__all__ = ["FAULTS", "PROGRAMS", "WITH_MEGATRON_SETUP", "Emission", "Fault", "Scenario", "timeline", "write"]

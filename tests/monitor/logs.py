"""Simulated logs as files that stand still."""

from __future__ import annotations

import os
from pathlib import Path

from monitor.simulate import Fault, Scenario, timeline

WRITTEN = 1_700_000_000
"""Unix seconds of the last change."""


def log(path: Path, data: bytes) -> Path:
    """The file, written at WRITTEN."""
    path.write_bytes(data)
    os.utime(path, (WRITTEN, WRITTEN))
    return path


def simulated(kind: str | None = None, dialect: str = "megatron-lm", iterations: int = 420, seed: int = 0) -> bytes:
    """A training's log."""
    scenario = Scenario(
        dialect=dialect,
        iterations=iterations,
        seed=seed,
        eval_interval=150,
        faults=(Fault(kind, iterations // 2, factor=1.1),) if kind else (),
    )
    return b"".join(emission.text.encode() for emission in timeline(scenario))

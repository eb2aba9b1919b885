"""The daemon, twenty times as hasty in what it says to an Alertmanager: `run ...`, each a fork (tests/e2e/forks.py).

The program is the real one. Its waits that no key of the configuration sets are divided by SCALE, as the durations of
the rules and of Alertmanager's routes are.
"""

import sys
from pathlib import Path

from megatron_monitor import alerts, daemon, desk, events, incidents, poster  # noqa: F401 - a fork imports nothing
from megatron_monitor.cli import main
from megatron_monitor.commands import run  # noqa: F401
from megatron_monitor.detectors import crash

sys.path.append(str(Path(__file__).parents[2]))
from tests.e2e.forks import forked

sys.path.pop()

SCALE = 20.0
HASTENED = (
    (events, "_SAME_RUN"), (events, "_SAME_CLUSTER"), (events, "_LONGEST"), (events, "_MISSED"), (events, "_BACK"),
    (incidents, "_LINGERS"), (incidents, "_FOLLOWS"), (desk, "_ALERTS"), (poster, "_AGAIN"),
    (crash, "_WAIT"),
)  # fmt: skip

if __name__ == "__main__":
    for module, name in HASTENED:
        setattr(module, name, getattr(module, name) / SCALE)
    alerts._HANDOVER = 2.0  # a loop that turns twice a second is no quicker
    sys.argv[1:] = forked(int(sys.argv[1]))
    main()

"""The daemon, twenty times as hasty in what it says to an Alertmanager: `run ...`.

The program is the real one. Its waits that no key of the configuration sets are divided by SCALE, as the durations of
the rules and of Alertmanager's routes are.
"""

from megatron_monitor import alerts, dispatch, incident_events, incidents
from megatron_monitor.cli import main
from megatron_monitor.detectors import crash

SCALE = 20.0
HASTENED = (
    *(
        (incident_events, name)
        for name in ("_SAME_RUN", "_SAME_CLUSTER", "_MAX_GROWTH_SECONDS", "_MISSED", "_AFTER_RESTART")
    ),
    *((incidents, name) for name in ("_LINGERS", "_FOLLOWS")),
    (dispatch, "_ALERTS"),
    (dispatch, "_RETRY_SECONDS"),
    (crash, "_WAIT"),
)

if __name__ == "__main__":
    for module, name in HASTENED:
        setattr(module, name, getattr(module, name) / SCALE)
    alerts._HANDOVER = 2.0  # a loop that turns twice a second is no quicker
    main()

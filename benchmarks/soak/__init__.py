"""Half an hour of bad days: a real daemon over trainings that write, with faults at random. `make soak`.

Faults: kill -9 and SIGSTOP of the daemon, a mount whose calls do not return, rotation, a full disk for the state, a
receiver that is down, a wall clock that is set. Some trainings really hang. Counted: lines written and counted, true
hangs told, messages delivered, and everything that was told without a reason.
"""

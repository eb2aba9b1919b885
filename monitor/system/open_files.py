"""How many files the process may hold open."""

import contextlib
import resource

_MOST = 65_536  # enough for thousands of logs
_SHARE = 16  # of them are for the logs of one mount: there are other mounts, and clients


def room_for_logs() -> int:
    """Logs of one mount that may be held open. The soft limit is mostly 1024, for programs that use `select`: it is
    raised, as far as the hard one allows.
    """
    soft, hard = (one if one >= 0 else _MOST for one in resource.getrlimit(resource.RLIMIT_NOFILE))  # -1: no limit
    if soft < (wanted := min(hard, _MOST)):
        with contextlib.suppress(ValueError, OSError):  # forbidden to us
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return min(soft, _MOST) // _SHARE

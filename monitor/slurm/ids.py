"""Where the id of a run's job is found: the configured pattern, the log, the path, the daemon's own environment. Pure.

Only digits (with `_7` for a task of an array) are ever taken, so that nothing else can become an argument.
"""

from __future__ import annotations

import re
from typing import Final

from monitor.run.job import Candidate
from monitor.scalars import compiled

_ID: Final = re.compile(r"[1-9]\d{0,9}(?:_\d{1,9})?", re.ASCII)
# slurm-1234.out, slurm-1234_7.out: Slurm's own names, `slurm-%j.out` and `slurm-%A_%a.out`
_OWN: Final = re.compile(r"slurm[-_]([1-9]\d{0,9}(?:_\d{1,9})?)\.\w{1,8}", re.ASCII)
# 1234.out, tr11-176B-1234.log, train.o1234, job_1234_7.err, train-1234-node03.out: the last number of the stem
_LAST: Final = re.compile(r"(?:^|[-_.oe])([1-9]\d{2,9}(?:_\d{1,9})?)(?:[-_.](?!.*\d{3})[\w.-]*)?$", re.ASCII)
_SEARCH_SECONDS: Final = 0.5  # for a pattern that a person wrote; a path is short


def candidate(path: str, logged: str | None, own: str | None, pattern: str | None) -> Candidate | None:
    """The id of the job that writes `path`. `logged`: SLURM_JOB_ID in the log; `own`: in the daemon's environment."""
    name = path.rpartition("/")[2]
    if pattern is not None:
        try:
            found = compiled(pattern).search(path, timeout=_SEARCH_SECONDS)
        except TimeoutError:
            found = None
        return _valid(found["job"] if found else None)
    for text in (logged, _first(_OWN, name)):
        if (known := _valid(text)) is not None:
            return known
    if (guess := _first(_LAST, name)) is not None:
        return Candidate(guess, proven=False)
    return _valid(own)


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return match[1] if match else None


def _valid(text: str | None) -> Candidate | None:
    return Candidate(text, proven=True) if text is not None and _ID.fullmatch(text) else None

"""Job ids in texts: in a path, in what a log prints. Pure; what of them is believed monitor/identity/ decides.

Only digits (with `_7` for a task of an array) are ever taken, so that nothing else can become an argument.
"""

import re
from typing import Final

from megatron_monitor.parsers.patterns import lazy
from megatron_monitor.scalars import compiled

_ID: Final = lazy(r"[1-9]\d{0,9}(?:_\d{1,9})?", re.ASCII)
# slurm-1234.out, slurm-1234_7.out: Slurm's own names, `slurm-%j.out` and `slurm-%A_%a.out`
_OWN: Final = lazy(r"slurm[-_]([1-9]\d{0,9}(?:_\d{1,9})?)\.\w{1,8}", re.ASCII)
# 1234.out, tr11-176B-1234.log, train.o1234, job_1234_7.err: the last number of the stem. A node's name may stand behind
# it: train-1234-node03.out, and train-1234-nid006149.out of `%x-%j-%N`
_LAST: Final = lazy(
    r"(?:^|[-_.oe])([1-9]\d{2,9}(?:_\d{1,9})?)"
    r"(?:[-_.](?:(?!.*\d{3})[\w.-]*|[A-Za-z]\w*(?:-\d{1,3})*(?:\.\w{1,8})?))?$",
    re.ASCII,
)
_SEARCH_SECONDS: Final = 0.5  # for a pattern that a person wrote; a path is short


def valid(text: str | None) -> str:
    """The text if it is a job's id, else nothing."""
    return text if text is not None and _ID.fullmatch(text) else ""


def by_pattern(path: str, pattern: str) -> str:
    """What the group `job` of the operator's pattern finds in the path; empty if that is nothing, or no id."""
    try:
        found = compiled(pattern).search(path, timeout=_SEARCH_SECONDS)
    except TimeoutError:
        found = None
    return valid(found["job"] if found else None)


def own_form(path: str) -> str:
    """The id in a name that Slurm itself gives to a job's output."""
    return valid(_first(_OWN, path.rpartition("/")[2]))


def last_number(path: str) -> str:
    """The number at the end of the file's name, which may be a job's id."""
    return valid(_first(_LAST, path.rpartition("/")[2]))


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return match[1] if match else None

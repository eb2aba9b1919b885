"""Finds job ids in texts: in a path or a log. Pure. monitor/identity/ decides which of them are trusted.

Only digits (with `_7` for a task of an array) are accepted, so that nothing else can become an argument of a command.
"""

import re
from typing import Final

from megatron_monitor.parsers.patterns import lazy
from megatron_monitor.scalars import found_group

_ID: Final = lazy(r"[1-9]\d{0,9}(?:_\d{1,9})?", re.ASCII)
# slurm-1234.out, slurm-1234_7.out: Slurm's own names, `slurm-%j.out` and `slurm-%A_%a.out`
_SLURM_NAME: Final = lazy(r"slurm[-_]([1-9]\d{0,9}(?:_\d{1,9})?)\.\w{1,8}", re.ASCII)
# 1234.out, tr11-176B-1234.log, train.o1234, job_1234_7.err: the last number of the stem. A node's name may follow it:
# train-1234-node03.out, and train-1234-nid006149.out from `%x-%j-%N`
_LAST: Final = lazy(
    r"(?:^|[-_.oe])([1-9]\d{2,9}(?:_\d{1,9})?)"
    r"(?:[-_.](?:(?!.*\d{3})[\w.-]*|[A-Za-z]\w*(?:-\d{1,3})*(?:\.\w{1,8})?))?$",
    re.ASCII,
)


def valid(text: str | None) -> str:
    """Return the text if it is a job id, else ""."""
    return text if text is not None and _ID.fullmatch(text) else ""


def by_pattern(path: str, pattern: str) -> str:
    """Return the id in the group `job` of the operator's pattern, or "" if there is none."""
    return valid(found_group(pattern, path, "job"))


def own_form(path: str) -> str:
    """Return the id in a name that Slurm itself gives to a job's output."""
    return valid(_first(_SLURM_NAME, path.rpartition("/")[2]))


def last_number(path: str) -> str:
    """Return the number at the end of the file's name, which may be a job id."""
    return valid(_first(_LAST, path.rpartition("/")[2]))


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return match[1] if match else None

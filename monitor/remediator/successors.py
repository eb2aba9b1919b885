"""Which jobs in the queue go on where one ends: they wait for its end, or run the same command in the same directory.
Pure. Two at one checkpoint destroy it. A name tells nothing: independent trainings share one, links of a chain may not.
"""

import re
import shlex
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from megatron_monitor.run.records import SlurmJob

QUEUE_FORMAT: Final = "%A\t%F\t%K\t%r\t%E\t%S\t%j\t%Z\t%o"
"""Of squeue: job, the array's job, index in it, reason, dependency, start, name, directory, command."""
_DEPENDENCY: Final = re.compile(r"(\w+):([^,?]+)", re.ASCII)  # afterany:1701(unfulfilled), afterok:1701:1702_*+5
_SHORT: Final = {
    "A": "account", "C": "constraint", "D": "chdir", "H": "hold", "J": "job-name", "L": "licenses", "N": "nodes",
    "a": "array", "d": "dependency", "p": "partition", "q": "qos", "t": "time", "w": "nodelist", "x": "exclude",
}  # fmt: skip
_SOON: Final = 120.0
"""Seconds behind the end of a job in which one that waited for it begins; by then Slurm tells of no dependency."""


@dataclass(frozen=True, slots=True)
class Successor:
    """One of them. `follows`: it begins by itself when the job is cancelled."""

    number: str
    why: str
    held: bool
    follows: bool


def successors(
    queue: str, job: SlurmJob, commands: AbstractSet[str], but: str = "", ended: float | None = None
) -> list[Successor]:
    """`queue`: what squeue prints in QUEUE_FORMAT; `commands` that would be the same training; `but` this job. `ended`:
    when it did by itself, where what began behind it in its directory is taken for its next link.
    """
    found: list[Successor] = []
    array_of, _, task = job.array_id.partition("_")
    for line in queue.splitlines():
        fields = line.split("\t", 8)
        if len(fields) < 9:
            continue
        number, array, index, reason, dependency, start, name, directory, command = (field.strip() for field in fields)
        # Tasks of one array share everything but their index: so does what is submitted in their place.
        if number in (job.id, but) or array == array_of or (task and index.isdecimal() and index != task):
            continue
        kinds = _waits_for(job, dependency, name)
        after = float(start) - ended if start.isdecimal() and ended is not None else -1.0
        if kinds:
            why = f"waits for its end ({dependency})"
        elif directory == job.directory and command in commands:
            why = "has the same command and directory"
        elif directory == job.directory and 0.0 <= after <= _SOON:
            why = "began in the same directory as it ended"
        else:
            continue
        follows = bool(kinds & {"afterany", "afternotok", "singleton"})
        found.append(Successor(number, why, reason == "JobHeldUser", follows))
    return found


def _waits_for(job: SlurmJob, dependency: str, name: str) -> set[str]:
    """The kinds of its dependencies on the job."""
    base, _, task = job.array_id.partition("_")
    own = {job.id, job.array_id, *({base, f"{base}_*", f"{base}_{task}"} if base else ())} - {""}
    kinds = {
        kind
        for kind, jobs in _DEPENDENCY.findall(dependency)
        if own & {re.split(r"[(+]", one, maxsplit=1)[0] for one in jobs.split(":")}
    }
    return kinds | ({"singleton"} if dependency.startswith("singleton") and name == job.name else set())


def lost_option(submitted: str, command: AbstractSet[str]) -> str:
    """The first option of the line by which a job was submitted that is none of the words of the new one's `command`;
    empty: all are, or nothing is known of it.
    """
    try:
        arguments = shlex.split(submitted)[1:]
    except ValueError:
        return submitted
    kept = {word.partition("=")[0] for word in command} | {"--parsable", "--dependency", "--hold"}
    for place, word in enumerate(arguments):
        if not word.startswith("-"):
            if place and arguments[place - 1].startswith("-") and "=" not in arguments[place - 1]:
                continue  # the value of the option before it
            break  # the script
        name = word.partition("=")[0] if word.startswith("--") else f"--{_SHORT.get(word[1:2], word[1:2])}"
        if name not in kept:
            return name
    return ""

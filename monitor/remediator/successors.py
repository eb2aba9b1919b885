"""Finds queued jobs that continue a job's training: they wait for its end, or run its command in its directory. Pure.

Two jobs that write one checkpoint destroy it. Job names do not matter: independent trainings may share a name, and the
jobs of a chain may have different ones.
"""

import re
import shlex
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from megatron_monitor.remediator.plan import RefusedError
from megatron_monitor.run.records import SlurmJob

QUEUE_FORMAT: Final = "%A\t%F\t%K\t%r\t%E\t%S\t%j\t%Z\t%o"
"""For squeue: job, array job, index, reason, dependency, start, name, directory, command."""
_DEPENDENCY: Final = re.compile(r"(\w+):([^,?]+)", re.ASCII)  # afterany:1701(unfulfilled), afterok:1701:1702_*+5
_SHORT: Final = {
    "A": "account", "C": "constraint", "D": "chdir", "H": "hold", "J": "job-name", "L": "licenses", "N": "nodes",
    "a": "array", "d": "dependency", "p": "partition", "q": "qos", "t": "time", "w": "nodelist", "x": "exclude",
}  # fmt: skip
_SOON: Final = 120.0
"""Seconds after the end of a job in which a job that waited for it begins. Slurm then shows no dependency."""


@dataclass(frozen=True, slots=True)
class Successor:
    """A job that continues the training. `follows`: it begins by itself when the old job is cancelled."""

    number: str
    why: str
    held: bool
    follows: bool


def successors(
    queue: str, job: SlurmJob, commands: AbstractSet[str], but: str = "", ended: float | None = None
) -> list[Successor]:
    """Return the jobs in `queue` (squeue's output in QUEUE_FORMAT) that continue `job`, except the job `but`.

    `commands` are those of the same training. `ended`: when the job ended by itself; a job that began in its directory
    right after that counts as its continuation. Raises RefusedError for a line that cannot be
    read, because a successor may be overlooked.
    """
    found: list[Successor] = []
    array_of, _, task = job.array_id.partition("_")
    for line in filter(None, queue.split("\n")):
        if len(fields := line.strip().split("\t")) < 9:
            raise RefusedError(f"squeue shows a job whose name ends a line: {line[:80]!r}")
        number, array, index, reason, dependency, start, *rest = fields
        # A name may hold tabs, too. What could be the directory or the command counts as such.
        texts = "\t".join(rest)
        is_in_directory = f"\t{job.directory}\t" in texts
        # Tasks of one array differ in their index only, and so do jobs that are submitted in their place.
        if number in (job.id, but) or array == array_of or (task and index.isdecimal() and index != task):
            continue
        kinds = _waits_for(job, dependency, texts)
        after = float(start) - ended if start.isdecimal() and ended is not None else -1.0
        if kinds:
            why = f"waits for its end ({dependency})"
        elif is_in_directory and texts.endswith(tuple(f"\t{command}" for command in commands)):
            why = "has the same command and directory"
        elif is_in_directory and 0.0 <= after <= _SOON:
            why = "began in the same directory as it ended"
        else:
            continue
        follows = bool(kinds & {"afterany", "afternotok", "singleton"})
        found.append(Successor(number, why, reason == "JobHeldUser", follows))
    return found


def _waits_for(job: SlurmJob, dependency: str, texts: str) -> set[str]:
    """Return the kinds of dependencies on the job. `texts` begin with the name of the job that waits."""
    base, _, task = job.array_id.partition("_")
    own = {job.id, job.array_id, *({base, f"{base}_*", f"{base}_{task}"} if base else ())} - {""}
    kinds = {
        kind
        for kind, jobs in _DEPENDENCY.findall(dependency)
        if own & {re.split(r"[(+]", one, maxsplit=1)[0] for one in jobs.split(":")}
    }
    return kinds | ({"singleton"} if "singleton" in dependency and texts.startswith(f"{job.name}\t") else set())


def lost_option(submitted: str, command: AbstractSet[str]) -> str:
    """Return the first option of the line `submitted` that is missing in the new job's `command`; empty: none."""
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

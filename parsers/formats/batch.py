"""Batch systems other than Slurm: PBS and LSF say at the end of a job's output why they ended it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from parsers.engine.scan import Line, Rule
from parsers.events import Event, Failure, FailureSeen, ProcessExited, ProcessTerminated
from parsers.formats.launchers import failure_of

# `=>> PBS: job killed: walltime 3623 exceeded limit 3600`
_PBS = re.compile(r"=>> PBS: job killed: (.{1,200})")
_PBS_REASONS: tuple[tuple[str, Failure], ...] = (
    ("walltime ", "time_limit"),
    ("cput ", "time_limit"),
    ("mem ", "host_oom"),  # `mem`, `vmem`, `pvmem`
    ("node down", "node_failure"),
    ("requested job", "node_failure"),  # `node 1 (n2) requested job terminate, 'EOF' (code 1099)`
)
# `TERM_RUNLIMIT: job killed after reaching LSF run time limit.`
_LSF = re.compile(r"^(TERM_[A-Z_]{3,30}): (.{1,200})")
_LSF_REASONS: dict[str, Failure] = {
    "TERM_RUNLIMIT": "time_limit",
    "TERM_DEADLINE": "time_limit",
    "TERM_CPULIMIT": "time_limit",
    "TERM_WINDOW": "time_limit",
    "TERM_MEMLIMIT": "host_oom",
    "TERM_SWAP": "host_oom",
    "TERM_PREEMPT": "preempted",
    "TERM_LOAD": "preempted",
    "TERM_OWNER": "stopped",
    "TERM_ADMIN": "stopped",
    "TERM_FORCE_OWNER": "stopped",
    "TERM_FORCE_ADMIN": "stopped",
    "TERM_REQUEUE_OWNER": "stopped",
    "TERM_REQUEUE_ADMIN": "stopped",
    "TERM_ZOMBIE": "node_failure",
    "TERM_SLURM": "node_failure",
}
# In LSF's report at the end: `Exited with exit code 140.`, `Exited by signal 9. The CPU time used is 1 seconds.`
_LSF_EXIT = re.compile(r"^Exited (?:with exit code (\d{1,3})|by signal (\d{1,2}))\.")


def read_pbs(line: Line) -> Iterator[Event]:
    """PBS and Torque ended the job."""
    match = _PBS.search(line.text)
    if match:
        failure: Failure = next((name for words, name in _PBS_REASONS if words in f"{match[1]} "), "killed")
        yield FailureSeen(failure=failure, message=f"PBS: job killed: {match[1].strip()}", by="pbs", **line.origin)
        yield ProcessTerminated(**line.origin)


def read_lsf(line: Line) -> Iterator[Event]:
    """LSF ended the job, or saw it end."""
    text = line.text.strip()
    if match := _LSF.match(text):
        failure: Failure = _LSF_REASONS.get(match[1], "killed")
        yield FailureSeen(failure=failure, message=f"LSF: {match[2]}"[:200], **line.origin)
        yield ProcessTerminated(**line.origin)
    elif match := _LSF_EXIT.match(text):
        code = int(match[1]) if match[1] else -int(match[2])
        if code < 0 or code > 128:
            message = f"LSF: the job ended with {f'exit code {code}' if code > 0 else f'signal {-code}'}"
            yield FailureSeen(
                failure=failure_of(code), message=message, exit_code=code, consequence=True, **line.origin
            )
        yield ProcessExited(exit_code=code, launch=True, **line.origin)
    elif text == "Successfully completed.":
        yield ProcessExited(exit_code=0, launch=True, **line.origin)


RULES: tuple[Rule, ...] = (
    Rule("batch.pbs", (b"=>> PBS: job killed",), read_pbs),
    Rule(
        "batch.lsf", (b"TERM_", b"Exited with exit code ", b"Exited by signal ", b"Successfully completed."), read_lsf
    ),
)

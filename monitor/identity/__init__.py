"""Identifies a stream: its run, job and owner, and whether it is a separate training. Pure; each answer has a reason.

Input: the path, the configured patterns, the pod in the path, SLURM_JOB_ID as the set-up prints it, Slurm's facts about
a job, and the steps that the streams report. Rules:

- The path gives the name. Streams with one name are one run, until they prove the opposite: two jobs compute at once,
  or two programs compute different steps at once.
- The first job with the name keeps it; another one becomes `name:id`.
- All streams of one job are one run, whatever their names, except a second training in the job.
- A stream that repeats the steps of another is a copy.
- A job id is trusted if the operator's pattern finds it, if the set-up prints it before the attempt's first iteration,
  or if Slurm names the file as the job's output. A number in a file name only gives an id to ask Slurm about.
"""

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from zlib import crc32

from msgspec import Struct, field

from megatron_monitor.identity import job_ids as ids
from megatron_monitor.identity import naming
from megatron_monitor.owners import by_host, owner_at, pod_of, unsure_pod
from megatron_monitor.parsers.events import (
    EngineStepLogged,
    Event,
    HostSeen,
    IterationLogged,
    TrainerLogged,
    TrainerProgressed,
)
from megatron_monitor.run.restarts import JOB_VARIABLE
from megatron_monitor.run.steps.copies import Report

EARLY: Final = 64
"""First steps that are kept of a stream, to be compared with those of other streams."""
_MAX_LINE_DIGESTS: Final = 8  # first step lines that are kept as digests
_MIN_DIFFERENT_STEPS: Final = 2  # different steps after which two streams count as different


Values: TypeAlias = tuple[str | float | int | None, ...]
"""(kind of line, values that differ in another training) of a step."""
Seen: TypeAlias = Mapping[Any, Sequence[Report]]
"""Counted iteration of a run -> its reports."""
Verdict: TypeAlias = Literal["same", "ranks", "another", "unknown"]
"""`ranks`: two ranks of one training, which report the same steps with different values."""


class JobKey(NamedTuple):
    """A key that identifies a job: its id or the pod's owner, with the reason."""

    id: str
    why: str
    trusted: bool = False
    """True: from the operator's pattern or the set-up, so that remediations may use it."""


NO_KEY: Final = JobKey("", "")


class StreamIdentity(Struct, omit_defaults=True, gc=False):
    """One stream, and what is known about its identity."""

    base: str
    """The run's name by its path."""
    why: str
    """Why it belongs to its run."""
    pattern: str = ""
    label: str = ""
    """Suffix of the run's name."""
    key: str = ""
    key_why: str = ""
    trusted: bool = False
    printed: str = ""
    """A job id printed after its steps. It counts if an attempt begins after it."""
    before: str = ""
    """The trusted job before this one: both may write the stream."""
    settled: bool = False
    """True: its run is decided."""
    steps: int = 0
    early: dict[float, Values] = field(default_factory=dict)
    """First steps: number -> values of the line."""
    first_stamp: float | None = None
    last_stamp: float | None = None
    """Stamps of its first and last lines, on the log's clock."""
    arguments: str | None = None
    """The stamp of its arguments."""
    lines: tuple[int, ...] = ()
    """Digests of its first step lines."""
    rank: int | None = None
    """Rank of its first step line, if named."""
    hosts: tuple[str, str] = ("", "")
    """For a pod with an unknown owner: (host name, subdomain) as printed by its program."""
    owner: str = ""
    """The run that the host shows."""
    missing: int = 0
    """Missing iterations of a pushed stream."""
    copy_of: str = ""
    """The stream whose lines it repeats."""

    def take_key(self, key: JobKey) -> None:
        """Set the job of the stream."""
        self.before = self.key if self.trusted and differs(self.key, key.id) else self.before
        self.key, self.key_why, self.trusted = key

    def note_stamp(self, stamp: float | None) -> None:
        """Record the stamp of a line."""
        if stamp is not None:
            self.first_stamp = stamp if self.first_stamp is None else min(stamp, self.first_stamp)
            self.last_stamp = stamp if self.last_stamp is None else max(stamp, self.last_stamp)

    def note_step(self, event: Event, raw: bytes | str) -> None:
        """Record a step and its line."""
        self.steps += 1
        self.rank = event.rank if self.rank is None else self.rank
        if len(self.early) < EARLY and (report := report_of(event)) is not None:
            self.early.setdefault(*report)
            if len(self.lines) < _MAX_LINE_DIGESTS and event.kind != TrainerProgressed.kind:
                self.lines += (crc32(raw if isinstance(raw, bytes) else raw.encode()),)

    @property
    def reported_nothing(self) -> bool:
        """True if nothing so far shows a training or a job."""
        return not (self.key or self.steps or self.arguments is not None)


def key_of(path: str, job_from: str | None) -> JobKey:
    """Return the job key in a path. `job_from`: the operator's pattern, which then is the only one."""
    if job_from is not None:
        found = ids.by_pattern(path, job_from)
        return JobKey(found, "slurm.job_from finds it in the path", trusted=True) if found else NO_KEY
    if found := ids.own_form(path):
        return JobKey(found, "its file is called as Slurm calls a job's output")
    owner = owner_at(path)  # pods of one Indexed Job or JobSet are of several owners here: their names cannot tell
    return JobKey(owner.name, "the pod's name, less what its operator adds") if owner and owner.name else NO_KEY


def printed_key(value: str) -> JobKey:
    """Return the job key of `SLURM_JOB_ID=value` in the set-up; NO_KEY if the value is not an id."""
    found = ids.valid(value)
    return JobKey(found, f"{JOB_VARIABLE} before the first iteration", trusted=True) if found else NO_KEY


def candidate(member: StreamIdentity, path: str, job_from: str | None) -> JobKey:
    """Return the id to ask Slurm about; not `trusted`: Slurm must name the file as the job's output. NO_KEY: no id."""
    if member.trusted:
        return JobKey(member.key, member.key_why, trusted=True)
    found = "" if job_from is not None else ids.own_form(path) or ids.last_number(path)
    return JobKey(found, "a number in the name of its file") if found else NO_KEY


def report_of(event: Event) -> tuple[float, Values] | None:
    """Return (step number, values that differ in another training); None for a line without a step."""
    if isinstance(event, IterationLogged):
        return event.iteration, (event.kind, event.lm_loss, event.grad_norm, event.consumed_samples)
    if isinstance(event, EngineStepLogged):
        return event.step, (event.kind, event.loss, event.learning_rate)
    if isinstance(event, TrainerLogged):
        number = event.step if event.step is not None else event.epoch
        return None if number is None else (number, (event.kind, event.loss, event.grad_norm, event.learning_rate))
    if isinstance(event, TrainerProgressed):
        return event.step, (event.kind, event.total)
    return None


def differs(one: str, other: str) -> bool:
    """Return True if the keys are of two jobs. A task belongs to the job of its array."""
    return bool(one and other) and one != other and not (one.startswith(f"{other}_") or other.startswith(f"{one}_"))


def relation(one: StreamIdentity, other: StreamIdentity, seen: Seen, *, replicas: bool = False) -> Verdict:
    """Return the relation of two streams. `seen`: later steps of `other`; `replicas`: the paths show one attempt."""
    equal, unequal = _compared(one, other, seen)
    if unequal >= _MIN_DIFFERENT_STEPS and unequal > equal:
        ranks = None not in (one.rank, other.rank) and one.rank != other.rank  # each rank prints its own loss
        return "ranks" if ranks or (replicas and not are_set_up_apart(one, other)) else "another"
    if equal and (not unequal or equal > unequal):
        return "same"
    if one.steps and other.steps:
        return "same" if _are_halves(one, other) else "unknown"
    return "another" if are_set_up_apart(one, other) else "same"


def _are_halves(one: StreamIdentity, other: StreamIdentity) -> bool:
    """Return True for HF Trainer's dicts in one file of a job and its bar in the other."""
    kinds = [{values[0] for values in member.early.values()} for member in (one, other)]
    return all(len(kind) == 1 for kind in kinds) and set().union(*kinds) == {TrainerLogged.kind, TrainerProgressed.kind}


def reports_the_same(one: StreamIdentity, other: StreamIdentity, seen: Seen) -> bool:
    """Return True if common steps show that two streams report one training."""
    equal, unequal = _compared(one, other, seen)
    return equal > unequal


def _compared(one: StreamIdentity, other: StreamIdentity, seen: Seen) -> tuple[int, int]:
    """Return the number of common steps with (equal, different) values."""
    equal = unequal = 0
    for number, values in one.early.items():
        known: list[Values] = [(IterationLogged.kind, *report[:3]) for report in seen.get(number, ())]
        if number in other.early:
            known = [other.early[number]]
        if known:
            alike = any(_same(values, report) for report in known)
            equal, unequal = equal + alike, unequal + (not alike)
    return equal, unequal


def are_set_up_apart(one: StreamIdentity, other: StreamIdentity) -> bool:
    """Return True if both have printed arguments that differ."""
    return one.arguments is not None and other.arguments is not None and one.arguments != other.arguments


def owner_by_host(member: StreamIdentity, path: str, event: HostSeen) -> str:
    """Return the run of a pod with an unknown owner by its printed host (monitor/owners.py); empty if unknown."""
    pod, (host, domain) = unsure_pod(path), member.hosts
    member.hosts = event.host if event.own else host, event.domain or domain
    found = by_host(pod, *member.hosts) if pod and not member.label else None
    return f"{member.base.rpartition('/')[0]}/{found}".lstrip("/") if found else ""


def are_replicas(path: str, one: StreamIdentity, other_path: str, other: StreamIdentity) -> bool:
    """Return True if the streams are of two processes of one attempt, or of two pods of one known owner."""
    if naming.are_of_one_attempt(path, other_path):
        return True
    if one.base != other.base or any(
        unsure_pod(at) and not who.owner for at, who in ((path, one), (other_path, other))
    ):
        return False
    pods = pod_of(path), pod_of(other_path)
    return None not in pods and pods[0] != pods[1]


def is_copy(one: StreamIdentity, other: StreamIdentity) -> bool:
    """Return True if the first step lines of `one` are identical lines of `other`."""
    return bool(one.lines) and set(one.lines) <= set(other.lines)


def _same(one: Values, other: Values) -> bool:
    """Return True if no known value differs; NaN equals NaN. An engine's line and a loop's line of one step agree."""
    if one[0] != other[0]:
        return {one[0], other[0]} != {IterationLogged.kind, TrainerLogged.kind}
    pairs = [(a, b) for a, b in zip(one[1:], other[1:], strict=False) if a is not None and b is not None]
    return all(a == b or (a != a and b != b) for a, b in pairs)


def overlap(one: StreamIdentity, other: StreamIdentity) -> bool | None:
    """Return True if their lines were written at the same time, by stamps; None without stamps."""
    if one.first_stamp is None or other.first_stamp is None:
        return None
    return begins_before_end(one, other) and begins_before_end(other, one)


def begins_before_end(one: StreamIdentity, other: StreamIdentity) -> bool:
    """Return True if `one` began before the last known line of `other`, by stamps."""
    return one.first_stamp is not None and other.last_stamp is not None and one.first_stamp <= other.last_stamp


def label_of(member: StreamIdentity, path: str, other: StreamIdentity, other_path: str) -> str:
    """Return the suffix for a run whose name `other` already has: the job's id or owner, or within one job the part in
    which the file names or directories differ, or else `2`.
    """
    if differs(member.key, other.key):
        space, _, owner = member.key.rpartition("/")
        return owner if space and other.key.startswith(f"{space}/") else member.key
    number, stem = ids.last_number(path), naming.stem_of(path)
    if number and number not in (ids.last_number(other_path), member.key):
        return number
    if stem != naming.stem_of(other_path):
        return stem
    folder = posixpath.basename(posixpath.dirname(path))
    return folder if folder != posixpath.basename(posixpath.dirname(other_path)) else "2"


def page(members: Mapping[str, StreamIdentity], shared: Sequence[str]) -> dict[str, Any]:
    """Return a run's identity for the page and the API. `members`: stream -> identity."""
    known = next((one for one in members.values() if one.trusted), None)
    known = known or next((one for one in members.values() if one.key), None)
    lost = {name: f"; {one.missing} iterations did not arrive" if one.missing else "" for name, one in members.items()}
    return {
        "job": None if known is None else {"id": known.key, "why": known.key_why, "believed": known.trusted},
        "streams": [{"stream": name, "why": one.why + lost[name]} for name, one in sorted(members.items())],
        "shares_job_with": list(shared),
    }

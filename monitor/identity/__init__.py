"""What a stream of lines is a part of: run, job, owner, and whether it is a training of its own. Pure; each answer has
its reason in words.

What goes in: the path, the configured patterns, the pod that a path names, SLURM_JOB_ID as the set-up prints it, what
Slurm says of a job, and the steps that the streams tell. Laws:

- A name is a path's. Streams of one name are one run, one after the other or side by side, until they prove that they
  are not: two jobs that compute at once, or two programs that compute other steps at once.
- The job that had the name first keeps it; one beside it is `name:id`.
- All streams of one job are one run, under whatever names, but for a second training in it.
- A stream that repeats another's steps is a copy, and no training.
- A job's id is believed where the operator's pattern finds it, where the set-up prints it before the attempt's first
  iteration, and where Slurm says that the file is the job's output. A number in a name only says what to ask about.
"""

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from zlib import crc32

from msgspec import Struct, field

from megatron_monitor.config import Watch
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
from megatron_monitor.parsers.redaction import masked_path
from megatron_monitor.run.job import Candidate
from megatron_monitor.run.restarts import JOB_VARIABLE
from megatron_monitor.run.steps.copies import Report

_EARLY: Final = 64  # first steps of a stream that are remembered
_LINES: Final = 8  # of these as they stand in the file
_SURE: Final = 2  # steps after which it is believed that two streams tell the same, or not


Values: TypeAlias = tuple[str | float | int | None, ...]
"""Of a step: the kind of line, and what another training would say otherwise."""
Seen: TypeAlias = Mapping[Any, Sequence[Report]]
"""Iterations that a run has counted -> how they were reported."""
Verdict: TypeAlias = Literal["same", "ranks", "another", "unknown"]
"""`ranks`: one training, of which each tells the same steps with values of its own."""


class RunName(NamedTuple):
    """The run of a path, why it is that one, and the pattern that found it."""

    name: str
    why: str
    pattern: str


class JobKey(NamedTuple):
    """What tells jobs apart: a job's id, or the owner of a pod; and where it was found."""

    id: str
    why: str
    trusted: bool = False
    """It may be acted on: the operator's pattern or the set-up tells it."""


NO_KEY: Final = JobKey("", "")


class StreamIdentity(Struct, omit_defaults=True, gc=False):
    """One stream, and what is known of it so far."""

    base: str
    """The run's name by its path."""
    why: str
    """Why it belongs to its run."""
    pattern: str = ""
    label: str = ""
    """What the run's name has beside the path's."""
    key: str = ""
    key_why: str = ""
    trusted: bool = False
    printed: str = ""
    """The job's id that it has printed behind its steps: text, if no attempt begins behind it."""
    before: str = ""
    """The job that was believed before this one: both may write it."""
    settled: bool = False
    """Which run it belongs to is decided."""
    steps: int = 0
    early: dict[float, Values] = field(default_factory=dict)
    """Its first steps: number -> what the line says of it."""
    first_stamp: float | None = None
    last_stamp: float | None = None
    """Of its lines, on the log's own clock."""
    arguments: int | None = None
    """A digest of what its arguments say."""
    lines: tuple[int, ...] = ()
    """Digests of its first step lines."""
    rank: int | None = None
    """Of its first step line, where that names one."""
    hosts: tuple[str, str] = ("", "")
    """Of an unsure pod: its host's name and the subdomain, as its program has printed them."""
    owner: str = ""
    """The run that they tell."""
    missing: int = 0
    """Iterations of a pushed stream that never came: no restart explains the jump of their numbers."""
    copy_of: str = ""
    """The stream whose lines it repeats."""

    def take_key(self, key: JobKey) -> None:
        """It is of that job."""
        self.before = self.key if self.trusted and differs(self.key, key.id) else self.before
        self.key, self.key_why, self.trusted = key

    def note_stamp(self, stamp: float | None) -> None:
        """A line of it was written then."""
        if stamp is not None:
            self.first_stamp = stamp if self.first_stamp is None else min(stamp, self.first_stamp)
            self.last_stamp = stamp if self.last_stamp is None else max(stamp, self.last_stamp)

    def note_step(self, event: Event, raw: bytes | str) -> None:
        """It tells of a step, in this line."""
        self.steps += 1
        self.rank = event.rank if self.rank is None else self.rank
        if len(self.early) < _EARLY and (report := report_of(event)) is not None:
            self.early.setdefault(*report)
            if len(self.lines) < _LINES and event.kind != TrainerProgressed.kind:
                self.lines += (crc32(raw if isinstance(raw, bytes) else raw.encode()),)

    @property
    def reported_nothing(self) -> bool:
        """Whether it is of no training and no job, as far as it was read."""
        return not (self.key or self.steps or self.arguments is not None)

    @property
    def young(self) -> bool:
        """Has it told few steps, so that it may yet be compared?"""
        return self.steps < _EARLY


def named(path: str, watches: Sequence[Watch] = ()) -> RunName:
    """The run that the log at `path` belongs to by the configuration alone, as monitor/identity/naming.py describes."""
    path = posixpath.normpath(path)
    led = naming.watch_of(path, watches)
    name, why = naming.name_by(path, led, watches)
    return RunName(name, why, masked_path(led.pattern))


def key_of(path: str, job_from: str | None) -> JobKey:
    """What a path alone tells of its job. `job_from`: the operator's pattern, which then is the only one asked."""
    if job_from is not None:
        found = ids.by_pattern(path, job_from)
        return JobKey(found, "slurm.job_from finds it in the path", trusted=True) if found else NO_KEY
    if found := ids.own_form(path):
        return JobKey(found, "its file is called as Slurm calls a job's output")
    owner = owner_at(path)  # pods of one Indexed Job or JobSet are of several owners here: their names cannot tell
    return JobKey(owner.name, "the pod's name, less what its operator adds") if owner and owner.name else NO_KEY


def printed_key(value: str) -> JobKey:
    """What `SLURM_JOB_ID=value` in the set-up tells; nothing where that is no id."""
    found = ids.valid(value)
    return JobKey(found, f"{JOB_VARIABLE} before the first iteration", trusted=True) if found else NO_KEY


def candidate(member: StreamIdentity, path: str, job_from: str | None) -> Candidate | None:
    """The id that Slurm is to be asked about, and whether it is believed whatever Slurm calls the job's output."""
    if member.trusted:
        return Candidate(member.key, proven=True)
    if job_from is not None:
        return None
    found = ids.own_form(path) or ids.last_number(path)
    return Candidate(found, proven=False) if found else None


def report_of(event: Event) -> tuple[float, Values] | None:
    """What a line says of a step that another training would say otherwise: its number, and values. None: no step."""
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
    """Whether two keys are of two jobs: a task is one of its array's."""
    return bool(one and other) and one != other and not (one.startswith(f"{other}_") or other.startswith(f"{one}_"))


def relation(one: StreamIdentity, other: StreamIdentity, seen: Seen, *, replicas: bool = False) -> Verdict:
    """Whether two streams tell of one training. `seen`: later steps that `other` told; `mates`: they are of one
    attempt, or of two pods that one owner has made.
    """
    equal, unequal = _compared(one, other, seen)
    if unequal >= _SURE and unequal > equal:
        ranks = None not in (one.rank, other.rank) and one.rank != other.rank  # each prints a loss of its own
        return "ranks" if ranks or (replicas and not are_set_up_apart(one, other)) else "another"
    if equal and (not unequal or equal > unequal):
        return "same"
    if one.steps and other.steps:
        return "same" if _are_halves(one, other) else "unknown"
    return "another" if are_set_up_apart(one, other) else "same"


def _are_halves(one: StreamIdentity, other: StreamIdentity) -> bool:
    """HF Trainer writes its dicts to one file of a job and its bar to the other."""
    kinds = [{values[0] for values in member.early.values()} for member in (one, other)]
    return all(len(kind) == 1 for kind in kinds) and set().union(*kinds) == {TrainerLogged.kind, TrainerProgressed.kind}


def reports_the_same(one: StreamIdentity, other: StreamIdentity, seen: Seen) -> bool:
    """Whether steps that both told show that two streams are of one training."""
    equal, unequal = _compared(one, other, seen)
    return equal > unequal


def _compared(one: StreamIdentity, other: StreamIdentity, seen: Seen) -> tuple[int, int]:
    """How many steps both told with the same values, and with others."""
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
    """Whether both have told their arguments, and not the same."""
    return one.arguments is not None and other.arguments is not None and one.arguments != other.arguments


def owner_by_host(member: StreamIdentity, path: str, event: HostSeen) -> str:
    """The run of an unsure pod, if what it has printed by now tells it (monitor/owners.py)."""
    pod, (host, domain) = unsure_pod(path), member.hosts
    member.hosts = event.host if event.own else host, event.domain or domain
    found = by_host(pod, *member.hosts) if pod and not member.label else None
    return f"{member.base.rpartition('/')[0]}/{found}".lstrip("/") if found else ""


def are_replicas(path: str, one: StreamIdentity, other_path: str, other: StreamIdentity) -> bool:
    """Whether two streams are of two processes of one attempt, or of two pods that one owner has made, as labels or
    their names tell for sure.
    """
    if naming.are_of_one_attempt(path, other_path):
        return True
    if one.base != other.base or any(
        unsure_pod(at) and not who.owner for at, who in ((path, one), (other_path, other))
    ):
        return False
    pods = pod_of(path), pod_of(other_path)
    return None not in pods and pods[0] != pods[1]


def is_copy(one: StreamIdentity, other: StreamIdentity) -> bool:
    """Whether the first steps of `one` stand in `other`, letter by letter."""
    return bool(one.lines) and set(one.lines) <= set(other.lines)


def _same(one: Values, other: Values) -> bool:
    """What one of them does not say does not tell them apart, nor what only ranks differ in; NaN is the same as NaN.
    An engine tells the steps of a loop, and a bar those of whatever is beside it.
    """
    if one[0] != other[0]:
        return {one[0], other[0]} != {IterationLogged.kind, TrainerLogged.kind}
    pairs = [(a, b) for a, b in zip(one[1:], other[1:], strict=False) if a is not None and b is not None]
    return all(a == b or (a != a and b != b) for a, b in pairs)


def overlap(one: StreamIdentity, other: StreamIdentity) -> bool | None:
    """Whether their lines were written at the same time, by their stamps; None where they print none."""
    if one.first_stamp is None or other.first_stamp is None:
        return None
    return begins_before_end(one, other) and begins_before_end(other, one)


def begins_before_end(one: StreamIdentity, other: StreamIdentity) -> bool:
    """Whether `one` began before the last known line of `other`, by their stamps."""
    return one.first_stamp is not None and other.last_stamp is not None and one.first_stamp <= other.last_stamp


def label_of(member: StreamIdentity, path: str, other: StreamIdentity, other_path: str) -> str:
    """What tells a run from the one that has its name, in which `other` is: the job's id or the owner; within one job
    what its file's name has, or its directory's; of a pair of files in one directory that it is the second.
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


def digest(values: Mapping[str, str]) -> int:
    """Of arguments, the same in every process."""
    return crc32(repr(sorted(values.items())).encode("utf-8", "replace"))


def page(members: Mapping[str, StreamIdentity], shared: Sequence[str]) -> dict[str, Any]:
    """A run's identity for the page and the API. `members`: by stream."""
    known = next((one for one in members.values() if one.trusted), None)
    known = known or next((one for one in members.values() if one.key), None)
    lost = {name: f"; {one.missing} iterations never came" if one.missing else "" for name, one in members.items()}
    return {
        "job": None if known is None else {"id": known.key, "why": known.key_why, "believed": known.trusted},
        "streams": [{"stream": name, "why": one.why + lost[name]} for name, one in sorted(members.items())],
        "shares_job_with": list(shared),
    }

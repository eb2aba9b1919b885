"""Belonging: which run the lines of a stream go to, by monitor/identity/, and what waits until that is known.

The first of these rules that applies decides:

1. a name that is configured, or the path's, is the run's;
2. streams of one job under other names are of the run that computes;
3. a job of another id that computes at the same time is a run of its own, `name:id`;
4. the same steps, and steps with a loss of each rank's own, are of one training: the stream is beside the others;
5. other steps, and stamps or live steps at the same time as another training's, are a run of its own;
6. otherwise the stream tells the next attempt of the run, or an earlier one.

Lines of which this is not clear wait: until both compute at once, or the other one is over or silent for long. Set-up
lines that were taken before the steps told go with the stream to its own run.
"""

import itertools
import logging
import operator
from collections.abc import Mapping, Sequence

from megatron_monitor import identity
from megatron_monitor.core.job_index import STEP_KINDS, JobIndex
from megatron_monitor.core.run_streams import Due, RunStreams
from megatron_monitor.core.sources import Source
from megatron_monitor.core.watched import Watched
from megatron_monitor.identity import StreamIdentity, Verdict
from megatron_monitor.identity.naming import are_of_one_attempt, experiment_name
from megatron_monitor.parsers.events import (
    ArgumentsDumped,
    EnvironmentVariableSeen,
    HostSeen,
    LogEvent,
)
from megatron_monitor.run.attempts import mark_of
from megatron_monitor.run.experiments import BOUNDS, HELD_SECONDS
from megatron_monitor.run.job import OVER, RUNNING
from megatron_monitor.run.log_clock import log_clock
from megatron_monitor.run.phases import ENDED
from megatron_monitor.run.restarts import JOB_VARIABLE, printed_job
from megatron_monitor.run.state import RunState
from megatron_monitor.run.steps.copies import Report
from megatron_monitor.run.steps.step import STEP_EVENTS

_MOST = 4096  # lines that wait, or go with a stream to another run; more tell no better
_LEAST_SILENCE = 30.0  # seconds without a step after which a run whose end nobody told is believed to be over
_GAPS = 3.0  # usual gaps between two reports, the same
_SEVERAL = 3  # steps, or intervals between two reports
_FRESH = 60.0  # seconds since a file was written in which somebody may still write it
_SET_UP = {*BOUNDS, HostSeen.kind}
_log = logging.getLogger(__name__)


class Attribution:
    """Which streams wait since when, and which tell of each run and of each job."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._waiting: dict[str, float] = {}
        self.jobs = JobIndex(watched)
        self.run_streams = RunStreams(watched)
        self._warned: set[str] = set()

    # --- streams come and go ----------------------------------------------------------------------------------------

    def member(self, path: str, saved: StreamIdentity | None, run: str = "") -> tuple[StreamIdentity, str]:
        """What is known of the stream at `path`, and its run. `saved`: what was known before; `run` that it had."""
        config = self._watched.config
        named = identity.named(path, config.runs)
        member = saved or StreamIdentity("", "")
        if saved is None:
            member.take_key(identity.key_of(path, config.slurm.job_from))
        if not member.owner and member.base != named.name:  # new, or configured anew
            member.base, member.why, member.pattern = named.name, named.why, named.pattern
            run = experiment_name(named.name, member.label) if member.label else named.name
        return member, run

    def opened(self, source: Source) -> None:
        """It is followed from now on."""
        member = source.member
        if member.key:
            self.jobs.add(source)
            self._follow_key(source)
        if member.steps or member.arguments is not None:
            self.run_streams.add(source)
        self.jobs.changed(source.run)

    def dropped(self, source: Source) -> None:
        """It is followed no more."""
        self._waiting.pop(source.name, None)
        self.jobs.remove(source)
        self.run_streams.leave(source)

    def waits(self, source: Source) -> bool:
        """Is it undecided which run its lines are of?"""
        return source.name in self._waiting

    # --- lines ------------------------------------------------------------------------------------------------------

    def take(self, source: Source, entries: Sequence[LogEvent], kinds: Sequence[str], at: float, now: float) -> Due:
        """The events of a delivery; those that are to be folded now, into the run that the source has then."""
        member = source.member
        if not member.settled:
            return self._take_unsettled(source, entries, kinds, at, now)
        if EnvironmentVariableSeen.kind in kinds:
            printed = (printed_job(entry.event) for entry in reversed(entries))
            member.printed = next(filter(None, printed), member.printed)
        if not STEP_KINDS.isdisjoint(kinds):
            self._note_steps(source, entries, at)
        return self.run_streams.beyond(source, [(entries, at)])

    def _take_unsettled(
        self, source: Source, entries: Sequence[LogEvent], kinds: Sequence[str], at: float, now: float
    ) -> Due:
        member, due, run, setup_events = source.member, list[LogEvent](), source.run, list(source.setup_events)
        set_up = max([place for place, kind in enumerate(kinds) if kind in _SET_UP], default=-1)
        self.run_streams.join_replicas(source)
        for place, entry in enumerate(entries):
            if place > set_up and self._is_clear(source):
                self._note_steps(source, entries[place:], at)  # nothing behind it tells more of whose it is
                due += entries[place:]
                break
            self._note_set_up(source, entry)
            if self._may_be_another(source, entry):
                self._waiting.setdefault(source.name, now)
                source.waiting.append((entry, at))
            else:
                due.append(entry)
                if entry.event.kind in BOUNDS and len(source.setup_events) < _MOST:
                    source.setup_events.append((entry, at))
            if type(entry.event) in STEP_EVENTS:
                member.settled = member.settled or not self.waits(source)
                self._note_step(source, entry, at)
        moved = member.owner == source.run != run
        found: Due = [((entry,), when) for entry, when in (setup_events if moved else ())]
        found += self.run_streams.beyond(source, [(due, at)])
        if self.waits(source):
            return found + self.look(source, now)
        if member.steps:
            self._gather(source)
        return found

    def _is_clear(self, source: Source) -> bool:
        """Is it decided whose its lines are, and is there no other stream to compare it with?"""
        return source.member.settled and not source.member.young and not any(self.run_streams.of(source))

    def _note_set_up(self, source: Source, entry: LogEvent) -> None:
        event, member = entry.event, source.member
        if event.logged_at is not None:
            member.note_stamp(log_clock(event.logged_at))
        if isinstance(event, HostSeen) and (run := identity.owner_by_host(member, source.path, event)):
            why, member.base, member.owner = f"the host {member.hosts[0]} that its pod prints", run, run
            self._take_key(source, identity.JobKey(run, why))
            self._move(source, run, why)
        elif (printed := printed_job(event)) and not member.trusted:
            self._take_key(source, identity.printed_key(printed))
        elif isinstance(event, ArgumentsDumped) and member.arguments is None:
            member.arguments = identity.digest(event.values)
            if not self.waits(source):
                self.run_streams.add(source)

    def _take_key(self, source: Source, key: identity.JobKey) -> None:
        member = source.member
        if not key.id:
            return
        self.jobs.remove(source)
        member.take_key(key)
        self.jobs.add(source)
        self._follow_key(source)
        self.jobs.changed(source.run)

    def _follow_key(self, source: Source) -> None:
        """A stream that tells no steps goes where its job's steps are: beside the run that has the name, or under the
        name of another stream of the job.
        """
        for other in self.jobs.others(source):
            if source.member.steps or other.run == source.run or not other.member.steps or self.waits(other):
                continue
            if identity.relation(source.member, other.member, {}) == "same":
                self._move(source, other.run, f"same job as {other.name}")
                if other.member.base == source.member.base:
                    source.member.label = other.member.label

    def folded(self, source: Source) -> None:
        """A delivery of it was folded: the id that it has printed is its job's, if an attempt begins behind it."""
        run, printed = self._watched.current(source), source.member.printed
        if printed and run is not None and run.state.attempt.environment.get(JOB_VARIABLE) == printed:
            source.member.printed = ""
            self._take_key(source, identity.printed_key(printed))

    def _note_step(self, source: Source, entry: LogEvent, at: float) -> None:
        source.member.note_step(entry.event, entry.raw)
        if not self.waits(source):
            self.run_streams.add(source)
        if source.caught_up:
            source.stepped_at = at

    def _note_steps(self, source: Source, entries: Sequence[LogEvent], at: float) -> None:
        member = source.member
        for entry in entries:
            if not member.young:
                break
            if type(entry.event) in STEP_EVENTS:
                member.note_step(entry.event, entry.raw)
        last = next((entry.event for entry in reversed(entries) if type(entry.event) in STEP_EVENTS), None)
        if last is not None and last.logged_at is not None:
            member.note_stamp(log_clock(last.logged_at))
        if source.caught_up:
            source.stepped_at = at
        self.run_streams.add(source)

    # --- decisions --------------------------------------------------------------------------------------------------
    def _may_be_another(self, source: Source, entry: LogEvent) -> bool:
        """Whether the line may be of another training than the run that it would go to, or waits behind one."""
        if self.waits(source):
            return True
        is_step, member = type(entry.event) in STEP_EVENTS, source.member
        is_evidence = is_step or entry.event.kind in BOUNDS or mark_of(entry.event) is not None
        for other in self.run_streams.of(source):
            if other.member.steps and not source.caught_up and is_evidence:
                return True  # history may come before what was read, or have been told by another file
            if identity.differs(member.key, other.member.key):
                if self._is_going(other) or identity.begins_before_end(member, other.member):
                    return True
            elif not other.member.steps or not self._may_go_on(source, other):
                continue
            elif is_step or identity.are_set_up_apart(member, other.member):
                return True
        return False

    def _may_go_on(self, source: Source, other: Source) -> bool:
        """May the other still tell what shows whether both tell one training?"""
        return self._is_going(other) or not other.caught_up or are_of_one_attempt(source.path, other.path)

    def _is_going(self, source: Source) -> bool:
        """May the attempt that the stream tells of still compute?"""
        run = self._watched.current(source)
        if run is None or run.failed or (run.historical and source.caught_up):
            return False
        job = run.state.job
        return run.state.attempt.phase not in ENDED and not (job is not None and job.state in OVER)

    def look(self, source: Source, now: float, *, read: bool = False, last: bool = False) -> Due:
        """Decide of a stream that waits, if it can be decided; what is to be folded then. `read`: all that stands in it
        has come; `last`: no more will.
        """
        if not self.waits(source):
            return []
        read = read or source.caught_up
        others, unknown = list(self.run_streams.of(source)), list[Source]()
        for other in others:  # the first that tells decides: all of them tell one training
            verdict = self._verdict(source, other, now, read=read)
            if verdict == "another":
                return self._part(source, other)
            if self._is_mate(source, other, verdict):
                self.run_streams.join(source, other)
                return self._settle(source)
            if verdict == "unknown":
                unknown.append(other)
        overdue = last or self._is_overdue(source, now)
        if not overdue and any(not read or self._may_go_on(source, other) for other in unknown):
            return []  # what is still to come may show it
        if any(self._is_before(source, other) for other in others):
            source.older_state = RunState(source.run)
            source.member.why += f"; older than {others[0].name}"
        return self._settle(source)

    def _is_before(self, source: Source, other: Source) -> bool:
        """Whether it is history that ended before the other one, which has been read, and so is not what follows it."""
        if source.caught_up or not (source.member.steps and other.member.steps) or other.mtime - source.mtime < _FRESH:
            return False
        return source.member.first_stamp is None or identity.begins_before_end(source.member, other.member)

    def _is_mate(self, source: Source, other: Source, verdict: Verdict) -> bool:
        """Whether the other tells the same steps: letter by letter, as the ranks of one training do, or the same. A
        later job may compute a step again, to the letter: a job of another id tells another attempt.
        """
        member, known = source.member, other.member
        if identity.differs(member.key, known.key):
            return False
        if verdict == "same" and identity.is_copy(member, known):
            member.copy_of, member.why = other.name, f"copy of {other.name}"
            return True
        return verdict == "ranks" or (verdict == "same" and identity.reports_the_same(member, known, self._seen(other)))

    def _is_overdue(self, source: Source, now: float) -> bool:
        if len(source.waiting) >= _MOST:
            return True
        run, gap = self._watched.current(source), 0.0
        if run is not None:
            gap = (run.state.attempt.pace.predicted() or 0.0) * (run.state.attempt.log_interval or 1)
        waited = now - self._waiting[source.name]
        return not 0.0 <= waited < min(max(_LEAST_SILENCE, _GAPS * gap), 5 * HELD_SECONDS)

    def _verdict(self, source: Source, other: Source, now: float, *, read: bool) -> Verdict:
        """What `other` tells of whether the stream that waits is a training of its own."""
        member, known = source.member, other.member
        if not identity.differs(member.key, known.key):
            replicas = identity.are_replicas(source.path, member, other.path, known)
            relation = identity.relation(member, known, self._seen(other), replicas=replicas)
            if relation != "another" and not (relation == "unknown" and self._is_far(source, other)):
                return relation
        if identity.overlap(member, known):
            return "another"
        if self._is_before(source, other):
            return "same"
        if other.caught_up and not self._is_going(other):  # it is over: the next attempt
            return "unknown" if not read and identity.begins_before_end(member, known) else "same"
        return self._verdict_live(source, other, now)

    def _verdict_live(self, source: Source, other: Source, now: float) -> Verdict:
        """The same of one whose attempt may still compute, where neither steps nor stamps tell them apart."""
        member, known = source.member, other.member
        if other.stepped_at > self._waiting[source.name]:
            return "another"
        if self._runs_on(other) and identity.differs(member.key, known.key):
            return "another"
        written = now + self._watched.wall_offset - _FRESH
        if source.mtime < written or other.mtime < written:  # one of them is history
            return "same" if other.caught_up or known.last_stamp is None else "unknown"
        full = len(source.waiting) >= _MOST and not other.caught_up
        return "another" if full else "unknown"

    def _runs_on(self, source: Source) -> bool:
        """Does its job run, as Slurm has said?"""
        run = self._watched.current(source)
        return run is not None and run.state.job is not None and run.state.job.state in RUNNING

    def _is_far(self, source: Source, other: Source) -> bool:
        """Whether it has told several steps that the other, which goes on, is nowhere near."""
        run, steps = self._watched.current(other), source.member.early
        last = run.state.attempt.last_iteration if run is not None else None
        if run is None or last is None or len(steps) < _SEVERAL:
            return False
        near = _SEVERAL * (run.state.attempt.log_interval or 1)
        first_seen = min(run.state.copies.seen, default=last)
        return all(number > last + near or number < first_seen - near for number in steps)

    def _seen(self, source: Source) -> Mapping[int, Sequence[Report]]:
        """The last iterations of its run."""
        run = self._watched.current(source)
        return run.state.copies.seen if run is not None else {}

    def _part(self, source: Source, other: Source) -> Due:
        """It is a training of its own, beside the one that has the name."""
        member, before = source.member, source.run
        name = member.base
        if name == other.member.base:
            self._warn(source, other)
            label = identity.label_of(member, source.path, other.member, other.path)
            member.label = label
            name = experiment_name(member.base, label)
            near = self.run_streams.count(name)
            if near and label != member.key:
                member.label = f"{label}-{near + 1}"
                name = experiment_name(member.base, member.label)
        self._move(source, name, f"{member.why}; it computes at the same time as {other.name}")
        due: Due = [*(((entry,), at) for entry, at in source.setup_events), *self._settle(source)]
        self.jobs.changed(before)
        return due

    def _warn(self, source: Source, other: Source) -> None:
        member = source.member
        if member.pattern not in self._warned:
            message = "pattern=%r run=%r: trainings that compute at the same time have one name by its %s: %s and %s; "
            message += "each is a run of its own"
            _log.warning(message, member.pattern, member.base, member.why, other.name, source.name)
        self._warned.add(member.pattern)

    def _settle(self, source: Source) -> Due:
        """Its lines are of the run that it has."""
        self._waiting.pop(source.name, None)
        waited, source.waiting = source.waiting, []
        member = source.member
        member.settled = member.steps > 0
        if member.steps or member.arguments is not None:
            self.run_streams.add(source)
        self.jobs.changed(source.run)
        together = itertools.groupby(waited, operator.itemgetter(1))
        return self.run_streams.beyond(source, [([entry for entry, _ in group], at) for at, group in together])

    def _move(self, source: Source, run: str, why: str) -> None:
        before = source.run
        source.member.why = why
        if run == before:
            return
        self.run_streams.leave(source)
        self._watched.sources.move(source, run)
        left = self._watched.runs.get(before)
        if left is not None and not left.book.open and not self._watched.sources.of_run(before):
            self._watched.runs.drop(left)
        self._watched.save_soon = True
        for log in (before, run):
            self._watched.touch(log)
            self.jobs.changed(log)

    def _gather(self, source: Source) -> None:
        """It tells its first steps: what of its job is elsewhere comes here, or it goes there."""
        member = source.member
        for other in self.jobs.others(source):
            if other.run == source.run or self.waits(other):
                continue
            if not other.member.steps:
                self._follow_key(other)
            elif member.young and identity.relation(member, other.member, self._seen(other)) == "same":
                copied = identity.is_copy(member, other.member)
                member.copy_of = other.name if copied else ""
                self._move(source, other.run, f"{'copy of' if copied else 'same job as'} {other.name}")
                self.run_streams.join(source, other)

    def overdue(self, now: float) -> list[tuple[Source, Due]]:
        """Of those that wait: what can be decided now."""
        waiting = [source for name in self._waiting if (source := self._watched.sources.get(name)) is not None]
        return [(source, due) for source in waiting if (due := self.look(source, now))]

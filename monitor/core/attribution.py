"""Attribution: decides to which run the lines of a stream belong, by monitor/identity/.

The first rule that applies decides:

1. the configured name, or else the path's name, is the run;
2. streams of one job under other names belong to the run with the job's steps;
3. a job with another id that computes at the same time is a separate run, `name:id`;
4. a stream with the same steps, or with steps that have a loss per rank, is a replica in the same run;
5. other steps, with stamps or live steps at the same time as another training's, are a separate run;
6. otherwise the stream reports the next attempt of the run, or an earlier one.

Undecided lines wait until both trainings compute at once, or the other one is over or silent for long. Set-up lines
that were applied before the decision move with the stream to its separate run.
"""

import itertools
import logging
import operator
from collections.abc import Mapping, Sequence

from megatron_monitor import identity
from megatron_monitor.core import run_streams
from megatron_monitor.core.job_index import STEP_KINDS, JobIndex
from megatron_monitor.core.run_streams import Due
from megatron_monitor.core.saved import SavedSource
from megatron_monitor.core.sources import Source
from megatron_monitor.core.watched import Watched
from megatron_monitor.identity import StreamIdentity, Verdict, naming
from megatron_monitor.identity.naming import are_of_one_attempt, are_parts_of_one_log, experiment_name
from megatron_monitor.parsers.events import (
    ArgumentsDumped,
    EnvironmentVariableSeen,
    HostSeen,
    LogEvent,
)
from megatron_monitor.run.experiments import BOUNDS, HELD_SECONDS
from megatron_monitor.run.job import OVER, RUNNING
from megatron_monitor.run.log_clock import log_clock
from megatron_monitor.run.phases import ENDED
from megatron_monitor.run.restarts import JOB_VARIABLE, printed_job, stamp_of
from megatron_monitor.run.state import RunState
from megatron_monitor.run.steps.copies import Report
from megatron_monitor.run.steps.step import STEP_EVENTS

_MAX_WAITING = 4096  # lines that wait, or move to another run; more lines show no more
_MIN_SILENCE = 30.0  # seconds without a step after which a run without a reported end counts as over
_GAPS = 3.0  # the same, in usual gaps between two reports
_SEVERAL = 3  # steps, or intervals between two reports
_FRESH = 60.0  # seconds since the last write in which a file may still be written
_log = logging.getLogger(__name__)


class Attribution:
    """The waiting streams, and the reporting streams of each run and job."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._waiting: dict[str, float] = {}
        self.jobs = JobIndex(watched)
        self._warned: set[str] = set()

    # --- streams come and go ----------------------------------------------------------------------------------------

    def member(self, path: str, known: SavedSource | None) -> tuple[StreamIdentity, str]:
        """Return the identity of the stream at `path`, and its log. `known`: its saved form."""
        config, run = self._watched.config, known.run if known is not None else ""
        named = naming.named(path, config.runs)
        member = known.member if known is not None else StreamIdentity("", "")
        if known is None:
            member.take_key(identity.key_of(path, config.slurm.job_from))
        if not member.owner and member.base != named.name:  # new, or with a changed configuration
            member.base, member.why, member.pattern = named.name, named.why, named.pattern
            run = experiment_name(named.name, member.label) if member.label else named.name
        return member, run

    def opened(self, source: Source, now: float) -> None:
        """Register a stream that is followed from now on."""
        member = source.member
        if source.waiting:
            self._waiting[source.name] = now
        if member.key:
            self.jobs.add(source)
            self._follow_key(source)
        self._compare(source)
        self.jobs.changed(source.log)

    def _compare(self, source: Source) -> None:
        """Compare other streams of its log with this one, if its run is decided and it reports steps or arguments."""
        member = source.member
        if (member.steps or member.arguments is not None) and not self.waits(source):
            run_streams.add(source)

    def dropped(self, source: Source) -> None:
        """Remove a stream that is no longer followed."""
        self._waiting.pop(source.name, None)
        self.jobs.remove(source)
        run_streams.leave(source)

    def waits(self, source: Source) -> bool:
        """Return True if the run of its lines is undecided."""
        return source.name in self._waiting

    # --- lines ------------------------------------------------------------------------------------------------------

    def take(self, source: Source, entries: Sequence[LogEvent], kinds: Sequence[str], at: float, now: float) -> Due:
        """Take the events of a delivery. Return those to be folded now, into the run that the source then has."""
        member = source.member
        if not member.settled:
            return self._take_unsettled(source, entries, at, now)
        if EnvironmentVariableSeen.kind in kinds:
            printed = (printed_job(entry.event) for entry in reversed(entries))
            member.printed = next(filter(None, printed), member.printed)
        if not STEP_KINDS.isdisjoint(kinds):
            self._note_steps(source, entries, at)
        run = source.run
        if run is None or not run.state.copies.joined:
            return [(entries, at)]
        return run_streams.beyond(source, [(entries, at)])

    def _take_unsettled(self, source: Source, entries: Sequence[LogEvent], at: float, now: float) -> Due:
        """Take events of a stream whose run is undecided. They wait, and the run is decided if that is possible."""
        log, setup_events = source.log, list(source.setup_events)
        run_streams.join_replicas(source)
        self._waiting.setdefault(source.name, now)
        for entry in entries:
            self._note_set_up(source, entry)
            source.waiting.append((entry, at))
            if type(entry.event) in STEP_EVENTS:
                self._note_steps(source, (entry,), at)
        moved = source.member.owner == source.log.name and source.log is not log
        found: Due = [((entry,), when) for entry, when in (setup_events if moved else ())]
        found += self.look(source, now)
        if source.member.steps and not self.waits(source):
            self._gather(source)
        return found

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
            member.arguments = stamp_of(event)

    def _take_key(self, source: Source, key: identity.JobKey) -> None:
        member = source.member
        if not key.id:
            return
        self.jobs.remove(source)
        member.take_key(key)
        self.jobs.add(source)
        self._follow_key(source)

    def _follow_key(self, source: Source) -> None:
        """Move a stream without steps to the run that has its job's steps."""
        for other in self.jobs.others(source):
            if source.member.steps or other.log is source.log or not other.member.steps or self.waits(other):
                continue
            if identity.relation(source.member, other.member, {}) == "same":
                self._move(source, other.log.name, f"same job as {other.name}")
                if other.member.base == source.member.base:
                    source.member.label = other.member.label

    def folded(self, source: Source) -> None:
        """After a delivery was folded: a printed job id is the stream's, if an attempt began after it."""
        run, printed = source.run, source.member.printed
        if printed and run is not None and run.state.attempt.environment.get(JOB_VARIABLE) == printed:
            source.member.printed = ""
            self._take_key(source, identity.printed_key(printed))

    def _note_steps(self, source: Source, entries: Sequence[LogEvent], at: float) -> None:
        member = source.member
        for entry in entries:
            if member.steps >= identity.EARLY:
                break
            if type(entry.event) in STEP_EVENTS:
                member.note_step(entry.event, entry.raw)
        for entry in reversed(entries):
            if type(entry.event) in STEP_EVENTS:
                if entry.event.logged_at is not None:
                    member.note_stamp(log_clock(entry.event.logged_at))
                break
        if source.caught_up:
            source.stepped_at = at

    # --- decisions --------------------------------------------------------------------------------------------------
    def _may_report_more(self, source: Source, other: Source) -> bool:
        """Return True if the other stream may still show whether both report one training."""
        return self._may_compute(other) or not other.caught_up or are_of_one_attempt(source.path, other.path)

    def _may_compute(self, source: Source) -> bool:
        """Return True if the stream's attempt may still compute."""
        run = source.run
        if run is None or run.failed or (run.historical and source.caught_up):
            return False
        job = run.state.job
        return run.state.attempt.phase not in ENDED and not (job is not None and job.state in OVER)

    def look(self, source: Source, now: float, *, read: bool = False, last: bool = False) -> Due:
        """Decide the run of a waiting stream, if possible. Return the events to be folded.

        `read`: its present content is read. `last`: no more content will come.
        """
        if not self.waits(source):
            return []
        read = read or source.caught_up
        others, unknown = list(run_streams.others_of(source)), list[Source]()
        overdue = last or self._is_overdue(source, now)
        if not overdue and self._watched.awaited[source.log.name] > 0:
            return []  # other streams of an earlier process are still to be opened
        if not (read or overdue) and any(other.member.steps for other in others):
            return []  # history may precede what was read, or another file may have reported it
        for other in others:  # the first clear answer decides, because all of them report one training
            verdict = self._verdict(source, other, now, read=read)
            if verdict == "another":
                return self._separate(source, other)
            if self._is_replica(source, other, verdict):
                run_streams.join_streams(source, other)
                return self._settle(source)
            if verdict == "unknown":
                unknown.append(other)
        if not overdue and any(not read or self._may_report_more(source, other) for other in unknown):
            return []  # later lines may decide it
        if any(self._is_before(source, other) for other in others):
            source.older_state = RunState(source.log.name)
            source.member.why += f"; older than {others[0].name}"
        return self._settle(source)

    def _is_before(self, source: Source, other: Source) -> bool:
        """Return True if the stream is history that ended before the other, already read stream."""
        if source.caught_up or not (source.member.steps and other.member.steps) or other.mtime - source.mtime < _FRESH:
            return False
        return source.member.first_stamp is None or identity.begins_before_end(source.member, other.member)

    def _is_replica(self, source: Source, other: Source, verdict: Verdict) -> bool:
        """Return True if the other stream reports the same steps: identical lines, or lines of another rank.

        A job with another id is another attempt, because it may compute a step again with identical lines.
        """
        member, known = source.member, other.member
        if identity.differs(member.key, known.key):
            return False
        if verdict == "same" and identity.is_copy(member, known):
            member.copy_of, member.why = other.name, f"copy of {other.name}"
            return True
        return verdict == "ranks" or (verdict == "same" and identity.reports_the_same(member, known, self._seen(other)))

    def _is_overdue(self, source: Source, now: float) -> bool:
        if len(source.waiting) >= _MAX_WAITING:
            return True
        run, gap = source.run, 0.0
        if run is not None:
            gap = run.state.attempt.expected_gap or 0.0
        waited = now - self._waiting[source.name]
        return not 0.0 <= waited < min(max(_MIN_SILENCE, _GAPS * gap), 5 * HELD_SECONDS)

    def _verdict(self, source: Source, other: Source, now: float, *, read: bool) -> Verdict:
        """Return what `other` shows: is the waiting stream the same training, another one, or unknown?"""
        member, known = source.member, other.member
        if not identity.differs(member.key, known.key):
            replicas = identity.are_replicas(source.path, member, other.path, known)
            relation = identity.relation(member, known, self._seen(other), replicas=replicas)
            if relation == "unknown" and are_parts_of_one_log(source.path, other.path):
                return "same"
            if relation != "another" and not (relation == "unknown" and self._is_far(source, other)):
                return relation
        if identity.overlap(member, known):
            return "another"
        if self._is_before(source, other):
            return "same"
        if other.caught_up and not self._may_compute(other):  # the other is over: this is the next attempt
            return "unknown" if not read and identity.begins_before_end(member, known) else "same"
        return self._verdict_live(source, other, now)

    def _verdict_live(self, source: Source, other: Source, now: float) -> Verdict:
        """The same for a stream whose attempt may still compute, if neither steps nor stamps separate the two."""
        member, known = source.member, other.member
        if other.stepped_at > self._waiting[source.name]:
            return "another"
        if self._job_runs(other) and identity.differs(member.key, known.key):
            return "another"
        written = now + self._watched.wall_offset - _FRESH
        if source.mtime < written or other.mtime < written:  # one of them is history
            return "same" if other.caught_up or known.last_stamp is None else "unknown"
        full = len(source.waiting) >= _MAX_WAITING and not other.caught_up
        return "another" if full else "unknown"

    def _job_runs(self, source: Source) -> bool:
        """Return True if Slurm reports its job as running."""
        run = source.run
        return run is not None and run.state.job is not None and run.state.job.state in RUNNING

    def _is_far(self, source: Source, other: Source) -> bool:
        """Return True if it has reported several steps far from those of the other, live stream."""
        run, steps = other.run, source.member.early
        last = run.state.attempt.last_iteration if run is not None else None
        if run is None or last is None or len(steps) < _SEVERAL:
            return False
        near = _SEVERAL * run.state.attempt.every
        first_seen = min(run.state.copies.seen, default=last)
        return all(number > last + near or number < first_seen - near for number in steps)

    def _seen(self, source: Source) -> Mapping[int, Sequence[Report]]:
        """Return the last reports of the run, by iteration."""
        run = source.run
        return run.state.copies.seen if run is not None else {}

    def _separate(self, source: Source, other: Source) -> Due:
        """Make the stream a separate run, because another training has the name."""
        member, before = source.member, source.log
        name = member.base
        if name == other.member.base:
            self._warn(source, other)
            label = identity.label_of(member, source.path, other.member, other.path)
            member.label = label
            name = experiment_name(member.base, label)
            near = len(known.reporting) if (known := self._watched.logs.get(name)) is not None else 0
            if near and label != member.key:
                member.label = f"{label}-{near + 1}"
                name = experiment_name(member.base, member.label)
        self._move(source, name, f"{member.why}; it computes at the same time as {other.name}")
        setup_events: Due = [((entry,), at) for entry, at in source.setup_events]
        due = setup_events + self._settle(source)
        self.jobs.changed(before)
        return due

    def _warn(self, source: Source, other: Source) -> None:
        member = source.member
        if member.pattern not in self._warned:
            message = "pattern=%r run=%r: trainings that compute at the same time have the same name by %s: %s and %s; "
            message += "each becomes a separate run"
            _log.warning(message, member.pattern, member.base, member.why, other.name, source.name)
        self._warned.add(member.pattern)

    def _settle(self, source: Source) -> Due:
        """Decide that the waiting lines belong to the present run of the stream."""
        self._waiting.pop(source.name, None)
        waited, source.waiting = source.waiting, []
        member = source.member
        member.settled = member.steps > 0
        if len(source.setup_events) < _MAX_WAITING:
            source.setup_events += [one for one in waited if one[0].event.kind in BOUNDS]
        self._compare(source)
        self.jobs.changed(source.log)
        together = itertools.groupby(waited, operator.itemgetter(1))
        return run_streams.beyond(source, [([entry for entry, _ in group], at) for at, group in together])

    def _move(self, source: Source, run: str, why: str) -> None:
        before = source.log
        source.member.why = why
        if run == before.name:
            return
        run_streams.leave(source)
        self._watched.sources.move(source, run)
        self._compare(source)
        left = before.runs.get("")
        if left is not None and not left.book.open and not before.sources:
            self._watched.runs.drop(left)
        self._watched.save_soon = True
        for log in (before, source.log):
            self._watched.touch(log.name)
            self.jobs.changed(log)

    def _gather(self, source: Source) -> None:
        """After its first steps: move other streams of its job here, or this stream to their run."""
        member = source.member
        for other in self.jobs.others(source):
            if other.log is source.log or self.waits(other):
                continue
            if not other.member.steps:
                self._follow_key(other)
            elif member.steps < identity.EARLY and identity.relation(member, other.member, self._seen(other)) == "same":
                copied = identity.is_copy(member, other.member)
                member.copy_of = other.name if copied else ""
                self._move(source, other.log.name, f"{'copy of' if copied else 'same job as'} {other.name}")
                run_streams.join_streams(source, other)

    def overdue(self, now: float) -> list[tuple[Source, Due]]:
        """Return the waiting streams that can be decided now, with the events to be folded."""
        waiting = [source for name in self._waiting if (source := self._watched.sources.get(name)) is not None]
        return [(source, due) for source in waiting if (due := self.look(source, now))]

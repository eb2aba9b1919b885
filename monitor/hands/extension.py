"""Remediator: remediations act on incidents of a core's runs, and launchers are told what to do with a run.

A step is begun in the state, the state is written, then the step is handed out: after a crash it is known that it may
have been done, and it is not done again. A run is acted on only while it is followed without a gap: its files are read
to their end and can be read, and the loop has turned all the time.

    plan ──► course (saved) ── orders ──► executor ── settle ──► outcome (saved, notified)

Before a job is ended Slurm is asked for all that could refuse what comes behind it, in a dry run too; afterwards, if
the next launch begins (record.py). Where it does not, the run's state says so: an incident of its own.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import asdict, replace

from megatron_monitor.config import Config
from megatron_monitor.config.remediations import Remediation
from megatron_monitor.core import Core
from megatron_monitor.core.extension import Extension, Runtime
from megatron_monitor.core.runs import Run
from megatron_monitor.hands.executor import Executor
from megatron_monitor.hands.permission import facts_of, is_fresh, may_act
from megatron_monitor.hands.plan import Plan, course_of, describe, matches, plan
from megatron_monitor.hands.record import (
    ASK,
    ENDING,
    LOOK,
    NOT_DONE,
    Course,
    Order,
    Record,
    Step,
    StepDone,
    commands,
    order,
    told,
)
from megatron_monitor.hands.verdict import verdict_of
from megatron_monitor.incidents import Incident, Transition, amend
from megatron_monitor.run.records import Unrestarted

_AWAY: Final = 30.0  # seconds between two turns after which the daemon was away: stopped, asleep, or on a slow disk
_EVERY: Final = 1.0  # seconds between two looks at the remediations
_KEPT: Final = 30 * 86400.0  # seconds that a course is remembered
_MOST: Final = 500  # courses that are remembered
_SHOWN: Final = 10  # courses of a run that its page shows
_AGAIN: Final = 5.0  # seconds until a step is tried again that could not be done yet
_PATIENCE: Final = 1800.0  # seconds in which it is: a job that ends slowly, a controller that is being moved
_NEXT: Final = re.compile(r"(?:submitted )?job (\d+)(?: came first)?")


class Remediator(Extension):
    """The record and what is under way. Without remediations it only answers launchers, without a state directory
    (`kept`) nothing is done. `stamp` is the number of the step that was begun last.
    """

    name = "remediation"

    def __init__(self, core: Core, runtime: Runtime) -> None:
        self.record = Record()
        self.executor = Executor(runtime.clock, runtime.wake)
        self.own_job = os.environ.get("SLURM_JOB_ID", "")
        """The one that the monitor itself runs in."""
        self._core, self._save = core, runtime.save
        self._watched: dict[str, float] = {}  # run -> since when it is followed without a gap
        self._matched: dict[tuple[str, str, str, float], float] = {}  # since when an incident is one for a remediation
        self._turned_at = self._looked_at = float("-inf")
        self._news = False  # the record has changed in this turn
        self._handed: set[tuple[int, int]] = set()
        self._looking: set[int] = set()
        self.configure(core.config)

    def configure(self, config: Config) -> None:
        """Go on by these remediations; what is under way is finished."""
        self._remediations, self._slurm = config.remediations, config.slurm

    def start(self, directory: Path) -> None:
        """Stacks that are dumped lie below the state directory."""
        self.executor.directory = directory / "stacks"

    def act(self, now: float) -> Sequence[Transition]:
        """Outcomes in, messages and orders out. A step is handed out once the state says that it is begun."""
        for done in self.executor.answers():
            if (what := self.settle(done, now)) is not None:
                self._core.counts.add("actions_total", *what)
        notices = self.plan(now)
        for one in self.orders():
            self.executor.ask(one)
        return notices

    def plan(self, now: float) -> Sequence[Transition]:
        """Plan, begin and report steps; none is carried out."""
        self._core.bring_up_to_date()
        notices = self._turn(now)
        if self._news:
            self._news, self.changed = False, True
            self._save()
        return notices

    def shown_run(self, run: Run, now: float) -> Mapping[str, Any]:
        """What a launcher that asks is told."""
        incidents = run.book.open.values()
        return {
            "verdict": asdict(
                verdict_of(run.state, incidents, self._remediations, self.record, now, archived=run.archived)
            )
        }

    def save(self) -> bytes:
        """What remediations have done."""
        return msgspec.msgpack.encode(self.record)

    def stop(self) -> None:
        """A command that runs is left to end by itself."""
        self.executor.stop()

    def restore(self, data: bytes) -> None:
        """What an earlier daemon had begun may have been done: it is not done again. What it had not come to is not
        done either: somebody may have acted since.
        """
        self.record = msgspec.msgpack.decode(data, type=Record)
        for course in self.record.courses:
            for step in course.steps:
                if step.status == "begun":
                    step.status = "unknown"
                    step.outcome = "the monitor ended while it was at this: look whether it was done"
        self._abandon("the monitor was restarted before this")

    def _abandon(self, why: str) -> None:
        """What was not begun is not done; where nothing was, the remediation plans anew."""
        untouched = [one for one in self.record.courses if one.open and all(step.ahead for step in one.steps)]
        self.record.courses = [one for one in self.record.courses if one not in untouched]
        for course in self.record.courses:
            course.asked = "done"
            for step in course.steps:
                if step.status == "waiting":
                    step.status, step.outcome, self._news = "skipped", why, True

    def _turn(self, now: float) -> list[Transition]:
        runs = self._core.runs
        if not 0.0 <= now - self._turned_at <= _AWAY:
            self._watched.clear()
            self._abandon("the monitor was away before this")
        self._turned_at = now
        if self.record.began_at is None:
            self.record.began_at, self._news = now, True
        if not (self._remediations or self.record.courses):
            return []
        self._watch(runs, now)
        if 0.0 <= now - self._looked_at < _EVERY:
            return []
        self._looked_at = now
        newest: dict[str, Course] = {}
        for course in self.record.courses:
            self._advance(course, runs.get(course.run), now)
            if course.acts and not course.dry_run:
                newest[course.run] = course
        for name, course in newest.items():
            self._follow_up(course, runs.get(name), now)
        courses = self.record.courses
        messages = [one for course in courses for one in self._report(course, runs.get(course.run), now)]
        self._core.wanted_jobs.clear()
        for run in runs.values():
            if run.book.open or run.actions:
                self._plan(run, now)
        return messages

    def orders(self) -> list[Order]:
        """Steps that are begun in the state file, each once."""
        out: list[Order] = []
        for course in self.record.courses if self.kept else ():
            steps = [index for index, step in enumerate(course.steps) if step.status == "begun"]
            due = [index for index in steps if course.steps[index].stamp <= self.saved]
            due += [ASK] if course.asked == "begun" else [LOOK] if course.number in self._looking else []
            for index in due:
                if (course.number, index) not in self._handed:
                    self._handed.add((course.number, index))
                    out.append(order(course, index))
        self._looking.clear()
        return out

    def settle(self, done: StepDone, now: float) -> tuple[str, str, str] | None:
        """An order was carried out, or was not. (remediation, action, outcome) for the counts."""
        self._handed.discard((done.course, done.step))
        course = next((one for one in self.record.courses if one.number == done.course), None)
        if course is None:
            return None
        if done.step == ASK:
            return self._asked(course, done, now)
        if done.step != LOOK:
            return self._carried_out(course, course.steps[done.step], done, now)
        if not done.again and (done.ok or course.stuck != done.outcome):
            course.stuck, course.begun, self._news = done.outcome, done.ok, True
        return None

    def _carried_out(self, course: Course, step: Step, done: StepDone, now: float) -> tuple[str, str, str] | None:
        if step.status != "begun":
            return None
        self._news = True
        since = max((one.ended_at or 0.0 for one in course.steps), default=0.0) or course.planned_at
        if done.again and now - since < _PATIENCE:
            step.status, step.not_before, step.outcome = "waiting", now + _AGAIN, done.outcome
            return None
        step.status = "done" if done.ok else "skipped" if done.outcome.startswith(NOT_DONE) else "failed"
        step.outcome, step.ended_at = done.outcome, now
        if done.ok and step.action == "requeue":
            course.new_job = course.job
        elif done.ok and step.action == "resubmit" and (found := _NEXT.fullmatch(done.outcome)):
            course.new_job = found[1]
        return course.remediation, step.action, "done" if done.ok else "failed"

    def _asked(self, course: Course, done: StepDone, now: float) -> tuple[str, str, str] | None:
        """Slurm was asked for all that could refuse the steps to come."""
        if course.asked != "begun":
            return None
        self._news = True
        if done.again:
            course.asked, course.at = "no", now + self._slurm.interval
            return None
        course.asked = "done"
        ahead = [step for step in course.steps if step.action in ENDING and step.status in ("waiting", "dry_run")]
        for step in ahead:
            if not done.ok:
                step.status, step.outcome = "skipped", done.outcome
            elif done.job and step.action == "resubmit":
                step.status, step.outcome = "done", f"not submitted: job {done.job} follows by itself"
                course.new_job = done.job
        return None if done.ok or course.dry_run or not ahead else (course.remediation, ahead[0].action, "failed")

    def announce(self, run: Run, message: Transition, now: float) -> Transition:
        """An incident's first message says what will be done about it."""
        incident = run.book.open.get(message.incident)
        if incident is None or not self._remediations:
            return message
        plans = (self._planned(remediation, run, incident, now) for remediation in self._remediations)
        lines = [describe(one[0], now) for one in plans if one is not None]
        return amend(run.book, message, {"actions": lines}) if lines else message

    # --- planning ---------------------------------------------------------------------------------------------------

    def _planned(self, remediation: Remediation, run: Run, incident: Incident, now: float) -> tuple[Plan, float] | None:
        """What the remediation has to do, and since when Slurm must have told of the job."""
        state = run.state
        if not matches(remediation, state.name, incident):
            return None
        # Since when the incident has been one for the remediation: late is no hang yet.
        key = state.name, remediation.name, incident.incident, incident.opened_at
        since, watched = self._matched.setdefault(key, now), self._watched.get(state.name, now)
        made = plan(
            remediation, state, incident, facts_of(run, self._core, self.own_job), self.record, since, watched, now
        )
        return None if made is None else (made, max(since, watched))

    def _watch(self, runs: Mapping[str, Run], now: float) -> None:
        for name, run in runs.items():
            state = run.state
            gap = run.archived or not state.live or state.lost or state.unreadable
            if gap or self._core.is_read_further(run):
                self._watched.pop(name, None)
            else:
                self._watched.setdefault(name, now)
        for name in [name for name in self._watched if name not in runs]:
            del self._watched[name]
        for key in [key for key in self._matched if key[0] not in runs or key[2] not in runs[key[0]].book.open]:
            del self._matched[key]

    def _plan(self, run: Run, now: float) -> None:
        state, lines = run.state, list[str]()
        for remediation, incident in product(self._remediations, list(run.book.open.values())):
            planned = self._planned(remediation, run, incident, now)
            if planned is None:
                continue
            made, since = planned
            if not self.kept:
                made = replace(made, why_not="there is no state directory that would remember it")
            # Slurm is asked once a minute: an answer from before the trouble says nothing of it.
            stale = bool(made.steps) and not is_fresh(state, since, now, self._slurm)
            lines.append(describe(made, now, "Slurm has told of the job" if stale else ""))
            self._core.wanted_jobs.add(state.name)
            if made.why_not or state.name not in self._watched or now < made.at or stale:
                continue
            self.record.last += 1
            self.record.courses.append(course_of(made, state, self.record.last, now))
            self._news = True
            kept = [course for course in self.record.courses if course.open or now - course.planned_at < _KEPT]
            self.record.courses = kept[-_MOST:]
        past = [course for course in self.record.courses if course.run == state.name]
        lines += [told(course) for course in reversed(past[-_SHOWN:])]
        if lines != run.actions:
            run.actions, run.dirty = lines, True

    # --- doing ------------------------------------------------------------------------------------------------------

    def _advance(self, course: Course, run: Run | None, now: float) -> None:
        """Begin the next step, if none is under way."""
        if run is None and not course.ended:
            return  # a reload: its files are opened anew
        broken = any(step.status in ("failed", "unknown", "skipped") for step in course.ending)
        why = "what came before was not done" if broken else self._over(course, run)
        for step in course.steps:
            if step.status == "begun":
                return
            if step.status != "waiting":
                continue
            if why:
                step.status, step.outcome, self._news = "skipped", why, True
                continue
            asked = step.action not in ENDING or course.ended or self._has_asked(course, run, now)
            if not asked or now < step.not_before:
                return
            self.stamp += 1
            step.status, step.stamp, self._news = "begun", self.stamp, True
            return

    def _report(self, course: Course, run: Run | None, now: float) -> Iterator[Transition]:
        """How it all ended, once; of a restart that failed its incident tells the same."""
        if course.open or course.reported or (course.dry_run and not self._has_asked(course, run, now)):
            return
        course.reported = self._news = True
        if run is None or not course.trouble:
            report = self._event(course, run, now)
            if run is not None:
                run.book.history.append(report)
                run.dirty = True
            yield report

    def _over(self, course: Course, run: Run | None) -> str:
        """Why the course is not gone on with; behind the end of the job it is."""
        if course.ended or run is None:
            return ""
        incident = run.book.open.get(course.incident)
        if incident is None or incident.opened_at != course.opened_at:
            return "the incident was over"
        return may_act(run.state, incident, facts_of(run, self._core, self.own_job))

    def _has_asked(self, course: Course, run: Run | None, now: float) -> bool:
        """Is all known that could refuse it? It is asked now, if it is time."""
        if course.asked == "no" and not course.acts:
            return True
        if course.asked == "no" and now >= course.at and run is not None and self.kept:
            course.asked = "begun"
        return course.asked == "done"

    def _follow_up(self, course: Course, run: Run | None, now: float) -> None:
        """The run's last course: does the launch come that it was to bring?"""
        if run is None or course.open:
            return
        state, known = run.state, run.state.unrestarted
        moved = known is not None and known.at < (state.progress_at or 0.0)
        if not course.begun and (moved or state.launch.number > course.launch):
            course.begun = self._news = True
        if course.new_job and not course.begun and now >= course.at:
            course.at = now + self._slurm.interval
            self._looking.add(course.number)
        why = course.trouble
        if why != (known.why if known is not None else ""):
            state.unrestarted = Unrestarted(why, now, course.remediation, course.job, commands(course)) if why else None
            run.dirty = self._news = True

    def _event(self, course: Course, run: Run | None, now: float) -> Transition:
        incident = run.book.open.get(course.incident) if run is not None else None
        offset = run.state.wall_offset if run is not None else 0.0
        return Transition(
            run=course.run,
            incident="restart_failed" if course.trouble else course.incident,
            status="firing" if incident is not None or course.trouble else "resolved",
            severity="critical" if course.trouble else course.severity,
            time=now + offset,
            summary=told(course),
            iteration=run.state.launch.latest.iteration if run is not None else None,
            phase=incident.phase if incident is not None else None,
            evidence={"remediation": course.remediation, "slurm_job": course.job, "actions": commands(course)},
        )


def for_core(core: Core, runtime: Runtime) -> Remediator:
    """Its executor has a thread of its own, which begins with the first order."""
    return Remediator(core, runtime)

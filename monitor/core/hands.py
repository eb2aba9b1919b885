"""Hands in the loop: policies and incidents to courses, courses to orders, outcomes to events. Time is an argument.

A step is begun in the state, the state is written, then the step is handed out: after a crash it is known that it may
have been done, and it is not done again. A run is acted on only while it is followed without a gap: its files are read
to their end and can be read, and the loop has turned all the time.

    plan ──► course (saved) ── orders ──► executor ── settle ──► outcome (saved, notified)
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from monitor.config import Config
from monitor.core.runs import Run
from monitor.hands.plan import Plan, course_of, describe, is_fresh, matches, plan
from monitor.hands.record import Course, Order, Record, Step, StepDone, shown
from monitor.hands.settings import Policy
from monitor.incidents import Incident, Transition, amend

_log = logging.getLogger(__name__)

_AWAY: Final = 30.0  # seconds between two turns after which the daemon was away: stopped, asleep, or on a slow disk
_EVERY: Final = 1.0  # seconds between two looks at the policies
_KEPT: Final = 30 * 86400.0  # seconds that a course is remembered
_MOST: Final = 500  # courses that are remembered
_SHOWN: Final = 10  # courses of a run that its page shows
_ENDING: Final = frozenset({"cancel", "requeue", "resubmit"})


class Message(NamedTuple):
    """An event for people; `to`: the notifiers that get it whatever they want, None: those that want it."""

    transition: Transition
    to: tuple[str, ...] | None = None


class Hands:
    """The record and what is under way. Without a state directory (`kept`) nothing is done."""

    def __init__(self, config: Config) -> None:
        self.record = Record()
        self.kept = True
        """Can the state be saved?"""
        self.stamp = 0
        """The number of the step that was begun last."""
        self.saved = 0
        """Steps up to this number are begun in the state file."""
        self.changed = False
        """The record is newer than what was saved."""
        self._watched: dict[str, float] = {}  # run -> since when it is followed without a gap
        self._matched: dict[tuple[str, str, str, float], float] = {}  # since when an incident is one for a policy
        self._turned_at = self._looked_at = float("-inf")
        self._handed: set[tuple[int, int]] = set()
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Go on by these policies; what is under way is finished."""
        self._policies, self._slurm = config.policies, config.slurm

    def restore(self, record: Record) -> None:
        """What an earlier daemon has done. What it had begun may have been done: it is not done again. What it had not
        come to is not done either: somebody may have acted since.
        """
        self.record = record
        for course in record.courses:
            for step in course.steps:
                if step.status == "begun":
                    step.status = "unknown"
                    step.outcome = "the monitor ended while it was at this: look whether it was done"
        self._abandon("the monitor was restarted before this")

    def _abandon(self, why: str) -> None:
        for course in self.record.courses:
            for step in course.steps:
                if step.status == "waiting":
                    step.status, step.outcome, self.changed = "skipped", why, True

    def turn(self, runs: Mapping[str, Run], reading: Callable[[Run], bool], now: float) -> list[Message]:
        """Plan, begin and report. `reading`: is something of the run still to be read?"""
        if not 0.0 <= now - self._turned_at <= _AWAY:
            self._watched.clear()
            self._abandon("the monitor was away before this")
        self._turned_at = now
        if self.record.began_at is None:
            self.record.began_at, self.changed = now, True
        if not (self._policies or self.record.courses):
            return []
        self._watch(runs, reading, now)
        if 0.0 <= now - self._looked_at < _EVERY:
            return []
        self._looked_at = now
        messages: list[Message] = []
        for course in self.record.courses:
            messages += self._advance(course, runs.get(course.run), now)
        for run in runs.values():
            if run.book.open or run.actions:
                self._plan(run, now)
        return messages

    def orders(self) -> list[Order]:
        """Steps that are begun in the state file, each once."""
        out: list[Order] = []
        for course in self.record.courses if self.kept else ():
            for index, step in enumerate(course.steps):
                key = course.number, index
                if step.status != "begun" or step.stamp > self.saved or key in self._handed:
                    continue
                self._handed.add(key)
                commands = tuple(tuple(command) for command in step.commands)
                out.append(
                    Order(
                        course.number, index, course.run, step.action, commands, step.timeout, step.directory,
                        course.job, course.job_started_at, course.job_restarts, course.over,
                        check=not any(one.action in _ENDING and one.status == "done" for one in course.steps[:index]),
                    )
                )  # fmt: skip
        return out

    def settle(self, done: StepDone, now: float) -> tuple[str, str, str] | None:
        """An order was carried out, or was not. (policy, action, outcome) for the counts."""
        for course in self.record.courses:
            if course.number == done.course and course.steps[done.step].status == "begun":
                step = course.steps[done.step]
                step.status, step.outcome, step.ended_at = "done" if done.ok else "failed", done.outcome, now
                self.changed = True
                return course.policy, step.action, step.status
        return None

    def announce(self, run: Run, message: Transition, now: float) -> Transition:
        """An incident's first message says what will be done about it."""
        incident = run.book.open.get(message.incident)
        if message.status != "firing" or incident is None or not self._policies:
            return message
        watched = self._watched.get(run.state.name, now)
        plans = [
            self._planned(policy, run, incident, self._since(run, policy, incident, now), watched, now)
            for policy in self._policies
            if matches(policy, run.state.name, incident)
        ]
        lines = [describe(one, now) for one in plans if one is not None]
        return amend(run.book, message, {"actions": lines}) if lines else message

    # --- planning ---------------------------------------------------------------------------------------------------

    def _since(self, run: Run, policy: Policy, incident: Incident, now: float) -> float:
        """Since when the incident has been one for the policy: late is no hang yet."""
        return self._matched.setdefault((run.state.name, policy.name, incident.incident, incident.opened_at), now)

    def _watch(self, runs: Mapping[str, Run], reading: Callable[[Run], bool], now: float) -> None:
        for name, run in runs.items():
            state = run.state
            gap = run.archived or not state.live or state.lost or bool(state.unreadable) or reading(run)
            if gap:
                self._watched.pop(name, None)
            else:
                self._watched.setdefault(name, now)
        for name in [name for name in self._watched if name not in runs]:
            del self._watched[name]
        for key in [key for key in self._matched if key[0] not in runs or key[2] not in runs[key[0]].book.open]:
            del self._matched[key]

    def _planned(
        self, policy: Policy, run: Run, incident: Incident, since: float, watched: float, now: float
    ) -> Plan | None:
        """What the policy has to do. A job in which another training computes is not ended."""
        made = plan(policy, run.state, incident, self.record, since, watched, now)
        mates = run.identity.get("shares_job_with")
        if made is None or not mates or not any(step.action in _ENDING for step in made.steps):
            return made
        return replace(made, steps=(), why_not=f"run {mates[0]} is in the same job")

    def _plan(self, run: Run, now: float) -> None:
        state, lines = run.state, list[str]()
        watched = self._watched.get(state.name)
        for policy in self._policies:
            for incident in list(run.book.open.values()):
                if not matches(policy, state.name, incident):
                    continue
                since = self._since(run, policy, incident, now)
                made = self._planned(policy, run, incident, since, now if watched is None else watched, now)
                if made is None:
                    continue
                if not self.kept:
                    made = replace(made, why_not="there is no state directory that would remember it")
                lines.append(describe(made, now))
                if made.why_not or watched is None or now < made.at:
                    continue
                asks = any(step.action != "notify" for step in made.steps)
                if asks and not is_fresh(state, max(since, watched), now, self._slurm):
                    continue  # Slurm is asked once a minute: an answer from before the trouble says nothing of it
                self.record.last += 1
                course = course_of(made, state, self.record.last, now)
                self.record.courses.append(course)
                self.changed = True
                self._forget(now)
        past = [course for course in self.record.courses if course.run == state.name]
        lines += [_told(course) for course in reversed(past[-_SHOWN:])]
        if lines != run.actions:
            run.actions, run.dirty = lines, True

    def _forget(self, now: float) -> None:
        kept = [course for course in self.record.courses if course.open or now - course.planned_at < _KEPT]
        self.record.courses = kept[-_MOST:]

    # --- doing ------------------------------------------------------------------------------------------------------

    def _advance(self, course: Course, run: Run | None, now: float) -> Iterable[Message]:
        """Begin the next step, or report how it all ended."""
        messages: list[Message] = []
        while (step := self._next(course, run)) is not None:
            if step.action == "notify":
                messages.append(Message(self._event(course, run, now), tuple(step.to)))
                step.status, step.outcome, step.ended_at = "done", "sent", now
                continue
            self.stamp += 1
            step.status, step.began_at, step.stamp, self.changed = "begun", now, self.stamp, True
            break
        if not course.open and not course.reported:
            course.reported = self.changed = True
            messages.append(Message(self._event(course, run, now)))
            if run is not None:
                run.book.history.append(messages[-1].transition)
                run.dirty = True
        return messages

    def _next(self, course: Course, run: Run | None) -> Step | None:
        """The step to begin now; None while one is under way, and when nothing is left."""
        if any(step.status == "begun" for step in course.steps):
            return None
        ended = any(step.action in _ENDING and step.status == "done" for step in course.steps)
        broken = any(step.action in _ENDING and step.status in ("failed", "unknown") for step in course.steps)
        if run is None and not ended:
            return None  # a reload: its files are opened anew
        incident = run.book.open.get(course.incident) if run is not None else None
        over = not ended and (incident is None or incident.opened_at != course.opened_at)
        for step in course.steps:
            if step.status != "waiting":
                continue
            if not (broken or over):
                return step
            step.status = "skipped"
            step.outcome = "what came before was not done" if broken else "the incident was over"
        return None

    def _event(self, course: Course, run: Run | None, now: float) -> Transition:
        incident = run.book.open.get(course.incident) if run is not None else None
        offset = run.state.wall_offset if run is not None else 0.0
        return Transition(
            run=course.run,
            incident=course.incident,
            status="firing" if incident is not None else "resolved",
            severity=course.severity,
            time=now + offset,
            summary=_told(course),
            iteration=run.state.launch.latest.iteration if run is not None else None,
            phase=incident.phase if incident is not None else None,
            evidence={
                "policy": course.policy,
                "slurm_job": course.job,
                "actions": [f"{step.action}: {shown(step)}: {step.outcome or step.status}" for step in course.steps],
            },
        )


def _told(course: Course) -> str:
    """What a course did, in a line."""
    begin = (
        f"policy {course.policy}{' (dry run)' if course.dry_run else ''}, {course.incident}, job {course.job or '-'}"
    )
    stop = "; restarts no more: no new checkpoint came of the last ones" if course.gave_up else ""
    parts = []
    for step in course.steps:
        if step.status == "dry_run":
            parts.append(f"would run {shown(step)}")
        elif step.status in ("waiting", "begun"):
            parts.append(f"{step.action} {'waits' if step.status == 'waiting' else 'is under way'}: {shown(step)}")
        else:
            parts.append(f"{step.action} {step.status}" + (f" ({step.outcome})" if step.outcome else ""))
    return f"{begin}: {'; '.join(parts)}{stop}"

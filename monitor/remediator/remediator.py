"""The loop of `megatron-monitor remediate`: ask the observer, decide, save, do one step, save.

Each step is marked as begun in the record, the record is written, then the step is executed. After a crash a begun step
counts as possibly done and is not repeated. The time `for` counts only while the observer reports without a gap that
the incident is open and that the run's files are read to their ends. Without an answer of the observer no step begins;
only a cancelled job is still resubmitted, because that depends on Slurm alone.
"""

import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from itertools import takewhile
from typing import Any, Final

import msgspec

from megatron_monitor.advice import Advice, AdviceList, OpenIncident
from megatron_monitor.advice.choice import matches
from megatron_monitor.advice.record import ENDING, NOT_DONE, Execution, Record, Step, summary
from megatron_monitor.config import Config
from megatron_monitor.config.remediations import Remediation, kinds
from megatron_monitor.detectors.base import duration
from megatron_monitor.identity.job_ids import valid
from megatron_monitor.remediator.commands import LaterError, Slurm
from megatron_monitor.remediator.permission import observed, of_job, proofs
from megatron_monitor.remediator.plan import RefusedError, done_before, forbidden, plan
from megatron_monitor.snapshot import MonitorCounts
from megatron_monitor.system.clock import Clock, SteadyClock

EVERY: Final = 2.0
"""Seconds between two questions to the observer."""
_AWAY: Final = 30.0  # seconds between two turns that mean a gap: the process was stopped, asleep or on a slow disk
_OLD: Final = 15.0  # maximum age of facts in seconds: older ones come from an observer that hangs
_MEMORY_SECONDS: Final = 30 * 86400.0  # seconds for which an execution is kept
_MAX_KEPT: Final = 500  # executions
_RETRY: Final = 5.0  # seconds until a step that could not be done yet is retried
_RETRIED_FOR: Final = 1800.0  # seconds of retries: a job ends slowly, a controller is being moved
_WATCHED_FOR: Final = 86400.0  # seconds in which the begin of a new job is awaited

_log = logging.getLogger(__name__)

_Key = tuple[str, str, str]  # run, remediation, incident


class Remediator:
    """A loop in one thread. `write` stores the encoded record or raises OSError. `ask(path)` returns the observer's
    answer as JSON, or raises an exception.
    """

    def __init__(
        self, config: Config, record: Record | None, write: Callable[[bytes], object], slurm: Slurm,
        ask: Callable[[str], Mapping[str, Any]], clock: Clock,
    ) -> None:  # fmt: skip
        self.counts = MonitorCounts()
        self.own_job = os.environ.get("SLURM_JOB_ID", "")
        """The job that this process runs in."""
        self._config, self._write, self._slurm, self._ask, self._clock = config, write, slurm, ask, clock
        self._seen: dict[_Key, float] = {}  # since when an incident is seen without a gap, monotonic seconds
        self._refused: dict[_Key, tuple[str, float]] = {}  # why Slurm's answer forbids it, and when it is asked again
        self._not_before: dict[int, float] = {}  # execution -> when its next step is tried
        self._begun: dict[int, Future[tuple[bool, str]]] = {}  # execution -> its step that is under way
        self._threads: Executor = ThreadPoolExecutor(thread_name_prefix="step")
        self.turned_at = clock.monotonic()
        """When the last turn ended, monotonic seconds."""
        self.shown = self.counts.frozen()
        """The metrics, for other threads."""
        self._saved = b""
        self._problem = ""
        self.record = record or Record(began_at=clock.wall())
        known = [self.record.began_at, *(one.ended_at or one.planned_at for one in self.record.executions)]
        self._steady = SteadyClock(clock, self.record.wall_offset, max(known), self.record.origin)
        self.record.origin = self._steady.origin
        self._settle_after_a_gap("the remediator was restarted before this")

    # --- one turn ---------------------------------------------------------------------------------------------------

    def turn(self) -> bool:
        """Ask, decide, and do at most one step per execution. Return True if the next turn should follow at once."""
        if self._clock.monotonic() - self.turned_at > _AWAY:
            self._seen.clear()
            self._settle_after_a_gap("the remediator was interrupted before this step")
        advice = self._advice()
        self._steady.look()
        self.record.wall_offset = self._steady.offset
        self._plan_all(advice)
        worked = [self._advance(one, advice) for one in self.record.executions if one.open]
        self._look_for_new_jobs()
        self._save()
        self.counts.set("loop_timestamp_seconds", self._clock.wall())
        self.shown, self.turned_at = self.counts.frozen(), self._clock.monotonic()
        return any(worked)

    def finish(self) -> None:
        """Wait for the dumps that are under way, and record their outcomes."""
        for one in self.record.executions:
            if one.number in self._begun:
                self._take_outcome(one)
        self._save()

    def _advice(self) -> dict[str, Advice] | None:
        """Return the advice by run; None if the observer does not answer usefully."""
        try:
            answer = msgspec.convert(self._ask("/api/v1/advice"), AdviceList)
            if answer.age_seconds > _OLD:
                raise ValueError(f"its facts are {duration(answer.age_seconds)} old")
            if not answer.ready:
                raise ValueError("it is reading a backlog")
        except Exception as error:  # noqa: BLE001 - after any failure nothing is done
            if str(error) != self._problem:
                _log.warning("the observer does not answer, so nothing is done: %s", error)
            self._problem = str(error)
            self._seen.clear()
            self.counts.set("observer_up", 0.0)
            return None
        if self._problem:
            _log.info("the observer answers again")
        self._problem = ""
        self.counts.set("observer_up", 1.0)
        return {one.run: one for one in answer.runs}

    def _save(self) -> bool:
        """Write the record if it has changed. Return True if it is on disk."""
        encoded = msgspec.json.encode(self.record)
        if encoded != self._saved:
            try:
                self._write(encoded)
            except OSError as error:
                _log.error("the record cannot be written, so nothing is done: %s", error)
                self.counts.add("state_save_failures_total")
                return False
            self._saved = encoded
        for name, many in self.record.counts.items():
            self.counts.set("actions_total", many, *name.split(" "))
        return True

    def _settle_after_a_gap(self, why: str) -> None:
        """After a gap, close the open executions: a person may have acted meanwhile.

        A begun step may have been done, so it becomes `unknown` and is not repeated. A waiting step becomes `skipped`.
        An execution without a begun step is dropped, and planned again.
        """
        self._begun.clear()
        untouched = [
            one
            for one in self.record.executions
            if one.open and all(step.status == "waiting" or not step.commands for step in one.steps)
        ]
        self.record.executions = [one for one in self.record.executions if one not in untouched]
        for step in (step for one in self.record.executions for step in one.steps):
            if step.status == "begun":
                step.status = "unknown"
                step.outcome = "the remediator ended during this step: check whether it was done"
            elif step.status == "waiting":
                step.status, step.outcome = "skipped", why
        for one in self.record.executions:
            one.ended_at = self._steady.now() if one.ended_at is None else one.ended_at

    # --- planning ---------------------------------------------------------------------------------------------------

    def _plan_all(self, advice: Mapping[str, Advice] | None) -> None:
        open_now: set[_Key] = set()
        self.record.plans = {}
        for one in (advice or {}).values():
            lines = []
            for remediation in self._config.remediations:
                for incident in one.incidents:
                    if matches(remediation, one.run, incident):
                        key = one.run, remediation.name, incident.id
                        if one.followed:
                            open_now.add(key)
                        lines += self._plan(key, remediation, one, incident)
            if lines:
                self.record.plans[one.run] = lines
        if advice is not None:
            self._seen = {key: since for key, since in self._seen.items() if key in open_now}
            self._refused = {key: found for key, found in self._refused.items() if key in self._seen}

    def _plan(self, key: _Key, remediation: Remediation, advice: Advice, incident: OpenIncident) -> list[str]:
        """Begin an execution if it is due. Return lines for the page."""
        if done_before(remediation, advice, incident, self.record):
            return []
        now = self._clock.monotonic()
        since = self._seen.setdefault(key, now)
        why = forbidden(remediation, advice, incident, self.record, self._steady.now()) or observed(advice, incident)
        if not why and now - since < remediation.after:
            what = "would do" if remediation.dry_run else "does"
            actions = ", ".join(kinds(remediation.actions))
            return [f"{remediation.name}: {what} {actions} after {duration(remediation.after)}"]
        if not why:
            why, ask_at = self._refused.get(key, ("", now))
            if now >= ask_at:
                try:
                    self._begin(remediation, advice, incident)
                except (RefusedError, LaterError) as error:
                    why = str(error)
                    self._refused[key] = why, now + self._config.slurm.interval
                else:
                    return []
        return [f"{remediation.name}: does nothing: {why}"]

    def _begin(self, remediation: Remediation, advice: Advice, incident: OpenIncident) -> None:
        """Raises RefusedError and LaterError."""
        number = valid(advice.job)
        if not number:
            raise RefusedError("the run's Slurm job is not known")
        job = self._slurm.job(number)
        proof = proofs(job, advice.streams, self._config.slurm.job_from)
        if why := of_job(advice, incident, job, proof, self.own_job, self._clock.wall()):
            raise RefusedError(why)
        made = plan(remediation, advice, incident, job, self.record, self._steady.now())
        made.proof = proof
        self._slurm.check(made, self.record)
        for step in made.steps:
            if made.dry_run and step.status == "waiting":
                step.status = "dry_run"
            elif step.outcome.startswith(NOT_DONE) and not made.dry_run:
                self._count(made, step)
        self.record.last = made.number
        kept = [one for one in self.record.executions if one.open or made.planned_at - one.planned_at < _MEMORY_SECONDS]
        self.record.executions = [*kept[-_MAX_KEPT:], made]
        self._close(made)

    # --- doing ------------------------------------------------------------------------------------------------------

    def _advance(self, execution: Execution, advice: Mapping[str, Advice] | None) -> bool:
        """Execute the next step. Return True if one was executed."""
        if execution.number in self._begun:
            return self._begun[execution.number].done() and self._take_outcome(execution)
        if self._clock.monotonic() < self._not_before.get(execution.number, 0.0):
            return False
        waiting = [step for step in execution.steps if step.status == "waiting"]
        before = takewhile(lambda step: step is not waiting[0], execution.steps)
        broken = any(step.status != "done" for step in before if step.action in ENDING and step.commands)
        why = "the step before was not done" if broken else self._over(execution, advice)
        if why is None:
            return False
        if not why:
            return self._do(execution, waiting[0])
        for step in waiting:
            step.status, step.outcome = "skipped", why
        self._close(execution)
        return True

    def _over(self, execution: Execution, advice: Mapping[str, Advice] | None) -> str | None:
        """Return why the remaining steps are not done; empty: they are. None: the observer does not answer."""
        if execution.ended_job:
            return ""
        if advice is None:
            return None
        own = advice.get(execution.run)
        incident = next((one for one in own.incidents if one.id == execution.incident_id), None) if own else None
        return observed(own, incident) if own is not None and incident is not None else "the incident has ended"

    def _do(self, execution: Execution, step: Step) -> bool:
        """Record that the step is begun, execute it, record the outcome. Return False if it is to be retried. A dump is
        not waited for, because it takes up to two minutes.
        """
        step.status = "begun"
        if not self._save():
            step.status = "waiting"
            return False
        self._begun[execution.number] = self._threads.submit(self._slurm.carry_out, execution, step)
        return step.action == "dump_stacks" or self._take_outcome(execution)

    def _take_outcome(self, execution: Execution) -> bool:
        """Wait for the begun step and record its outcome. Return False if it is to be retried."""
        step = next(step for step in execution.steps if step.status == "begun")
        try:
            ok, outcome = self._begun.pop(execution.number).result()
        except LaterError as why:
            if self._steady.now() - execution.planned_at < _RETRIED_FOR:
                step.status, step.outcome = "waiting", str(why)
                self._not_before[execution.number] = self._clock.monotonic() + _RETRY
                return False
            ok, outcome = False, str(why)
        step.status = "done" if ok else "skipped" if outcome.startswith(NOT_DONE) else "failed"
        step.outcome = outcome
        if ok and step.action == "requeue":
            execution.new_job = execution.job
        self._count(execution, step)
        self._save()
        self._close(execution)
        return True

    def _count(self, execution: Execution, step: Step) -> None:
        name = f"{execution.remediation} {step.action} {'done' if step.status == 'done' else 'failed'}"
        self.record.counts[name] = self.record.counts.get(name, 0) + 1

    def _close(self, execution: Execution) -> None:
        if not execution.open and execution.ended_at is None:
            execution.ended_at = self._steady.now()
            self._not_before.pop(execution.number, None)
            _log.warning("run=%s %s", execution.run, summary(execution))

    def _look_for_new_jobs(self) -> None:
        """For the last execution of each run: check whether its new job has begun."""
        now = self._clock.monotonic()
        newest = {one.run: one for one in self.record.executions if one.acts and not one.dry_run}
        for one in newest.values():
            recent = one.ended_at is not None and self._steady.now() - one.ended_at < _WATCHED_FOR
            if one.new_job and not one.begun and recent and now >= self._not_before.get(one.number, 0.0):
                self._not_before[one.number] = now + self._config.slurm.interval
                self._slurm.look(one)

"""Collects the facts for `/api/v1/advice`, and shows the remediator's executions on the page, in metrics and messages.

The remediator is a separate process. This module reads its record (record.py) and never acts on a job.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from megatron_monitor.advice import Neighbour, Stream
from megatron_monitor.advice.choice import advice_of, matches, opened
from megatron_monitor.advice.record import Execution, Record, commands, file_in, read, summary
from megatron_monitor.config import Config, state_directory
from megatron_monitor.config.remediations import kinds
from megatron_monitor.core import Core
from megatron_monitor.core.extension import Extension
from megatron_monitor.core.runs import Run
from megatron_monitor.core.sources import Source
from megatron_monitor.detectors.base import duration
from megatron_monitor.incidents import Transition, amend
from megatron_monitor.run.phases import ENDED
from megatron_monitor.run.records import FailedRestart

_log = logging.getLogger(__name__)

_EVERY: Final = 1.0  # seconds between two reads of the record
_SHOWN: Final = 10  # executions on the page of a run


class Advisor(Extension):
    """Reads the remediator's record. Each execution that has ended has one message."""

    def __init__(self, core: Core, *_: object) -> None:
        self._core = core
        self._record = Record(began_at=0.0)
        self._looked_at, self._stamp, self._problem = float("-inf"), (0, 0), False
        self.configure(core.config)

    def configure(self, config: Config) -> None:
        """Use another configuration."""
        self._remediations = config.remediations
        self.path: Path | None = file_in(state_directory(config, config.listen)) if config.remediations else None

    def look(self, now: float) -> None:
        """Read the record if it has changed."""
        if self.path is None or 0.0 <= now - self._looked_at < _EVERY:
            return
        self._looked_at = now
        try:
            found = self.path.stat()
            if (stamp := (found.st_mtime_ns, found.st_ino)) == self._stamp:
                return
            self._record, self._stamp, self._problem = read(self.path) or self._record, stamp, False
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError) as error:
            if not self._problem:
                _log.warning("executions are not shown: %s cannot be read: %s", self.path, error)
            self._problem = True
            return
        for name, many in self._record.counts.items():
            self._core.counts.set("actions_total", many, *name.split(" "))

    def act(self, now: float) -> Sequence[Transition]:
        """Update the runs from the record. Return a message for each execution that has ended."""
        if self.path is None or self._looked_at != now or self._problem:
            return ()
        messages: list[Transition] = []
        by_run: dict[str, list[Execution]] = {}
        for one in self._record.executions:
            by_run.setdefault(one.run, []).append(one)
        for name, run in self._core.runs.items():
            own = by_run.get(name, [])
            self._show(run, own, now)
            ended, known = {one.id for one in own if not one.open}, run.state.remediated
            if ended != known:
                run.state.remediated = ended
                self._core.touch(run.log.name)
            for one in own:
                # A new state reports nothing of the past; trouble is reported by the incident restart_failed.
                if known is not None and one.id in ended - known and not one.trouble:
                    messages.append(_message(one, run, now))
                    run.book.history.append(messages[-1])
                    run.dirty = True
        return messages

    def _show(self, run: Run, executions: Sequence[Execution], now: float) -> None:
        state, lines = run.state, list[str]()
        if run.book.open:
            lines = self._record.plans.get(state.name, [])
        lines = [*lines, *(summary(one) for one in reversed(executions[-_SHOWN:]))]
        if lines != run.actions:
            run.actions, run.dirty = lines, True
        last = next((one for one in reversed(executions) if one.acts and not one.dry_run), None)
        failed, before = None, state.unrestarted
        if last is not None and last.trouble:
            progress = (state.progress_at or 0.0) + state.wall_offset - self._record.wall_offset
            if state.attempt.number <= last.attempt and progress <= (last.ended_at or last.planned_at):
                failed = FailedRestart(last.trouble, now, last.remediation, last.job, commands(last))
        if (failed and failed.why) != (before and before.why):
            state.unrestarted, run.dirty = failed, True

    def shown_run(self, run: Run, now: float) -> Mapping[str, Any]:
        """Return the run's advice with its facts."""
        core, state = self._core, run.state
        at_work = next((one.remediation for one in self._record.executions if one.run == state.name and one.open), "")
        advice = advice_of(
            state, run.book.open.values(), self._remediations, now, historical=run.historical, at_work=at_work
        )
        sources, replicas = [*run.log.sources.values()], self._of_same_job(run)
        waiting = [*sources, *(one for mate in replicas & core.logs.keys() for one in core.logs[mate].sources.values())]
        unread = run.historical or not state.live or state.lost or bool(state.unreadable) or core.is_read_further(run)
        return {
            "advice": replace(
                advice,
                attempt=state.attempt.number,
                incidents=[opened(state, one) for one in run.book.open.values() if not one.display_only],
                job="" if state.job is None else state.job.number,
                streams=[self._stream(source) for source in sources],
                followed=not unread,
                progress_at=state.unix(state.progress_at),
                neighbours=[_neighbour(core.runs[name]) for name in sorted(replicas & core.runs.keys())],
                undecided=any(source.waiting for source in waiting),
                second_job=state.second_job,
            )
        }

    def _of_same_job(self, run: Run) -> set[str]:
        """Return the names of the other runs in its job."""
        job, names = run.state.job, set[str](run.identity.get("shares_job_with", ()))
        if job is not None:
            names.update(name for name, one in self._core.runs.items() if one.state.job and one.state.job.id == job.id)
        return names - {run.state.name}

    def _stream(self, source: Source) -> Stream:
        pushed = self._core.config.is_pushed(source.path)
        owner = None if pushed else source.owner
        steps = bool(source.has_steps or source.member.steps)
        return Stream(source.path, pushed, owner, source.mtime, steps)

    def announce(self, run: Run, message: Transition, now: float) -> Transition:  # noqa: ARG002
        """Add to an incident's first message which remediation applies."""
        incident = run.book.open.get(message.incident)
        if incident is None or incident.display_only:
            return message
        lines = [
            f"{one.name}: {'would do' if one.dry_run else 'does'} {', '.join(kinds(one.actions))}"
            f" after {duration(one.after)}"
            for one in self._remediations
            if matches(one, run.state.name, opened(run.state, incident))
        ]
        return amend(run.book, message, {"actions": lines}) if lines else message


def _neighbour(run: Run) -> Neighbour:
    state = run.state
    still = (state.attempt.hung or state.attempt.phase in ENDED) and not (state.lost or state.unreadable)
    return Neighbour(state.name, still, state.unix(state.progress_at))


def _message(execution: Execution, run: Run, now: float) -> Transition:
    incident = run.book.open.get(execution.incident)
    return Transition(
        run=execution.run,
        incident=execution.incident,
        status="firing" if incident is not None else "resolved",
        severity=execution.severity,
        time=now + run.state.wall_offset,
        occurrence=(execution.attempt, execution.number, int(execution.planned_at)),
        summary=summary(execution),
        iteration=run.state.attempt.latest.iteration,
        phase=incident.phase if incident is not None else None,
        evidence={"remediation": execution.remediation, "slurm_job": execution.job, "actions": commands(execution)},
    )


for_core = Advisor

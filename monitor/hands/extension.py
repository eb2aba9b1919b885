"""Remediation: policies act on incidents of a core's runs, and launchers are told what to do with a run."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from megatron_monitor.config import Config
from megatron_monitor.core import Core
from megatron_monitor.core.extension import Extension, Notice, Runtime
from megatron_monitor.core.runs import Run
from megatron_monitor.hands.courses import Hands
from megatron_monitor.hands.executor import Executor
from megatron_monitor.hands.proof import Proof
from megatron_monitor.hands.record import Record
from megatron_monitor.hands.verdict import verdict_of
from megatron_monitor.incidents import Transition


class Remediation(Extension):
    """A step is saved as begun, then carried out: after a crash it is not done twice."""

    name = "remediation"

    def __init__(self, core: Core, runtime: Runtime) -> None:
        self._core, self._save = core, runtime.save
        self.proof = Proof()
        self.proof.own_job = os.environ.get("SLURM_JOB_ID", "")
        self.hands = Hands(core.config, lambda run: self.proof.facts(run, core.sources, core.config), core.wanted_jobs)
        self.executor = Executor(core.config.slurm, runtime.clock, runtime.wake)

    @property
    def stamp(self) -> int:  # type: ignore[override]
        """The number of the step that was begun last."""
        return self.hands.stamp

    @property
    def saved(self) -> int:
        """Steps up to this number are begun in the state file."""
        return self.hands.saved

    @saved.setter
    def saved(self, stamp: int) -> None:
        self.hands.saved = stamp

    @property
    def kept(self) -> bool:
        """Can the state be saved?"""
        return self.hands.kept

    @kept.setter
    def kept(self, kept: bool) -> None:
        self.hands.kept = kept

    def configure(self, config: Config) -> None:
        """Go on by these policies; what is under way is finished."""
        self.hands.configure(config)
        self.executor.settings = config.slurm

    def start(self, directory: Path) -> None:
        """Stacks that are dumped lie below the state directory."""
        self.executor.directory = directory / "stacks"

    def announce(self, run: Run, transition: Transition, now: float) -> Transition:
        """An incident's first message says what will be done about it."""
        return self.hands.announce(run, transition, now)

    def act(self, now: float) -> Sequence[Notice]:
        """Outcomes in, messages and orders out. A step is handed out once the state says that it is begun."""
        core, hands = self._core, self.hands
        for done in self.executor.answers():
            if (what := hands.settle(done, now)) is not None:
                core.counts.add("actions_total", *what)
        notices = self.plan(now)
        for order in hands.orders():
            self.executor.ask(order)
        return notices

    def plan(self, now: float) -> Sequence[Notice]:
        """Plan, begin and report steps; none is carried out."""
        self._core.bring_up_to_date()
        self.proof.look(self._core.runs)
        notices = self.hands.turn(self._core.runs, self._core.is_read_further, now)
        if self.hands.changed:
            self.hands.changed, self.changed = False, True
            self._save()
        return notices

    def shown_run(self, run: Run, now: float) -> Mapping[str, Any]:
        """What a launcher that asks is told."""
        policies, record = self._core.config.policies, self.hands.record
        return {
            "verdict": verdict_of(
                run.state, run.book.open.values(), policies, record, now, archived=run.archived
            ).to_json()
        }

    def save(self) -> bytes:
        """What policies have done."""
        return msgspec.msgpack.encode(self.hands.record)

    def restore(self, data: bytes) -> None:
        """What an earlier daemon had begun may have been done: it is not done again."""
        self.hands.restore(msgspec.msgpack.decode(data, type=Record))

    def stop(self) -> None:
        """A command that runs is left to end by itself."""
        self.executor.stop()


def for_core(core: Core, runtime: Runtime) -> Remediation:
    """Without policies it only answers launchers."""
    return Remediation(core, runtime)

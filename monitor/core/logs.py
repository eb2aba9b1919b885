"""Logs: the sources with one name, and the runs that their lines report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from megatron_monitor.run.experiments import Experiments

if TYPE_CHECKING:
    from megatron_monitor.core.runs import Run
    from megatron_monitor.core.sources import Source


@dataclass(slots=True, eq=False)
class Log:
    """The sources with one name, and their run, or one run for each experiment in their lines."""

    name: str
    """The name of the run, or of the run of the first experiment."""
    sources: dict[str, Source] = field(default_factory=dict)
    """The followed sources by name, in the order of arrival. A dormant source is not among them."""
    reporting: dict[str, Source] = field(default_factory=dict)
    """Those that report steps or arguments, the last ones of many (run_streams.py)."""
    runs: dict[str, Run] = field(default_factory=dict)
    """Label of an experiment -> its run. The first experiment has no label."""
    unread: int = 0
    """Number of sources that have not been read to their end."""
    latest: Experiments | None = None
    """The experiments of the source that is furthest."""
    label: str = ""
    """The label of the newest experiment."""

    @property
    def current(self) -> Run | None:
        """The run of the newest experiment, if it has begun."""
        return self.runs.get(self.label)

    def note_experiment(self, source: Source) -> None:
        """Note that an experiment of the source may have begun."""
        known = source.experiments
        if known.reported and (self.latest is None or known.number >= self.latest.number):
            self.latest = known
        if self.latest is not None and self.latest.label != self.label:
            self.label = self.latest.label
            self.point()
        else:
            source.run = self.runs.get(self.label_of(source))

    def label_of(self, source: Source) -> str:
        """Return the label of the experiment of its present lines: its own, or else that of the other sources."""
        return source.experiments.label if source.experiments.reported else self.label

    def point(self) -> None:
        """Set the run of each source, after a run or an experiment began or a run was dropped."""
        for source in self.sources.values():
            source.run = self.runs.get(self.label_of(source))

    def with_steps(self) -> list[Source]:
        """Return the sources with steps; all sources if none has steps yet."""
        return [source for source in self.sources.values() if source.member.steps] or [*self.sources.values()]


class Logs(dict[str, Log]):
    """Logs by name."""

    def named(self, name: str) -> Log:
        """Return the log of that name, a new one if it is new."""
        return self.get(name) or self.setdefault(name, Log(name))

    def leave(self, log: Log) -> None:
        """Forget a log without sources and runs."""
        if not log.sources:
            log.latest, log.label = None, ""
            if not log.runs:
                self.pop(log.name, None)

"""What is known of a run's job beside the run's own state: what a policy must know before it touches the job."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Set

from megatron_monitor.config import Config
from megatron_monitor.core.runs import Run
from megatron_monitor.core.sources import TOGETHER, Source, Sources
from megatron_monitor.hands.permission import Facts
from megatron_monitor.identity import key_of
from megatron_monitor.run.records import Job


class Proof:
    """What is known of a run's job beside the run's own state: what a policy must know before it touches the job."""

    def __init__(self) -> None:
        self.own_job = ""
        """The one that the monitor itself runs in."""
        self._runs: Mapping[str, Run] = {}
        self._of_job: Mapping[str, Set[str]] = {}

    def look(self, runs: Mapping[str, Run]) -> None:
        """Once a turn."""
        found: dict[str, set[str]] = defaultdict(set)
        for name, run in runs.items():
            if run.state.job is not None:
                found[run.state.job.id].add(name)
        self._runs, self._of_job = runs, found

    def facts(self, run: Run, followed: Sources, config: Config) -> Facts:
        """Of the files that tell steps, or of all where none does, those count that were written last."""
        job, sources = run.state.job or Job("", ""), _streams(followed, [run.log])
        tell = [source for source in sources if source.has_steps or source.member.steps] or sources
        newest = max((source.mtime for source in tell), default=0.0)
        ids, outputs = {job.id, job.array_id} - {""}, {job.output, job.errors} - {""}
        site = config.slurm.job_from
        mates = self._mates(run, ids)
        lately = {source.path for source in tell if newest - source.mtime < TOGETHER}
        numbers = {key_of(path, site).id for path in lately} if site is not None else set()
        return Facts(
            proven=not (lately.isdisjoint(outputs) and numbers.isdisjoint(ids)),
            owners=frozenset(source.owner for source in sources),
            others=[self._runs[name].state for name in sorted(mates & self._runs.keys())],
            undecided=any(source.waiting for source in (*sources, *_streams(followed, mates))),
            beside=run.state.beside,
            own_job=self.own_job,
        )

    def _mates(self, run: Run, ids: Set[str]) -> Set[str]:
        """The other runs of its job."""
        shares = set(run.identity.get("shares_job_with", ()))
        return shares.union(*(self._of_job.get(one, ()) for one in ids)) - {run.state.name}


def _streams(followed: Sources, runs: Iterable[str]) -> list[Source]:
    return [source for run in runs for source in followed.of_run(run)]

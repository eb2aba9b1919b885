"""What is known of a run's job beside the run's own state: what a policy must know before it touches the job. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Set

from monitor.config import Config
from monitor.core.runs import Run
from monitor.core.sources import TOGETHER, Sources
from monitor.hands.permission import Facts
from monitor.identity import key_of


class Proof:
    """By job, the runs that Slurm says are of it."""

    def __init__(self, own_job: str = "") -> None:
        """`own_job`: the one that the monitor itself runs in."""
        self.own_job = own_job
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
        job, sources = run.state.job, [followed[name] for name in followed.of_run(run.log)]
        tell = [source for source in sources if source.has_steps or source.member.steps] or sources
        newest = max((source.mtime for source in tell), default=0.0)
        ids = {job.id, job.array_id} - {""} if job is not None else set()
        outputs = {job.output, job.errors} - {""} if job is not None else set()
        site = config.slurm.job_from
        mates = {*run.identity.get("shares_job_with", ()), *(name for one in ids for name in self._of_job.get(one, ()))}
        mates -= {run.state.name}
        streams = [followed[name] for mate in mates for name in followed.of_run(mate)]
        return Facts(
            proven=any(
                newest - source.mtime < TOGETHER
                and (source.path in outputs or (site is not None and key_of(source.path, site).id in ids))
                for source in tell
            ),
            owners=frozenset(source.owner for source in sources),
            others=[self._runs[name].state for name in sorted(mates) if name in self._runs],
            undecided=any(source.waiting for source in (*sources, *streams)),
            beside=run.state.beside,
            own_job=self.own_job,
        )

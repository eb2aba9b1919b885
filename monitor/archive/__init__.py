"""Archives: many finished logs to report rows, some files at a time, by several processes.

Files of one run are read together: those whose runs have one name, or that are one file under two names. Which job a
log is of is only known once it was read: tasks that turn out to share a job are read once more, as one. So the rows are
those of a single reading, however many processes read.
"""

import copyreg
import gc
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from multiprocessing import get_context
from types import MappingProxyType
from typing import Any, TypeAlias

from megatron_monitor.config import Config, Watch
from megatron_monitor.core import Core
from megatron_monitor.core.sources import watches
from megatron_monitor.follow.discovery import DiscoveredPath, find
from megatron_monitor.follow.mounts import read_mounts
from megatron_monitor.follow.os_layer import OsLayer
from megatron_monitor.follow.patterns import absolute
from megatron_monitor.identity import named
from megatron_monitor.once import read_all
from megatron_monitor.reports.outcome import Tally
from megatron_monitor.reports.rows import Options, Row, row_of
from megatron_monitor.run import derived
from megatron_monitor.run.state import RunState
from megatron_monitor.system.clock import Clock

__all__ = ["Options", "Row", "Task", "TaskResult", "read_archive", "read_run", "read_runs", "tasks_of"]

_FILES = 25  # of a task: twice as many need twice the memory and are hardly faster
_BYTES = 32 << 20  # of a task, the same
_WORTH = 64 << 20  # bytes, some five seconds of reading, from which on more than one process pays for its start
_TRIES = 2  # a worker may be killed for what another process did


Task: TypeAlias = tuple[DiscoveredPath, ...]
"""Files that are read together."""


@dataclass(slots=True)
class TaskResult:
    """What a task gave. It pickles."""

    rows: list[Row] = field(default_factory=list)
    """In the order of the runs' names."""
    problems: list[str] = field(default_factory=list)
    """Sentences for a person: files that no one can read or that hold no training line."""
    jobs: frozenset[str] = frozenset()
    """Ids of the jobs that its streams are of."""


Read: TypeAlias = Callable[[Task], TaskResult]


def _proxy(values: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(values)


copyreg.pickle(MappingProxyType, lambda proxy: (_proxy, (dict(proxy),)))  # the configuration holds some


def read_run(paths: Sequence[str | os.PathLike[str]], options: Options | None = None) -> Row:
    """The row of the one run whose logs lie at `paths`; ValueError with their names if they hold another number.

    For notebooks and frameworks of one's own: it needs nothing beside the files, and what it gives pickles.
    """
    config = Config(runs=(Watch(paths=tuple(absolute(os.fspath(path)) for path in paths)),))
    rows = read_task(tuple(_files(config)), config, options or Options()).rows
    if len(rows) != 1:
        raise ValueError(
            f"{len(rows)} runs in these files: {', '.join(row.run for row in rows) or 'none'}; one is needed"
        )
    return rows[0]


def _files(config: Config) -> Iterable[DiscoveredPath]:
    return find(watches(config), read_mounts(), OsLayer())


def read_runs(
    config: Config, options: Options, clock: Clock | None = None, found: Iterable[DiscoveredPath] | None = None
) -> tuple[Core, list[tuple[RunState, Row]], list[str]]:
    """(the core that read the files, each run's state and row in the order of their names, what a person should know).
    As read_all.
    """
    tallies = defaultdict[str, Tally](Tally)
    core, problems = read_all(config, clock, lambda run, *seen: tallies[run].look(*seen), found=found)
    runs = [
        (run.state, row_of(run.state, derived.run_state(run.state, run.historical), tallies[name], options))
        for name, run in sorted(core.runs.items())
        if run.state.proven and run.state.sources
    ]
    return core, runs, problems


def read_task(task: Task, config: Config, options: Options) -> TaskResult:
    """Read the files to their ends."""
    core, runs, problems = read_runs(config, options, found=task)
    rows = [row for _, row in runs]
    jobs = frozenset(source.member.key for source in core.sources.values()) - {""}
    del core, runs
    gc.collect()  # the core's parts know each other, and the collector waits for many more of them
    return TaskResult(rows, problems, jobs)


def tasks_of(config: Config) -> list[Task]:
    """All files in tasks of a bounded size, in the order of their paths; those of one run in one task."""
    tasks: list[Task] = []
    for files in sorted(tuple(sorted(files)) for files in _by_run(config)):
        wider = (*tasks[-1], *files) if tasks else ()
        if wider and len(wider) <= _FILES and _size(wider) <= _BYTES:
            tasks[-1] = wider
        else:
            tasks.append(files)
    return tasks


def _size(task: Task) -> int:
    """Bytes; of what is not there none."""
    return sum(os.path.getsize(one.path) for one in task if os.path.exists(one.path))


def _by_run(config: Config) -> Iterable[list[DiscoveredPath]]:
    """Files that share the name of a run or an inode."""
    group_of: dict[Any, list[DiscoveredPath]] = {}
    for one in _files(config):
        inode: Any = one.path
        with suppress(OSError):  # the reading says what is wrong with it
            status = os.stat(one.path)
            inode = status.st_dev, status.st_ino
        group = group_of.setdefault((named(one.path, config.runs).name,), [])
        other = group_of.setdefault(inode, group)
        if other is not group:
            group += other
            group_of.update({key: group for key, value in group_of.items() if value is other})
        group.append(one)
    return {id(group): group for group in group_of.values()}.values()


def read_archive(tasks: Sequence[Task], read: Read, workers: int | None = None) -> Iterator[TaskResult]:
    """What the tasks give. `workers`: processes; None: one a core where the logs are worth their start.

    Tasks that share a job are read again as one.
    """
    if workers is None:
        workers = len(os.sched_getaffinity(0)) if sum(map(_size, tasks)) >= _WORTH else 1
    for several in _by_job(_read(tasks, read, max(1, min(workers, len(tasks))))):
        if len(several) == 1:
            yield several[0][1]
        else:
            yield read(tuple(sorted(one for task, _ in several for one in task)))


def _by_job(done: Iterable[tuple[Task, TaskResult]]) -> list[list[tuple[Task, TaskResult]]]:
    """In groups that share a job; most are alone."""
    groups: dict[int, list[tuple[Task, TaskResult]]] = {}
    of_job: dict[str, int] = {}
    for number, (task, reading) in enumerate(done):
        group = [(task, reading)]
        for other in {of_job[job] for job in reading.jobs if job in of_job}:
            group += groups.pop(other)
        groups[number] = group
        of_job.update({job: number for _, one in group for job in one.jobs})
    return list(groups.values())


def _read(tasks: Sequence[Task], read: Read, workers: int) -> Iterator[tuple[Task, TaskResult]]:
    """Each task and what it gave, as they end. A task whose worker is killed is read again, at last alone."""
    if workers == 1:
        yield from ((task, read(task)) for task in tasks)
        return
    left = list(tasks)
    for _ in range(_TRIES):
        for done in _ended(left, read, workers):
            left.remove(done[0])
            yield done
    for task in left:
        names = ", ".join(one.path for one in task)
        problem = f"{names}: the process that read it was killed, perhaps for want of memory"
        sequential = chain.from_iterable(_ended([task], read, 1) for _ in range(_TRIES))
        yield next(sequential, (task, TaskResult(problems=[problem])))


def _ended(tasks: Sequence[Task], read: Read, workers: int) -> Iterator[tuple[Task, TaskResult]]:
    """What ends in a pool of processes before one of them is killed, which ends the pool."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["megatron_monitor.archive"])  # what a worker begins with is loaded once
    with suppress(BrokenProcessPool), ProcessPoolExecutor(workers, context) as pool:
        futures = {pool.submit(read, task): task for task in tasks}
        for future in as_completed(futures):
            yield futures.pop(future), future.result()

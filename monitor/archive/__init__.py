"""Turn many finished logs into report rows, in several processes.

A task is the files with one run name, or of one inode. The job of a log is known only after reading: tasks that share
a job are then read again as one. The number of processes does not change the rows.
"""

import gc
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import TypeAlias, TypeVar

from megatron_monitor.config import Config, Watch
from megatron_monitor.follow.discovery import DiscoveredPath
from megatron_monitor.follow.patterns import absolute
from megatron_monitor.identity.naming import named
from megatron_monitor.once import files_of, read_all
from megatron_monitor.reports.rows import Row, row_of
from megatron_monitor.run import derived

__all__ = ["Row", "Task", "TaskResult", "read_archive", "read_run", "tasks_of"]

_MIN_PARALLEL_BYTES = 64 << 20  # about 5 s of reading: less is faster in one process


T = TypeVar("T")
Task: TypeAlias = tuple[DiscoveredPath, ...]
"""Files that are read together."""


@dataclass(slots=True)
class TaskResult:
    """The result of a task; it can be pickled."""

    rows: list[Row] = field(default_factory=list)
    """In the order of the runs' names."""
    problems: list[str] = field(default_factory=list)
    """Messages for the user: files that cannot be read or that hold no training line."""
    unreadable: bool = False
    """True if a file is missing or cannot be read."""
    jobs: frozenset[str] = frozenset()
    """Ids of the jobs that the files belong to."""


Read: TypeAlias = Callable[[Task], TaskResult]


def read_run(paths: Sequence[str | os.PathLike[str]], peak_tflops: float | None = None) -> Row:
    """Return the row of the only run in `paths`, for notebooks and other programs. The row can be pickled.

    Raises ValueError if the files hold no run or several.
    """
    watch = Watch(paths=tuple(absolute(os.fspath(path)) for path in paths))
    config = Config(runs=(watch,), gpu_peak_tflops=peak_tflops)
    rows = read_task(tuple(files_of(config)[0]), config).rows
    if len(rows) != 1:
        raise ValueError(
            f"{len(rows)} runs in these files: {', '.join(row.run for row in rows) or 'none'}; one is needed"
        )
    return rows[0]


def read_task(task: Task, config: Config) -> TaskResult:
    """Read the files of a task to their ends."""
    core, problems = read_all(config, found=task)
    rows = [
        row_of(run.state, derived.run_state(run.state, run.historical), run.book.history, config.gpu_peak_tflops)
        for _, run in sorted(core.runs.items())
        if run.state.proven and run.state.sources
    ]
    jobs = frozenset(source.member.key for source in core.sources.values()) - {""}
    result = TaskResult(rows, problems, bool(core.unreadable), jobs)
    del core
    gc.collect(1)  # a core holds reference cycles; what is older stays, which takes 10 ms to look through
    return result


def tasks_of(found: Iterable[DiscoveredPath], config: Config) -> list[Task]:
    """Return the files by run, sorted by path."""
    return sorted(tuple(sorted(files)) for files in _grouped((file, _keys(file, config)) for file in found))


def _size(task: Task) -> int:
    return sum(os.path.getsize(file.path) for file in task if os.path.exists(file.path))


def _keys(file: DiscoveredPath, config: Config) -> tuple[Hashable, ...]:
    """Return the name of the run and the inode: files that share one of them are read together."""
    inode: Hashable = file.path
    with suppress(OSError):  # reading the file will report the error
        status = os.stat(file.path)
        inode = status.st_dev, status.st_ino
    return (named(file.path, config.runs).name,), inode


def _grouped(items: Iterable[tuple[T, Iterable[Hashable]]]) -> Iterable[list[T]]:
    """Return the items with keys, of which each has one at least, in groups that share a key, also by way of others."""
    group_of: dict[Hashable, list[T]] = {}
    for item, (first, *others) in items:
        group = group_of.setdefault(first, [])
        for key in others:
            other = group_of.setdefault(key, group)
            if other is not group:
                group += other
                group_of.update({known: group for known, value in group_of.items() if value is other})
        group.append(item)
    return {id(group): group for group in group_of.values()}.values()


def read_archive(tasks: Sequence[Task], read: Read, workers: int | None = None) -> Iterator[TaskResult]:
    """Yield the results of the tasks; tasks that share a job are read again as one. Raises BrokenProcessPool if a
    process is killed.

    `workers` is the number of processes; None means one a core if the logs are large, else one.
    """
    if workers is None:
        workers = len(os.sched_getaffinity(0)) if sum(map(_size, tasks)) >= _MIN_PARALLEL_BYTES else 1
    done = _read(tasks, read, max(1, min(workers, len(tasks))))
    for group in _grouped(((task, result), (task, *result.jobs)) for task, result in done):
        if len(group) == 1:
            yield group[0][1]
        else:
            yield read(tuple(sorted(file for task, _ in group for file in task)))


def _read(tasks: Sequence[Task], read: Read, workers: int) -> Iterator[tuple[Task, TaskResult]]:
    """Yield each task with its result, as tasks end. Raises BrokenProcessPool if a process is killed."""
    if workers == 1:
        yield from ((task, read(task)) for task in tasks)
        return
    context = get_context("forkserver")
    context.set_forkserver_preload(["megatron_monitor.archive"])  # imported once for all workers
    with ProcessPoolExecutor(workers, context) as pool:
        futures = {pool.submit(read, task): task for task in tasks}
        for future in as_completed(futures):
            yield futures.pop(future), future.result()

"""Archives: many finished logs to rows, some files at a time, by several processes or a Ray cluster.

Files that may be of one run or one job are read together: those whose runs have one name, or that are one file under
two names. What a log prints of its job is only known once it was read: tasks that turn out to share a job are read once
more, as one. So the rows are those of a single reading, however many processes read, and each holds one task's runs.
"""

import copyreg
import gc
import itertools
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO, TypeAlias

from megatron_monitor.config import Config, Watch
from megatron_monitor.core import Core
from megatron_monitor.core.sources import watches
from megatron_monitor.follow.discovery import Found, find
from megatron_monitor.follow.mounts import read_mounts
from megatron_monitor.follow.os_layer import OsLayer
from megatron_monitor.follow.patterns import absolute
from megatron_monitor.identity import named
from megatron_monitor.once import read_all
from megatron_monitor.reports import columns
from megatron_monitor.reports.outcome import Tally
from megatron_monitor.reports.rows import Options, Row, row_of
from megatron_monitor.run import derived
from megatron_monitor.run.state import RunState
from megatron_monitor.system.clock import Clock

_FILES = 25  # of a task: twice as many need twice the memory and are hardly faster
_BYTES = 32 << 20  # of a task, the same

Stamp: TypeAlias = tuple[str, int, int]
"""(path, bytes, last written in nanoseconds) of a file: the same file with the same content, as far as is known."""


@dataclass(frozen=True, slots=True)
class Task:
    """Files that are read together."""

    files: tuple[Found, ...]
    stamps: tuple[Stamp, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(size for _, size, _ in self.stamps)

    @property
    def is_small(self) -> bool:
        """Whether one process reads it at once."""
        return len(self.files) <= _FILES and self.size <= _BYTES


@dataclass(slots=True)
class Reading:
    """What a task gave. It pickles."""

    rows: list[Row] = field(default_factory=list)
    """In the order of the runs' names."""
    problems: list[str] = field(default_factory=list)
    """What a person should know: files that no one can read or that hold no training line."""
    jobs: frozenset[str] = frozenset()
    """Ids of the jobs that its streams are of."""


Done: TypeAlias = tuple[Task, Reading]


def _proxy(values: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(values)


copyreg.pickle(MappingProxyType, lambda proxy: (_proxy, (dict(proxy),)))  # the configuration holds some


def read_run(paths: Sequence[str | os.PathLike[str]], options: Options | None = None) -> Row:
    """The row of the one run whose logs lie at `paths`; ValueError with their names if they hold another number.

    For notebooks and frameworks of one's own: it needs nothing beside the files, and what it gives pickles.
    """
    config = Config(runs=(Watch(paths=tuple(absolute(os.fspath(path)) for path in paths)),))
    rows = read_task(Task(tuple(_files(config)), ()), config, options or Options()).rows
    if len(rows) != 1:
        raise ValueError(
            f"{len(rows)} runs in these files: {', '.join(row.run for row in rows) or 'none'}; one is needed"
        )
    return rows[0]


def _files(config: Config) -> Iterable[Found]:
    return find(watches(config), read_mounts(), OsLayer())


def read_runs(
    config: Config, options: Options, clock: Clock | None = None, found: Iterable[Found] | None = None
) -> tuple[Core, list[tuple[RunState, Row]], list[str]]:
    """(the core that read the files, each run's state and row in the order of their names, what a person should know).
    As read_all.
    """
    tallies = defaultdict[str, Tally](Tally)
    core, problems = read_all(config, clock, lambda run, *seen: tallies[run].look(*seen), found=found)
    runs = [
        (run.state, row_of(run.state, derived.run_state(run.state, run.archived), tallies[name], options))
        for name, run in sorted(core.runs.items())
        if run.state.proven and run.state.sources
    ]
    return core, runs, problems


def read_task(task: Task, config: Config, options: Options, *, slim: bool = False) -> Reading:
    """Read the files to their ends. `slim`: without what only curves and `compare` need."""
    core, runs, problems = read_runs(config, options, found=task.files)
    rows = [replace(row, curves={}, steady=[], arguments={}, profile=None) if slim else row for _, row in runs]
    jobs = frozenset(source.member.key for source in core.sources.values()) - {""}
    del core, runs
    gc.collect()  # the core's parts know each other, and the collector waits for many more of them
    return Reading(rows, problems, jobs)


def groups_of(config: Config) -> list[Task]:
    """The files, those together that have to be read together; in the order of their directories and runs."""
    groups: dict[Any, list[Found]] = {}
    group_of: dict[Any, Any] = {}
    stamps: dict[str, Stamp] = {}
    for one in _files(config):
        name: Any = named(one.path, config.runs).name
        try:
            status = os.stat(one.path)
            stamps[one.path] = one.path, status.st_size, status.st_mtime_ns
            inode: Any = status.st_dev, status.st_ino
        except OSError:  # the reading says what is wrong with it
            stamps[one.path], inode = (one.path, 0, 0), one.path
        first, second = _root(group_of, name), _root(group_of, inode)
        group_of[second] = first
        groups.setdefault(first, []).append(one)
        if first != second and second in groups:
            groups[first] += groups.pop(second)
    ordered = sorted(tuple(sorted(files)) for files in groups.values())
    return [Task(files, tuple(stamps[one.path] for one in files)) for files in ordered]


def _root(group_of: dict[Any, Any], key: Any) -> Any:
    while group_of.setdefault(key, key) != key:
        key = group_of[key]
    return key


def together(parts: Iterable[Task]) -> Task:
    """One task of several."""
    files, stamps = zip(
        *sorted(pair for part in parts for pair in zip(part.files, part.stamps, strict=True)), strict=True
    )
    return Task(files, stamps)


def tasks_of(groups: Iterable[Task]) -> Iterator[Task]:
    """Groups of files in tasks of a bounded size; a directory's, often one job's, are in one where they fit."""
    open_task = Task((), ())
    for _, some in itertools.groupby(groups, lambda group: os.path.dirname(group.files[0].path)):
        directory = list(some)
        whole = together(directory)
        for part in [whole] if whole.is_small else directory:
            wider = together((open_task, part))
            if open_task.files and not wider.is_small:
                yield open_task
                wider = part
            open_task = wider
    if open_task.files:
        yield open_task


def merged(done: Iterable[Done]) -> Iterator[list[Done]]:
    """What was read, in groups that share a job; most are alone."""
    groups: dict[int, list[Done]] = {}
    of_job: dict[str, int] = {}
    for number, (task, reading) in enumerate(done):
        group = [(task, reading)]
        for other in {of_job[job] for job in reading.jobs if job in of_job}:
            group += groups.pop(other)
        groups[number] = group
        of_job.update({job: number for _, one in group for job in one.jobs})
    yield from groups.values()


# Who reads the tasks: this process, a pool of processes, a Ray cluster. None loses a task with its worker.

_WORTH = 64 << 20  # bytes, some five seconds of reading, from which on more than one process pays for its start
_TRIES = 2  # a worker may be killed for what another process did

Read: TypeAlias = Callable[[Task], Reading]


def workers_for(tasks: Sequence[Task], wanted: int | None) -> int:
    """How many processes read: as many as wanted, else one a core where the logs are worth their start."""
    if wanted is None:
        wanted = len(os.sched_getaffinity(0)) if sum(task.size for task in tasks) >= _WORTH else 1
    return max(1, min(wanted, len(tasks)))


def read_tasks(tasks: Sequence[Task], read: Read, workers: int) -> Iterator[Done]:
    """Each task and what it gave, as they end. A task whose worker is killed is read again, in another."""
    if workers == 1:
        yield from ((task, read(task)) for task in tasks)
        return
    left = list(tasks)
    for _ in range(_TRIES):
        for done in _ended(read, left, workers):
            left.remove(done[0])
            yield done
    for task in left:
        yield _alone(task, read)


def _ended(read: Read, tasks: Iterable[Task], workers: int) -> Iterator[Done]:
    """What ends in a pool of processes before one of them is killed, which ends the pool."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["megatron_monitor.archive"])  # what a worker begins with is loaded once
    with suppress(BrokenProcessPool), ProcessPoolExecutor(workers, context) as pool:
        futures = {pool.submit(read, task): task for task in tasks}
        for future in as_completed(futures):
            yield futures.pop(future), future.result()


def _alone(task: Task, read: Read) -> Done:
    """In a process of its own, twice, for it may not have begun before: whatever kills it ends nothing else."""
    for _ in range(_TRIES):
        for done in _ended(read, [task], 1):
            return done
    names = ", ".join(one.path for one in task.files)
    return task, Reading(problems=[f"{names}: the process that read it was killed, perhaps for want of memory"])


def read_by_ray(tasks: Sequence[Task], read: Read, address: str) -> Iterator[Done]:
    """As read_tasks, by the tasks of a Ray cluster whose nodes all see the files and this installation."""
    import ray  # type: ignore[import-not-found,unused-ignore]

    root = str(Path(__file__).parents[2])
    ray.init(
        None if address == "local" else address, runtime_env={"env_vars": {"PYTHONPATH": root}}, log_to_driver=False
    )
    try:
        remote = ray.remote(read_alone).options(max_retries=3)
        shared = ray.put(read)
        left = {remote.remote(shared, task): task for task in tasks}
        while left:
            ended, _ = ray.wait(list(left))
            for one in ended:
                yield left.pop(one), ray.get(one)
    finally:
        ray.shutdown()


def read_alone(read: Read, task: Task) -> Reading:
    """What a task of Ray is."""
    return read(task)


def lines_of(task: Task, reading: Reading) -> Iterator[dict[str, Any]]:
    """What is written of a task that was read."""
    left = {stamp[0]: stamp for stamp in task.stamps}
    for row in reading.rows:
        yield {**columns.as_json(row, None), "files": [stamp for stamp in task.stamps if stamp[0] in row.sources]}
        left = {path: stamp for path, stamp in left.items() if path not in row.sources}
    if left:
        yield {"run": None, "notes": reading.problems, "files": list(left.values())}


def write(stream: TextIO, lines: Iterable[dict[str, Any]]) -> None:
    """Each as a line, all the way to the file."""
    stream.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    stream.flush()


# The file of `--resume`: JSON lines, written as they come, with which a second call goes on. A line is a row's columns
# as in `--format json`, and `files`: [path, bytes, ns of the last writing] of what it was read from. Files without a
# run have a line too, with `run` null, so that they are not read again.


def left_of(groups: Sequence[Task], path: Path) -> list[Task]:
    """The groups of which the file does not have all; what it has of those is made anew, and leaves it."""
    lines = list(_read(path))
    while True:
        known = {stamp[0]: stamp for line in lines for stamp in line["files"]}
        left = [group for group in groups if any(known.get(stamp[0]) != stamp for stamp in group.stamps)]
        kept = _without(lines, _paths(left) | (known.keys() - _paths(groups)))
        if len(kept) == len(lines):
            _replace(path, kept)
            return left
        lines = kept


def exchange(path: Path, old: Sequence[Done], new: Done) -> None:
    """What several tasks gave for what they give when they are read together."""
    _replace(path, [*_without(_read(path), _paths(task for task, _ in old)), *lines_of(*new)])


def rows_in(path: Path) -> int:
    """How many the file has."""
    return sum(line["run"] is not None for line in _read(path))


def _without(lines: Iterable[dict[str, Any]], gone: set[str]) -> list[dict[str, Any]]:
    return [line for line in lines if gone.isdisjoint(path for path, _, _ in line["files"])]


def _replace(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    beside = path.with_name(path.name + ".new")
    with beside.open("w", encoding="utf-8") as stream:
        write(stream, lines)
        os.fsync(stream.fileno())
    os.replace(beside, path)


def _paths(tasks: Iterable[Task]) -> set[str]:
    return {stamp[0] for task in tasks for stamp in task.stamps}


def _read(path: Path) -> Iterator[dict[str, Any]]:
    """Its whole lines; the last one may have been cut by a kill."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as stream:
        for text in stream:
            try:
                line = json.loads(text)
                known = [(str(name), int(size), int(at)) for name, size, at in line["files"]]
            except (ValueError, TypeError, KeyError):
                continue
            yield {**line, "files": known}

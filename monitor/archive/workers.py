"""Who reads the tasks: this process, a pool of processes, a Ray cluster. None loses a task with its worker."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import TypeAlias

from monitor.archive.tasks import Done, Reading, Task

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
        with _pool(workers) as pool:
            for task, reading in _ended(pool, read, left):
                left.remove(task)
                yield task, reading
        if not left:
            return
    yield from (_alone(task, read) for task in left)


def _pool(workers: int) -> ProcessPoolExecutor:
    context = get_context("forkserver")
    context.set_forkserver_preload(["megatron_monitor.archive"])  # what a worker begins with is loaded once
    return ProcessPoolExecutor(workers, context)


def _ended(pool: Executor, read: Read, tasks: Iterable[Task]) -> Iterator[Done]:
    """What ends before a worker is killed, which ends the pool."""
    futures: dict[Future[Reading], Task] = {}
    try:
        futures |= {pool.submit(read, task): task for task in tasks}
        for future in as_completed(futures):
            yield futures.pop(future), future.result()
    except BrokenProcessPool:
        return


def _alone(task: Task, read: Read) -> Done:
    """In a process of its own: whatever kills it ends nothing else."""
    with _pool(1) as pool:
        try:
            return task, pool.submit(read, task).result()
        except BrokenProcessPool:
            names = ", ".join(one.path for one in task.files)
            return task, Reading(problems=[f"{names}: the process that read it was killed, perhaps for want of memory"])


def read_by_ray(tasks: Sequence[Task], read: Read, address: str) -> Iterator[Done]:
    """As read_tasks, by the tasks of a Ray cluster whose nodes all see the files and this installation."""
    import ray  # type: ignore[import-not-found,unused-ignore]

    root = str(Path(__file__).resolve().parents[2])
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

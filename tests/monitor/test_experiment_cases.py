"""Several experiments in one log: each is a run of its own. What restarts is one run, and so are a job's two files."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from megatron_monitor.archive import read_task, tasks_of
from megatron_monitor.commands.arguments import ConfigOptions
from megatron_monitor.config import Config, Watch
from megatron_monitor.core import Core
from megatron_monitor.core.saved import Saved
from megatron_monitor.follow.messages import CaughtUp, Data, Opened
from megatron_monitor.incidents import Transition
from megatron_monitor.once import files_of
from megatron_monitor.parsers.reader import SourceReader
from megatron_monitor.reports.rows import Options, Row
from megatron_monitor.run.experiments import HELD_SECONDS
from tests.lines import dump, line
from tests.monitor.replayed import Ended
from tests.monitor.replayed import replayed as of_sources
from tests.plain import decode, encode

START = datetime(2026, 3, 1, 8, tzinfo=UTC)
NOW = 1_700_000_000.0
SIZES = {
    "global_batch_size": 64, "hidden_size": 2048, "log_interval": 1, "micro_batch_size": 1, "num_attention_heads": 16,
    "num_layers": 24, "pipeline_model_parallel_size": 2, "seq_length": 2048, "tensor_model_parallel_size": 2,
    "train_iters": 20, "world_size": 8, "load": "None", "save": "None",
}  # fmt: skip


class Log:
    """A log in Megatron's words, with a clock of its own."""

    def __init__(self) -> None:
        self.text = ""
        self.seconds = 0.0

    def say(self, *lines: str) -> "Log":
        """Lines without a time."""
        self.text += "".join(f"{line}\n" for line in lines)
        return self

    def stamp(self, seconds: float = 0.0) -> str:
        """The time after so many seconds more."""
        self.seconds += seconds
        return (START + timedelta(seconds=self.seconds)).strftime("%Y-%m-%d %H:%M:%S")

    def arguments(self, **arguments: object) -> "Log":
        """What DeepSpeed's launcher and Megatron say before the arguments, and these."""
        values = {**SIZES, **arguments}
        self.say(
            f"[{self.stamp(20)},666] [INFO] [runner.py:630:main] cmd = python3 -m deepspeed.launcher.launch train.py",
            f"[{self.stamp(6)},846] [INFO] [launch.py:168:main] nnodes=1, num_local_procs=8, node_rank=0",
            "torch version .................... 2.9.1+cu128",
            f"using world size: {values['world_size']}, data-parallel-size: 2, tensor-model-parallel size: 2, "
            "pipeline-model-parallel size: 2 ",
        )
        return self.dump(values)

    def dump(self, values: dict[str, object]) -> "Log":
        """An arguments dump."""
        self.text += dump(**dict(sorted(values.items())))
        return self

    def set_up(self) -> "Log":
        """From the arguments to the first iteration."""
        return self.say(
            f"[after megatron is initialized] datetime: {self.stamp(10)} ",
            f"[after dataloaders are built] datetime: {self.stamp(10)} ",
            "done with setup ...",
            "training ...",
            f"[before the start of training step] datetime: {self.stamp()} ",
        )

    def iterate(self, last: int, first: int = 1, seconds: float = 20.0, batch: int = 64, total: int = 20) -> "Log":
        """Iteration lines."""
        for number in range(first, last + 1):
            duration, date = seconds + number % 3 / 1000, f"[{self.stamp(seconds)}] "
            self.text += line(number, total, duration, 3 - number / 100, batch=batch, date=date)
        return self

    def end(self) -> "Log":
        """The loop has ended, and so have eight processes; one says something on its way out."""
        self.say(f"[after training is done] datetime: {self.stamp()} ")
        self.say(
            *(
                f"[{self.stamp()},950] [INFO] [launch.py:367:main] Process {rank} exits successfully."
                for rank in range(8)
            )
        )
        return self.say(
            "[rank1]:[W301 12:26:38.234210612 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=138, "
            "addr=[::]:27967, remote=[::]:35988): Connection reset by peer"
        )

    def saved(self, folder: str, iteration: int = 20) -> "Log":
        """A checkpoint is whole."""
        return self.say(f"  successfully saved checkpoint from iteration {iteration:7d} to {folder}")

    def die(self) -> "Log":
        """An exception that nobody catches, and the launcher's word for it."""
        return self.say(
            "Traceback (most recent call last):",
            '  File "pretrain_gpt.py", line 10, in <module>',
            "    main()",
            "FileNotFoundError: [Errno 2] No such file or directory: data.bin",
            f"[{self.stamp(1)},865] [INFO] [launch.py:335:sigkill_handler] Killing subprocess 5",
            f"[{self.stamp()},865] [ERROR] [launch.py:341:sigkill_handler] ['python'] exits with return code = 1",
        )

    def attempt(self, last: int = 20, *, first: int = 1, seconds: float = 20.0, **arguments: object) -> "Log":
        """An attempt up to iteration `last`; it says nothing of how it ends."""
        values = {**SIZES, **arguments}
        self.arguments(**arguments).set_up()
        return self.iterate(
            last, first, seconds, int(str(values["global_batch_size"])), int(str(values["train_iters"]))
        )


def sweep() -> Log:
    """Three experiments that finish and one that dies at its start."""
    log = Log()
    for number, seconds in enumerate((22.4, 20.0, 18.0)):
        log.attempt(seconds=seconds, experiment_run_id=f"exp{number}").end()
    return log.arguments(experiment_run_id="exp3").die()


def replayed(*texts: str, after: float = 10.0) -> tuple[dict[str, Ended], list[Transition]]:
    """The runs by name as `replay` ends with them, and what it tells."""
    return of_sources({str(number): SourceReader().feed(text.encode()) for number, text in enumerate(texts)}, after)


def rows_of(folder: Path, *texts: str) -> dict[str, Row]:
    """The rows of `report` by their names."""
    names = [folder / f"run.{end}" for end in ("out", "err")][: len(texts)]
    for name, text in zip(names, texts, strict=True):
        name.write_text(text)
        os.utime(name, (NOW, NOW))
    config = ConfigOptions().configured([str(name) for name in names])
    tasks = tasks_of(files_of(config)[0], config)
    return {row.run: row for task in tasks for row in read_task(task, config, Options()).rows}


# --- what is another experiment, and what is not ----------------------------------------------------------------------


def test_each_experiment_of_a_sweep_is_a_run(tmp_path: Path) -> None:
    """Its own medians, nothing lost, nothing at risk once it has finished; the crash at start lost no work."""
    runs, reported = replayed(sweep().text)
    assert list(runs) == ["run", "run:exp1", "run:exp2", "run:exp3"]
    for name, median in zip(runs, (22.4, 20.0, 18.0), strict=False):
        summary = runs[name].summary()
        assert summary["state"] == "finished"
        assert (summary["iterations"], summary["restarts"], summary["lost_iterations"]) == (20, 0, 0)
        assert summary["median_seconds_per_iteration"] == pytest.approx(median, abs=0.01)
        assert summary["goodput"] > 0.85
        assert summary["unsaved_progress_seconds"] == 0
    assert [(item.run, item.incident, item.status) for item in reported] == [("run:exp3", "crash", "firing")]
    assert "lost" not in reported[0].summary
    rows = rows_of(tmp_path, sweep().text)
    assert {name: (row.outcome, row.iterations, row.restarts) for name, row in rows.items()} == {
        "run": ("ok", 20, 0), "run:exp1": ("ok", 20, 0), "run:exp2": ("ok", 20, 0), "run:exp3": ("crash", 0, 0),
    }  # fmt: skip
    assert rows["run:exp1"].seconds_per_iteration == pytest.approx(20.0, abs=0.01)


FOLDER = {"load": "/ckpt", "save": "/ckpt", "train_iters": 40}
LAUNCHES: dict[str, tuple[Log, dict[str, tuple[int, int, int]]]] = {
    # a benchmark over sizes, without ids: the third attempt is the second once more
    **{
        f"another {name}, with {more}": (
            Log().attempt(**more).end().attempt(**more, **{name: size}).end().attempt(**more, **{name: size}).end(),
            {"run": (0, 20, 0), "run:2": (1, 40, 0)},
        )
        for name, size, more in [
            ("global_batch_size", 128, {}), ("world_size", 16, {}), ("micro_batch_size", 2, {}),
            ("global_batch_size", 128, {"load": "/ckpt", "save": "/ckpt"}),  # nothing was saved where it looks for it
        ]
    },
    # passes over one configuration, each into a folder of its own: nothing is resumed, nothing lost
    "folders of their own": (
        Log().attempt(save="/a", load="/a").saved("/a").end().attempt(save="/b", load="/b").saved("/b").end(),
        {"run": (0, 20, 0), "run:2": (0, 20, 0)},
    ),
    "from where the last one saved": (
        Log().attempt(save="/a").saved("/a").end().attempt(40, first=21, save="/b", load="/a", train_iters=40),
        {"run": (1, 40, 0)},
    ),
    "a folder of its own, behind one that had not finished": (
        Log().attempt(12, save="/a").attempt(40, save="/b", train_iters=40), {"run": (1, 52, 12)},
    ),
    "the same once more, into the same folder": (
        Log().attempt(save="/a").saved("/a").end().attempt(save="/a").saved("/a").end(), {"run": (1, 40, 0)},
    ),
    "on fewer GPUs, from the checkpoint": (
        Log().attempt(**FOLDER).saved("/ckpt", 10).attempt(30, first=11, world_size=4, global_batch_size=32, **FOLDER),
        {"run": (1, 40, 10)},
    ),
    "on fewer GPUs, after an end that was planned": (
        Log().attempt(**FOLDER).saved("/ckpt", 10)
        .say("[exiting program at iteration 20] datetime: 2026-03-01 08:08:00 ")
        .attempt(30, first=11, world_size=4, global_batch_size=32, **FOLDER), {"run": (1, 40, 0)},
    ),
    "the same id after a crash, at another batch": (
        Log().attempt(10, experiment_run_id="a").die().attempt(experiment_run_id="a", global_batch_size=32).end(),
        {"run": (1, 30, 10)},
    ),
    "the same arguments after an end": (Log().attempt().end().attempt().end(), {"run": (1, 40, 0)}),
    "a sweep that comes back": (
        Log().attempt(10, experiment_run_id="a").die().attempt(experiment_run_id="b").end()
        .attempt(experiment_run_id="a").end().attempt(experiment_run_id="c").end(),
        {"run": (1, 30, 10), "run:b": (0, 20, 0), "run:c": (0, 20, 0)},
    ),
    "an actor's and a critic's arguments at each launch": (
        Log().arguments().dump(SIZES | {"num_layers": 12}).set_up().iterate(10)
        .arguments().dump(SIZES | {"num_layers": 12}).set_up().iterate(20), {"run": (1, 30, 10)},
    ),
}  # fmt: skip
"""A log, and of each run (restarts, iterations, lost ones)."""


@pytest.mark.parametrize(("log", "expected"), LAUNCHES.values(), ids=LAUNCHES)
def test_which_launches_are_one_run(log: Log, expected: dict[str, tuple[int, int, int]]) -> None:
    """What resumes, or begins the same anew, is one; of what ended well nobody is told."""
    runs, reported = replayed(log.text)
    states = {name: player.run.state for name, player in runs.items()}
    found = {name: (one.restarts, one.iterations_total, one.lost_iterations_total) for name, one in states.items()}
    assert found == expected
    assert {item.incident for item in reported} <= {"crash"}


def test_names_are_bounded() -> None:
    """An id of any length and of any characters; two stay two."""
    log = Log().attempt(experiment_run_id="a").end()
    for last in "bc":
        log.attempt(experiment_run_id="x" * 500 + last).end()
    names = list(replayed(log.text)[0])
    assert len(set(names)) == 3
    assert max(len(name) for name in names) <= 200


# --- the daemon -------------------------------------------------------------------------------------------------------


class Daemon:
    """A core that follows one path, and what it told."""

    def __init__(self, saved: Saved | None = None, path: str = "/l/run.out") -> None:
        self.core = Core(config())
        self.path, self.offset, self.now = path, 0, NOW
        self.reported: list[tuple[str, str, str]] = []
        position = None
        if saved is not None:
            position = self.core.restore(decode(encode(saved), Saved))[path]
            self.offset = position.start
        resumed = position is not None
        self.core.handle(Opened(path, path, position, 0, NOW, resumed, offset=self.offset), NOW)
        if not resumed:
            self.core.handle(CaughtUp(path, NOW), NOW)

    def write(self, text: str, seconds: float = 1.0) -> "Daemon":
        """Text comes live after so many seconds."""
        self.now += seconds
        self.core.handle(Data(self.path, self.offset, text.encode(), self.now, self.now, 0), self.now)
        self.offset += len(text.encode())
        return self.tick()

    def tick(self, seconds: float = 0.0) -> "Daemon":
        """Time passes."""
        self.now += seconds
        self.reported += [(i.run, i.incident, i.status) for i in self.core.tick(self.now) if not i.display_only]
        return self

    def states(self) -> dict[str, str]:
        """Run -> state, as shown."""
        return {run.run: str(run.page["state"]) for run in self.core.snapshot(self.now).runs}

    def sample(self, run: str, metric: str) -> float:
        """One value of the metrics page."""
        (found,) = [shown for shown in self.core.snapshot(self.now).runs if shown.run == run]
        (sample,) = found.samples[metric]
        return float(sample.value)


def config() -> Config:
    """All of one directory."""
    return msgspec.structs.replace(Config(), runs=(Watch(paths=("/l/*",)),))


def parts(log: Log) -> list[str]:
    """The text up to each of its iteration lines, at its arguments and at its ends."""
    out, part = [], ""
    for text in log.text.splitlines(keepends=True):
        part += text
        if " iteration " in text or "end of arguments" in text or "launch.py" in text or "runner.py" in text:
            out.append(part)
            part = ""
    return [*out, part]


def test_live_each_experiment_begins_and_ends() -> None:
    """The first is finished for good when the next begins; nobody is told of anything but the crash at start."""
    daemon, seen = Daemon(), []
    for part in parts(sweep()):
        daemon.write(part, 20.0)
        seen.append(daemon.states())
    daemon.tick(60.0)
    assert daemon.states() == {
        "run": "finished", "run:exp1": "finished", "run:exp2": "finished", "run:exp3": "crashed",
    }  # fmt: skip
    ended = seen.index({"run": "finished"})
    assert all(states["run"] == "finished" for states in seen[ended:])
    assert daemon.reported == [("run:exp3", "crash", "firing")]
    for name in ("run", "run:exp1", "run:exp2"):
        assert daemon.sample(name, "megatron_iterations_total") == 20
        assert daemon.sample(name, "megatron_restarts_total") == 0
        assert daemon.sample(name, "megatron_unsaved_progress_seconds") == 0
    daemon.tick(config().run_retention)
    assert daemon.states() == {}


@pytest.mark.parametrize("cut", range(4))
def test_names_stay_over_restarts_of_the_daemon(cut: int) -> None:
    """Wherever it is stopped, also between the launcher's first lines and the arguments, and read from the start."""
    texts = parts(sweep())
    begins = [place for place, text in enumerate(texts) if "runner.py" in text][2]
    stop = begins + (-4, 0, 1, 2)[cut]
    daemon = Daemon()
    for text in texts[: stop + 1]:
        daemon.write(text, 5.0)
    again = Daemon(daemon.core.save(daemon.now))
    again.now = daemon.now
    again.core.handle(CaughtUp(again.path, again.now), again.now)
    for text in texts[stop + 1 :]:
        again.write(text, 5.0)
    again.tick(60.0)
    fresh = Daemon().write("".join(texts)).tick(60.0)
    for one in (again, fresh):
        assert one.states() == {
            "run": "finished", "run:exp1": "finished", "run:exp2": "finished", "run:exp3": "crashed",
        }  # fmt: skip
        assert {one.sample(name, "megatron_iterations_total") for name in ("run", "run:exp1", "run:exp2")} == {20}
        assert {one.sample(name, "megatron_restarts_total") for name in one.states()} == {0}


def test_a_launch_that_never_comes_to_its_arguments() -> None:
    """Its lines wait for so long and no longer: then it is a restart of the run before, and judged."""
    daemon = Daemon()
    for part in parts(Log().attempt(10, train_iters=100)):
        daemon.write(part, 20.0)
    setup_events = parts(Log().arguments())
    daemon.write(setup_events[0], 5.0)
    assert daemon.states() == {"run": "training"}
    daemon.tick(HELD_SECONDS + 1)
    assert daemon.states() == {"run": "starting"}
    assert daemon.sample("run", "megatron_restarts_total") == 1
    for part in (*setup_events[1:], Log().arguments().die().text):
        daemon.write(part)
    daemon.tick(60.0)
    assert daemon.reported == [("run", "crash", "firing")]


def test_an_old_log_that_ends_with_a_launcher_s_line_is_history() -> None:
    """What was held as the backlog ended makes no live run of it."""
    text = Log().attempt().end().text + parts(Log().arguments())[0]
    core = Core(config())
    old = NOW - 1e6
    for message in (
        Opened("/l/run.log", "/l/run.log", None, 0, old, False), Data("/l/run.log", 0, text.encode(), old, NOW, 0),
        CaughtUp("/l/run.log", NOW),
    ):  # fmt: skip
        core.handle(message, NOW)
    for seconds in (0.0, HELD_SECONDS + 1, 1e5):
        assert core.tick(NOW + seconds) == []


# --- a job's two files ------------------------------------------------------------------------------------------------


def test_the_second_file_belongs_to_the_last_experiment(tmp_path: Path) -> None:
    """Undated lines of a failure beside a sweep: to the one that did not finish."""
    out = Log().attempt(experiment_run_id="a").end().attempt(10, experiment_run_id="b")
    rows = rows_of(tmp_path, out.text, "srun: error: node04: task 12: Out Of Memory\n")
    assert {name: row.outcome for name, row in rows.items()} == {"run": "ok", "run:b": "host OOM"}

"""Files that are no trainings rest: the core keeps of them what a restart needs. One that moves again goes on, and no
line of it is lost or counted twice.
"""

import os
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from megatron_monitor.config import load
from megatron_monitor.core import Core
from megatron_monitor.follow.messages import Data, Opened, Scanned, Whole
from tests.clock import ManualClock
from tests.monitor.core.following import NOW, Following, arguments, step
from tests.monitor.follow.conftest import reader_of
from tests.plain import Disk, encode

NOISE = "service 17 NCCL INFO nothing to see here, and enough of it to be no accident {}\n"


class Both:
    """Two cores that take the same messages of the same files: in one of them files rest, in the other none does."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock, self.disks = folder, ManualClock(), (Disk(), Disk())
        self.rested = self.whole = 0
        self._begin(killed=False)
        self._save()

    def _begin(self, *, killed: bool) -> None:
        self.cores = tuple(Core(load("", [f"runs=[{{paths: [{self.folder}/*.log]}}]"])) for _ in self.disks)
        self.cores[0].rest_seconds = float("-inf")
        positions = [
            core.restore(disk.saved()) if killed else {} for core, disk in zip(self.cores, self.disks, strict=True)
        ]
        offsets = [{name: one.offset for name, one in known.items()} for known in positions]
        assert offsets[0] == offsets[1]
        self.reader = reader_of(f"{self.folder}/*.log", resume=positions[0])

    def look(self, seconds: float = 30.0) -> None:
        """Time passes, and what was written is read."""
        for _ in range(int(seconds)):
            self.clock.advance(1.0)
            for message in self.reader.poll(self.clock):
                self.whole += isinstance(message, Whole)
                for core in self.cores:
                    core.handle(message, self.clock.wall())
            for core in self.cores:
                core.tick(self.clock.wall())
            self._save()
        self.rested += len(self.cores[0].sources.resting)

    def _save(self) -> None:
        for core, disk in zip(self.cores, self.disks, strict=True):
            disk.save(core, self.clock.wall())

    def kill(self) -> None:
        """Kill -9, and a start."""
        self.reader.close()
        self._begin(killed=True)

    def told(self) -> list[dict[str, float]]:
        """By core: what was counted of the lines, and the iterations of each run."""
        found = []
        for core in self.cores:
            snapshot = core.snapshot(self.clock.wall())
            counted = core.counted().values.get("megatron_monitor_lines_total", {})
            lines = {str(labels): count for labels, count in counted.items()}
            found.append(
                lines
                | {run.run: sum(one.value for one in run.samples["megatron_iterations_total"]) for run in snapshot.runs}
            )
        return found


@pytest.mark.parametrize("seed", range(12))
def test_no_line_is_lost_or_doubled_whatever_happens_to_the_file(seed: int, tmp_path: Path) -> None:
    """Written, rotated, copied and cut, removed, begun as a training, and the monitor killed: as if nothing rested."""
    chance, both, names, written, iterations = Random(seed), Both(tmp_path), ["a", "b", "c"], 0, 0
    for number in range(40):
        path = tmp_path / f"{chance.choice(names)}.log"
        acts = ["noise", "noise", "noise", "part", "rotate", "cut", "remove", "kill", "kill", "train", "old"]
        match chance.choice(acts):
            case "noise":
                lines = chance.randint(1, 5)
                with path.open("a") as file:
                    file.write("".join(NOISE.format(f"{number}.{line}") for line in range(lines)))
                written += lines
            case "part":
                with path.open("a") as file:
                    file.write(f"{number}: what has no end yet, ")
            case "rotate" if path.exists():
                path.rename(path.with_suffix(f".log.{number}"))
            case "cut" if path.exists():
                path.with_suffix(f".log.{number}").write_bytes(path.read_bytes())
                os.truncate(path, 0)
            case "remove" if path.exists():
                path.unlink()
            case "old":
                names.append(f"old{number}")
                path = tmp_path / f"{names[-1]}.log"
                path.write_text(NOISE.format(number) * 2)
                os.utime(path, (both.clock.wall() - 3600.0,) * 2)
                written += 2
            case "kill":
                both.kill()
            case "train" if number > 25:
                iterations += 1
                with path.open("a") as file:
                    file.write("\n" + step(iterations))
        if chance.random() < 0.8:
            both.look()
    both.look(60)
    resting, plain = both.told()
    assert resting == plain
    assert both.rested
    assert both.whole
    assert sum(value for name, value in plain.items() if name.startswith("(")) >= 0.5 * written


_PIECES = [
    NOISE,
    NOISE,
    step(7),
    arguments(),
    "no end, ",
    "x" * 300,
    "\n",
    "\r\n",
    "80 %\r90 %\r",
    "\0\0",
    "é – ü\n",
    '{"log":"inner\\n","stream":"stdout","time":"2026-11-23T10:00:00Z"}\n',
    "2026-11-23T10:00:00Z stdout P half",
    "2026-11-23T10:00:00Z stdout F a line\n",
    "RuntimeError: NCCL error\n",
    "SLURM_JOB_ID=77\n",
    "-----BEGIN RSA PRIVATE KEY-----\n",
]
_HIDDEN = "\0".join(step(8))
_CARRIED = '50 %\r{"log":"Runtime\\u0045rror: NCCL \\u0065rror\\n","stream":"stderr","time":"2026-11-23T10:00:00Z"}\n'


@example([NOISE], "/l/a.log", True, "once")
@example([NOISE], "/l/a.log", False, "twice")
@example([NOISE], "/l/a.log", False, "restarted")
@example([NOISE, _HIDDEN], "/l/a.log", False, "once")
@example([NOISE, _CARRIED], "/l/a.log", False, "once")
@given(
    st.lists(st.sampled_from(_PIECES), min_size=1, max_size=6),
    st.sampled_from(["/l/a.log", "/l/slurm-77.out", "/l/77.err", "/l/b.log"]),
    st.booleans(),
    st.sampled_from(["once", "twice", "restarted"]),
)
def test_a_file_that_is_taken_whole_is_as_if_it_came_in_parts(
    pieces: list[str], path: str, scanned: bool, times: str
) -> None:
    """Whatever it holds: the same is saved, counted and kept of it, beside a run of its name or none; and again where a
    file of that path was known before.
    """
    text, cores = "".join(pieces).encode(), []
    whole = Whole(
        Opened(path, path, None, len(text), NOW - 3600.0, False, device=1, inode=2, owner=1000, mount="/"),
        Data(path, 0, text, NOW - 3600.0, NOW, 0),
    )
    for messages in ((whole,), whole.parts):
        logs = Following()
        logs.core.rest_seconds = 900.0
        logs.open("/l/b.err", arguments() + step(1))
        if scanned:
            logs.core.handle(Scanned("/", NOW), NOW)
        for message in messages:
            logs.core.handle(message, NOW)
        if times == "restarted":
            saved, logs.core = logs.saved(), logs._begun()
            logs.core.rest_seconds = 900.0
            logs.core.restore(saved)
        for message in messages if times != "once" else ():
            logs.core.handle(message, NOW)
        logs.core.tick(NOW)
        cores.append(logs.core)
    one, other = cores
    assert one.sources.keys() == other.sources.keys()
    assert {name: encode(kept) for name, kept in one.parts(NOW).items()} == {
        name: encode(kept) for name, kept in other.parts(NOW).items()
    }
    assert one.sources.resting == other.sources.resting


def test_a_file_that_rested_becomes_a_training() -> None:
    """Its first lines count once, and the training is told as ever."""
    logs = Following()
    logs.open("/l/job.log", NOISE.format(1) * 3, age=3600.0)
    assert list(logs.core.sources.resting) == ["/l/job.log"]
    assert not logs.core.sources
    logs.wait(3)
    logs.killed()
    logs.wait(3)
    assert list(logs.core.sources.names) == ["/l/job.log"]
    logs.write("/l/job.log", arguments() + "".join(step(number) for number in range(1, 6)))
    logs.wait(3)
    assert logs.totals() == {"job": 5.0}
    assert not logs.core.sources.resting
    logs.killed()
    assert logs.totals() == {"job": 5.0}


def test_a_file_that_rests_goes_on_beside_the_other_stream_of_its_job() -> None:
    """Standard error without a word of use, then standard output: both are sources of the run."""
    logs = Following()
    logs.open("/l/77.err", NOISE.format(1) * 3, age=3600.0)
    assert list(logs.core.sources.resting) == ["/l/77.err"]
    logs.write("/l/77.out", arguments() + step(1) + step(2))
    logs.wait(3)
    assert set(logs.core.sources) == {"/l/77.err", "/l/77.out"}
    saved = logs.saved()
    assert {name: one.run for name, one in saved.sources.items()} == {"/l/77.err": "77", "/l/77.out": "77"}


def test_what_is_kept_of_a_file_that_rests_is_small() -> None:
    """Not a reader, a marker and what else a source has; and where a proof would be weak it does not rest."""
    logs = Following()
    for number in range(50):
        logs.open(f"/l/service{number}.log", NOISE.format(number) * 3, age=3600.0)
    logs.open("/l/short.log", "few\n", age=3600.0)
    assert len(logs.core.sources.resting) == 50
    assert set(logs.core.sources) == {"/l/short.log"}
    assert max(len(kept) for kept in logs.core.sources.resting.values()) < 512


def test_a_new_configuration_takes_up_what_has_rested_for_a_month() -> None:
    """It was followed all the time: nothing of it has expired."""
    logs = Following()
    logs.open("/l/job.log", NOISE.format(1) * 3, age=3600.0)
    logs.now += 31 * 86400.0
    positions = logs.core.reconfigure(load("", []), logs.now)
    logs.core.parts(logs.now)
    assert positions.keys() == logs.core.saved.sources.keys() == {"/l/job.log"}


def test_a_restart_lays_a_file_aside_as_it_was_saved() -> None:
    """Its part of the state is not written again, and what is written to its neighbour later counts once."""
    logs = Following()
    logs.open("/l/job.log", NOISE.format(1) * 3, age=3600.0)
    logs.open("/l/77.err", NOISE.format(2) * 3, age=3600.0)
    logs.open("/l/77.out", NOISE.format(3) * 3, age=3600.0)
    before = logs.saved().sources
    logs.killed()
    assert "job" not in logs.core.touched
    assert "/l/job.log" in logs.core.sources.resting
    assert {name: one.position for name, one in logs.saved().sources.items()} == {
        name: one.position for name, one in before.items()
    }
    logs.write("/l/77.out", arguments() + step(1) + step(2))
    logs.wait(3)
    assert logs.totals() == {"77": 2.0}


def test_a_restart_saves_no_run_again_that_is_over() -> None:
    """What is written to its log later counts once, over another restart too."""
    logs = Following()
    logs.open("/l/over.log", arguments() + step(1) + step(2), age=2 * 86400.0)
    logs.open("/l/live.log", arguments() + step(1) + step(2))
    logs.wait(3)
    for _ in range(2):
        logs.killed()
        logs.core.tick(logs.now)
        assert {"over", "live"} & logs.core.touched == {"live"}
    logs.write("/l/over.log", step(3))
    logs.wait(3)
    logs.killed()
    assert logs.totals() == {"live": 2.0, "over": 3.0}

"""Old files that are no trainings are dormant: the core keeps of them what a restart needs. One that moves again goes
on, and no line of it is lost or counted twice.
"""

import os
from pathlib import Path
from random import Random

import pytest

from megatron_monitor.config import load
from megatron_monitor.core import Core
from tests.clock import ManualClock
from tests.conftest import spread
from tests.monitor.core.following import Following, arguments, step
from tests.monitor.follow.conftest import reader_of
from tests.plain import Disk

NOISE = "service 17 NCCL INFO nothing to see here, and enough of it to be no accident {}\n"


class Both:
    """Two cores that take the same messages of the same files: in the first files are dormant, in the other none."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock, self.disks = folder, ManualClock(), (Disk(), Disk())
        self.dormant = 0
        self._begin(killed=False)
        self._save()

    def _begin(self, *, killed: bool) -> None:
        self.cores = tuple(Core(load("", [f"runs=[{{paths: [{self.folder}/*.log]}}]"])) for _ in self.disks)
        self.cores[0].dormant_seconds = float("-inf")
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
                for core in self.cores:
                    core.handle(message, self.clock.wall())
            for core in self.cores:
                core.tick(self.clock.wall())
            self._save()
        self.dormant += len(self.cores[0].sources.dormant)

    def _save(self) -> None:
        for core, disk in zip(self.cores, self.disks, strict=True):
            disk.save(core, self.clock.wall())

    def kill(self) -> None:
        """Kill -9, and a start."""
        self.reader.close()
        self._begin(killed=True)

    def reported(self) -> list[dict[str, float]]:
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


@pytest.mark.parametrize("seed", spread(range(12), 3))
def test_no_line_is_lost_or_doubled_whatever_happens_to_the_file(seed: int, tmp_path: Path) -> None:
    """Written, rotated, cut, removed, begun as a training, and the monitor killed: as if nothing were dormant."""
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
    dormant, plain = both.reported()
    assert dormant == plain
    assert both.dormant
    assert sum(value for name, value in plain.items() if name.startswith("(")) >= 0.5 * written


def test_a_dormant_file_goes_on_beside_the_other_stream_of_its_job() -> None:
    """Standard error without a word of use, then standard output: both are sources of the run."""
    logs = Following()
    logs.open("/l/77.err", NOISE.format(1) * 3, age=3600.0)
    assert list(logs.core.sources.dormant) == ["/l/77.err"]
    logs.write("/l/77.out", arguments() + step(1) + step(2))
    logs.wait(3)
    assert set(logs.core.sources) == {"/l/77.err", "/l/77.out"}
    saved = logs.saved()
    assert {name: one.run for name, one in saved.sources.items()} == {"/l/77.err": "77", "/l/77.out": "77"}


def test_what_is_kept_of_a_dormant_file_is_small() -> None:
    """Not a reader, a marker and what else a source has; and where a proof would be weak it is not dormant."""
    logs = Following()
    for number in range(50):
        logs.open(f"/l/service{number}.log", NOISE.format(number) * 3, age=3600.0)
    logs.open("/l/short.log", "few\n", age=3600.0)
    assert len(logs.core.sources.dormant) == 50
    assert logs.core.logs.keys() == {"short"}
    assert set(logs.core.sources) == {"/l/short.log"}
    assert max(len(kept) for kept in logs.core.sources.dormant.values()) < 512


def test_a_dormant_file_is_dormant_after_a_restart() -> None:
    """Its part of the state is not written again, and what is written to its neighbour later counts once."""
    logs = Following()
    logs.open("/l/job.log", NOISE.format(1) * 3, age=3600.0)
    logs.open("/l/77.err", NOISE.format(2) * 3, age=3600.0)
    logs.open("/l/77.out", NOISE.format(3) * 3, age=3600.0)
    before = logs.saved().sources
    logs.killed()
    assert "job" not in logs.core.touched
    assert "/l/job.log" in logs.core.sources.dormant
    assert "job" not in logs.core.logs  # there may be a hundred thousand such files
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

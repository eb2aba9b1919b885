"""Steps taken at once leave what steps taken one by one leave: the state and everything that is told, bit for bit.

`repr` tells 1 from 1.0, -0.0 from 0.0 and floats to their last digit.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Sequence

import pytest

from monitor.config import default_config
from monitor.judgement import Judge, Judged, Patience
from monitor.replay import Replay, replay
from monitor.run.state import RunState
from monitor.simulate import DIALECTS, FAULTS, Fault, Scenario, timeline
from parsers.events import LogEvent
from parsers.reader import SourceReader
from parsers.stretch import Stretch
from tests.conftest import REAL_LOGS

SOURCE = "a.log"
JUDGE = Judge(default_config())


def _chunks(text: bytes, size: int, stretches: bool) -> Iterator[Sequence[LogEvent | Stretch]]:
    reader = SourceReader()
    for place in range(0, len(text), size):
        chunk = text[place : place + size]
        yield reader.feed_stretches(chunk, JUDGE.inert) if stretches else reader.feed(chunk)
    yield reader.flush()


def _read(text: bytes, size: int, stretches: bool) -> Iterator[LogEvent | Stretch]:
    return itertools.chain.from_iterable(_chunks(text, size, stretches))


def _backlog(text: bytes, size: int, stretches: bool) -> tuple[Judged, int]:
    """As the core reads a file that was there when it began; and how many lines were taken at once."""
    judge, run, at_once = Judge(default_config()), Judged(RunState(name="run")), 0
    timed = ((1000.0 + chunk, entry) for chunk, part in enumerate(_chunks(text, size, stretches)) for entry in part)
    for at, entry in timed:
        if isinstance(entry, LogEvent):
            judge.take(run, entry, SOURCE, at, False)
            continue
        patience, row = Patience(), 0
        while row < len(entry):
            taken = judge.take_steps(run, entry, row, SOURCE, [at] * (len(entry) - row), False)
            at_once += taken
            row += taken
            for alone in range(row, min(len(entry), row + patience.after(taken))):
                judge.take(run, entry.entry(alone), SOURCE, at, False)
                row = alone + 1
    run.state.live = True
    judge.judge(run, 2000.0)
    return run, at_once


def _replayed(texts: dict[str, bytes], size: int, stretches: bool) -> list[str]:
    said = []
    player: Replay | None = None
    sources = {name: _read(text, size, stretches) for name, text in texts.items()}
    for player, transition in replay(Judge(default_config(), repeats=False), "run", sources):
        said.append(repr(transition) if transition is not None else repr(player.summary()))
    assert player is not None
    return [*said, *_parts(player.run)]


def _parts(run: Judged) -> list[str]:
    """The state field by field, for a difference that can be read."""
    state = run.state
    state.history.settle()
    return [*(f"{name}: {getattr(state, name)!r}" for name in RunState.__dataclass_fields__), repr(run.book)]


def _same(text: bytes, size: int = 1 << 20) -> int:
    """Both ways agree; how many lines of the backlog were taken at once."""
    one, _ = _backlog(text, size, False)
    many, at_once = _backlog(text, size, True)
    assert _parts(many) == _parts(one)
    assert _replayed({SOURCE: text}, size, True) == _replayed({SOURCE: text}, size, False)
    return at_once


_KINDS = [None, *sorted(FAULTS)]
_PAIRS = [(kind, dialect) for kind in _KINDS for dialect in sorted(DIALECTS)][::5]


@pytest.mark.parametrize(("kind", "dialect"), _PAIRS)
def test_simulated_faults(kind: str | None, dialect: str) -> None:
    """Each fault in a few dialects, each dialect with a few faults; some with a loss scale, evaluation, another cut."""
    seed = len(kind or "") + len(dialect)
    scenario = Scenario(
        dialect=dialect,
        fp16=bool(seed % 2),
        seed=seed,
        eval_interval=150 if seed % 3 else 0,
        iterations=420,
        faults=(Fault(kind, 250, factor=1.1),) if kind else (),
    )
    text = b"".join(emission.text.encode() for emission in timeline(scenario))
    _same(text, (1 << 20, 30_000, 9_000)[seed % 3])


TIMERS = [
    (
        "(min, max) time across ranks (ms):",
        "    forward-backward ...............................: (13##.##, 13##.##)",
        "    optimizer ......................................: (2.##, 2.##)",
    ),
    ("    time (ms) | forward-compute: 1##.## | optimizer: 2.##",),
    ("rank=0 time (ms) | forward: 1##.## | evaluate: 2.##", "rank=0 time (ms) | step: 1#.##"),
]
"""What trainings print under each iteration line, `#` a digit: Megatron-LM's timers in two forms, DeepSpeed's."""


class Wild:
    """A training that everything happens to, each line now and then something: Megatron-LM's format, our numbers."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.iteration, self.samples, self.batch, self.level, self.loss = 0, 0, 512, 2.0, 3.0
        self.scale = self.chance.choice([1.0, 65536.0])
        self.clock = 10.0
        self.noise = self.chance.choice([0.002, 0.01, 0.03])
        self.timed, self.tflops = self.chance.random() < 0.7, self.chance.random() < 0.7
        self.every = self.chance.choice([1, 1, 1, 10])
        self.trouble = self.chance.choice([0.0, 0.002, 0.01, 0.05])
        self.total = self.chance.choice([100_000, 1500])
        self.timers = self.chance.choice([(), (), *TIMERS])

    def lines(self, count: int) -> Iterator[str]:
        """So many iteration lines and what stands between them."""
        yield "using world size: 64, data-parallel size: 8, tensor-model-parallel size: 8"
        yield "training ..."
        for _ in range(count):
            if self.chance.random() < self.trouble:
                yield from self.happens()
            yield self.line()
            yield from self.reports()
            while self.chance.random() < 0.3:
                yield "node3: NCCL INFO nothing at all"

    def line(self) -> str:
        """The next iteration's."""
        chance = self.chance
        self.iteration += self.every
        self.samples += self.batch * self.every
        seconds = self.level * (1 + self.noise * chance.gauss(0, 1))
        self.clock += seconds * self.every + chance.choice([0.0, 0.0, 0.01])
        loss = self.loss * (1 + self.noise * chance.gauss(0, 1))
        self.loss *= 0.9999
        stamp = f" [2026-03-{1 + int(self.clock // 86400):02d} {self._time()}]" if self.timed else ""
        tflops = f" throughput per GPU (TFLOP/s/GPU): {300 / seconds:.1f} |" if self.tflops else ""
        return (
            f"{stamp} iteration {self.iteration:8d}/{self.total:8d} | consumed samples: {self.samples:12d} | elapsed "
            f"time per iteration (ms): {seconds * 1000:.1f} |{tflops} learning rate: {3e-4 / (1 + self.iteration):.6E} "
            f"| global batch size: {self.batch:5d} | lm loss: {loss:.6E} | loss scale: {self.scale:.1f} | "
            f"grad norm: {0.3 + 0.1 * chance.random():.3f} | number of skipped iterations:   0 | "
            "number of nan iterations:   0 |"
        )

    def _time(self) -> str:
        day = self.clock % 86400
        return f"{int(day // 3600):02d}:{int(day // 60 % 60):02d}:{day % 60:09.6f}"

    def reports(self) -> Iterator[str]:
        """What stands under an iteration line: timers, now and then of a save or an evaluation."""
        for form in self.timers:
            yield re.sub("#", lambda _: self.chance.choice("0123456789"), form)
        if self.timers and self.chance.random() < self.trouble:
            yield self.chance.choice(
                [
                    "    save-checkpoint ................................: (1500.00, 1512.25)",
                    "time (ms) | evaluate: 100.10 | forward-compute: 12.5",
                    "node3:     optimizer ......................................: (2.38, 2.44)",
                    "[2026-03-01 07:00:00] time (ms) | optimizer: 12.5",
                ]
            )

    def happens(self) -> Iterator[str]:
        """Something."""
        chance, line = self.chance, ""
        kind = chance.randrange(16)
        if kind == 0:
            self.level *= chance.choice([0.9, 1.05, 1.3])
        elif kind == 1:
            self.loss *= chance.choice([0.5, 1.3, 3.0])
        elif kind == 2:
            self.batch += 64
        elif kind == 3:
            self.scale = max(1.0, self.scale * chance.choice([0.5, 2.0]))
        elif kind == 4:
            line = self.line().replace("skipped iterations:   0", "skipped iterations:   1")
        elif kind == 5:
            line = self.line().replace("nan iterations:   0", "nan iterations:   1")
        elif kind == 6:
            line = self.line()
            line = f"{line}\n{line}"
        elif kind == 7:
            line = self.line()[: chance.randrange(300)]
        elif kind == 8:
            line = f"validation loss at iteration {self.iteration} | lm loss value: 2.5E+00 | lm loss PPL: 1.2E+01 |"
        elif kind == 9:
            yield f"saving checkpoint at iteration {self.iteration:7d} to /data/run"
            line = f"  successfully saved checkpoint at iteration {self.iteration:7d} to /data/run"
        elif kind == 10:
            back = chance.randrange(1, 200)
            self.iteration, self.samples = max(0, self.iteration - back), max(0, self.samples - back * self.batch)
            if chance.random() < 0.5:
                yield "[before the start of training step] datetime: 2026-03-01 08:00:00 "
        elif kind == 11:
            self.clock += chance.choice([50.0, 3000.0, -5.0])
        elif kind == 12:
            line = "time (ms) | forward-compute: 100.10 | save-checkpoint: 1500.00"
        elif kind == 13:
            reserved = chance.randrange(300, 900)
            line = (
                f"[Rank 0] (after {self.iteration} iterations) memory (MB) | allocated: 100.5 | max allocated: 200.5 "
                f"| reserved: 300.0 | max reserved: {reserved}.0"
            )
        elif kind == 14:
            line = self.line().replace("lm loss: ", "lm loss: nan  x: ")
        else:
            self.iteration += self.every
        if line:
            yield line


@pytest.mark.parametrize("seed", range(28))
def test_whatever_happens(seed: int) -> None:
    """Random trainings with steps, spikes, restarts, copies, torn lines, saves, batch sizes, at random cuts."""
    wild = Wild(seed)
    text = "\n".join(wild.lines(wild.chance.choice([40, 400, 1600]))).encode() + b"\n"
    _same(text, wild.chance.choice([2_000, 40_000, 1 << 20]))


@pytest.mark.parametrize("seed", range(2000, 2012))
def test_several_files_of_a_run(seed: int) -> None:
    """A replay puts the lines of several files in order: copies of the log, its other half, what stands in an .err."""
    wild = Wild(seed)
    lines, chance = list(wild.lines(500)), wild.chance
    err = [line for line in lines if "iteration" not in line or chance.random() < 0.05]
    half = [line for line in lines if chance.random() < 0.5]
    files = {"b.out": lines, "a.err": err, "c.log": chance.choice([half, lines, []])}
    texts = {name: "\n".join(part).encode() + b"\n" for name, part in files.items()}
    assert _replayed(texts, 20_000, True) == _replayed(texts, 20_000, False)


@pytest.mark.parametrize("seed", [1000, 1001])
def test_a_healthy_run_is_taken_at_once(seed: int) -> None:
    """Else the law would prove nothing: of 3,000 healthy lines 2,900 are, in both number formats."""
    wild = Wild(seed)
    wild.trouble, wild.noise, wild.every, wild.total = 0.0, 0.004, 1, 100_000
    wild.scale = (1.0, 65536.0)[seed % 2]
    assert _same("\n".join(wild.lines(3000)).encode() + b"\n") >= 2900


@pytest.mark.parametrize("timers", TIMERS)
def test_a_healthy_run_that_prints_timers_is_taken_at_once(timers: tuple[str, ...]) -> None:
    """Lines that change nothing do not stand in the way."""
    wild = Wild(1000)
    wild.trouble, wild.noise, wild.every, wild.total, wild.timers = 0.0, 0.004, 1, 100_000, timers
    assert _same("\n".join(wild.lines(1500)).encode() + b"\n") >= 1400


def test_a_node_is_counted_for_the_launch_in_which_it_speaks() -> None:
    """Timers with a node's name are not inert: behind a line that begins another launch they would count for that."""
    wild = Wild(1000)
    wild.trouble, wild.timers = 0.0, ("node3:     optimizer .....................................: (2.38, 2.44)",)
    lines = list(wild.lines(60))
    wild.iteration -= 30 * wild.every
    wild.samples -= 30 * wild.every * wild.batch
    lines += itertools.islice(wild.lines(60), 2, None)  # without its two lines of a launch
    _same("\n".join(lines).encode() + b"\n")


@pytest.mark.real_logs
@pytest.mark.parametrize(
    "path",
    sorted(path for path in REAL_LOGS.rglob("*") if path.suffix in (".log", ".out", ".err")),
    ids=lambda path: str(path.relative_to(REAL_LOGS)),
)
def test_real_logs(path: object) -> None:
    """Each file by itself."""
    _same(path.read_bytes())  # type: ignore[attr-defined]

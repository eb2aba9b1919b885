"""Logs as they come out of other pipes: counts and alarms stay those of the clean log, whatever stands between its
lines, before them and behind them.
"""

import io
import random
from collections.abc import Callable
from functools import cache

import pytest

from megatron_monitor.config import Config
from megatron_monitor.reading import dated_events
from megatron_monitor.simulate import Fault, Scenario, timeline
from tests.monitor.replayed import replayed

NOISE = (
    b"\x00\xff\xfe\x80\x1b[",
    b"wandb: \xf0\x9f\x9a\x80 Syncing run worthy-sun-42",
    b"/opt/torch/utils/checkpoint.py:429: UserWarning: please pass in use_reentrant=True",
    b"  warnings.warn(",
    b"node01:4242:4300 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC",
    b'{"a": [1, 2, 3], "b": null}',
    b"%|  | it/s",
    b"iteration",
    b"| loss |",
    b"INFO 2026-13-45 99:99:99 nonsense",
    b"A" * 5000,
    b"",
)
"""What stands between the lines of real logs, and what is only rude."""


class Slow(io.BytesIO):
    """A stream that gives pieces of any length, cut anywhere."""

    rng = random.Random(3)

    def read(self, _size: int | None = -1) -> bytes:
        """As many bytes as it likes."""
        return super().read(self.rng.choice([1, 7, 100, 1000, 4096]))


def between(data: bytes) -> bytes:
    """Noise behind one line of three."""
    rng = random.Random(7)
    lines = ([line, rng.choice(NOISE)] if rng.random() < 0.3 else [line] for line in data.split(b"\n"))
    return b"\n".join(piece for pieces in lines for piece in pieces)


def each(before: bytes, behind: bytes = b"") -> Callable[[bytes], bytes]:
    """Every line in something."""
    return lambda data: b"\n".join(before + line + behind if line else line for line in data.split(b"\n"))


MUTATIONS: dict[str, Callable[[bytes], bytes]] = {
    "noise between the lines": between,
    "colours": each(b"\x1b[32m", b"\x1b[0m"),
    "carriage returns": lambda data: data.replace(b"\n", b"\r\n"),
    "blank lines": lambda data: data.replace(b"\n", b"\n\n"),
    "blanks at the end": each(b"", b"   "),
    "torchrun's tee": each(b"[default0]:"),
    "srun's labels": each(b"0: "),
    "pdsh's hosts": each(b"node01: "),
}


def simulated(fault: Fault | None, **sizes: object) -> bytes:
    """A scenario's log."""
    faults = () if fault is None else (fault,)
    scenario = Scenario(iterations=60, seconds_per_iteration=20.0, faults=faults, **sizes)  # type: ignore[arg-type]
    return "".join(emission.text for emission in timeline(scenario)).encode()


def composer() -> bytes:
    """A block of indented lines a batch."""
    values = "\t Train time/batch: {}\n\t Train loss/train/total: 11.{}\n\t Train time/train: {:.4f}\n"
    return "".join(f"[batch={n}/40]:\n" + values.format(n - 1, n, n * 20 / 3600) for n in range(1, 41)).encode()


LOGS: dict[str, Callable[[], bytes]] = {
    "Megatron-LM crashes and goes on": lambda: simulated(Fault("crash_oom", 40), format="megatron-lm", log_interval=1),
    "microsoft, slower": lambda: simulated(Fault("slowdown", 40, factor=1.2), format="microsoft", log_interval=1),
    "torchtitan loses its loss": lambda: simulated(Fault("nan_loss", 40), format="torchtitan"),
    "HF's Trainer": lambda: simulated(None, format="hf-trainer", log_interval=1),
    "Composer": composer,
}


def said(data: bytes, stream: type[io.BytesIO] = io.BytesIO) -> tuple[list[object], list[object]]:
    """What `replay` counts, and what it tells."""
    runs, reported = replayed({"run.log": dated_events(stream(data), Config())})
    states = [ended.run.state for ended in runs.values()]
    return [
        (state.iterations_total, state.attempt.latest.iteration, state.restarts, state.failures_total)
        for state in states
    ], [(item.incident, item.status, item.severity, item.onset_iteration) for item in reported]


@cache
def clean(name: str) -> tuple[bytes, tuple[list[object], list[object]]]:
    """The log, and what is said of it."""
    data = LOGS[name]()
    return data, said(data)


@pytest.mark.parametrize("name", LOGS)
def test_the_clean_log(name: str) -> None:
    """Each counts its steps, and tells of its fault alone."""
    (counted, *_), *_ = clean(name)[1][0]
    assert counted >= 39
    kinds = {item[0] for item in clean(name)[1][1]}  # type: ignore[index]
    wanted = {"crashes": {"crash"}, "slower": {"slowdown"}, "loses": {"nan_loss"}}
    assert kinds == next((kind for word, kind in wanted.items() if word in name), set())


@pytest.mark.parametrize("mutation", MUTATIONS)
@pytest.mark.parametrize("name", LOGS)
def test_a_mutated_log_says_the_same(name: str, mutation: str) -> None:
    """Whoever wrote, coloured, labelled or tore it."""
    data, expected = clean(name)
    assert said(MUTATIONS[mutation](data)) == expected


@pytest.mark.parametrize("name", LOGS)
def test_a_log_in_pieces_says_the_same(name: str) -> None:
    """Lines are cut at any byte."""
    data, expected = clean(name)
    assert said(data, Slow) == expected

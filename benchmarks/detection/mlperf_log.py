"""Results of MLPerf Training (`:::MLLOG {...}` lines) -> a run's steps, and those as the lines of a Megatron log.

Pre-training prints a `tracked_stats` every step (`train_step_time`, or `train_step_timing in s` of older rounds),
fine-tuning a `train_loss` every few steps: their times follow from the time stamps, without the evaluations between.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

_MARK = ":::MLLOG "
_STEP_TIMES = ("train_step_time", "train_step_timing in s")
_STATUS_OF_SUCCESS = "success"


@dataclass(frozen=True)
class Line:
    """Steps up to `iteration`, printed at Unix second `at`; `paused` seconds of evaluation lie before it."""

    at: float
    iteration: int
    steps: int
    seconds: float
    """Per step, without evaluation."""
    loss: float | None = None
    paused: float = 0.0


@dataclass(frozen=True)
class Evaluation:
    """An evaluation that ended at Unix second `at`, after step `iteration`."""

    at: float
    iteration: int
    value: float


@dataclass
class Run:
    """One result file."""

    name: str
    batch_size: int = 1
    started: float | None = None
    stopped: float | None = None
    successful: bool = False
    max_steps: int | None = None
    lines: list[Line] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """Steps that the lines stand for."""
        return sum(line.steps for line in self.lines)


class _Reader:
    """Takes the records of one file in their order."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.last_at: float | None = None
        self.last = 0
        self.evaluating: float | None = None
        self.paused = 0.0
        self.unit: float | None = None
        """What `step` of a `tracked_stats` grows by in one step: samples, or tokens."""
        self.own_times = False
        """Steps print their own times: then lines of the loss alone are none."""

    def take(self, record: dict[str, Any]) -> None:
        """One record."""
        at, key, value = float(record["time_ms"]) / 1000, record["key"], record["value"]
        metadata = record.get("metadata") or {}
        run = self.run
        if key == "global_batch_size" and isinstance(value, int | float) and value > 0:
            run.batch_size = int(value)
        elif key == "max_steps" and isinstance(value, int | float) and value > 0:
            run.max_steps = int(value)
        elif key == "run_start":
            run.started = self.last_at = at
        elif key == "run_stop":
            run.stopped, run.successful = at, metadata.get("status") == _STATUS_OF_SUCCESS
        elif key == "eval_start":
            self.evaluating = at
        elif key == "eval_accuracy":
            if isinstance(value, int | float):
                run.evaluations.append(Evaluation(at, self._step_of(metadata), float(value)))
        elif key == "eval_stop" and self.evaluating is not None:
            self.paused, self.evaluating = self.paused + at - self.evaluating, None
        elif key == "tracked_stats" and isinstance(value, dict):
            self._take_stats(at, value, metadata)
        elif key == "train_loss" and not self.own_times:
            self._take_loss(at, value, metadata)

    def _take_stats(self, at: float, value: dict[str, Any], metadata: dict[str, Any]) -> None:
        seconds = next((value[name] for name in _STEP_TIMES if isinstance(value.get(name), int | float)), None)
        place = metadata.get("step")
        if seconds is None or "throughput" in value or not isinstance(place, int | float) or place <= 0:
            return  # of a whole block, or of something else
        if self.unit is None:
            self.unit = float(self.run.batch_size if place < 1000 * self.run.batch_size else place)
            self.own_times, self.run.lines[:], self.last = True, [], 0
        self._add(at, round(place / self.unit), float(seconds), value.get("reduced_train_loss"))

    def _take_loss(self, at: float, value: object, metadata: dict[str, Any]) -> None:
        iteration = self._step_of(metadata)
        if self.last_at is None or iteration <= self.last:
            return
        spent = (at - self.last_at - self.paused) / (iteration - self.last)
        if spent > 0:
            self._add(at, iteration, spent, value)

    def _step_of(self, metadata: dict[str, Any]) -> int:
        samples = metadata.get("samples_count")
        return int(samples) // self.run.batch_size if isinstance(samples, int | float) else self.last

    def _add(self, at: float, iteration: int, seconds: float, loss: object) -> None:
        if iteration <= self.last:
            return
        known = float(loss) if isinstance(loss, int | float) else None
        self.run.lines.append(Line(at, iteration, iteration - self.last, seconds, known, self.paused))
        self.last, self.last_at, self.paused = iteration, at, 0.0


def read_run(name: str, lines: Iterable[str]) -> Run | None:
    """A result file as a run; None where it holds no record."""
    reader, seen = _Reader(Run(name)), False
    for line in lines:
        start = line.find(_MARK)
        if start < 0:
            continue
        try:
            record = json.loads(line[start + len(_MARK) :])
            reader.take(record)
        except (ValueError, KeyError, TypeError):  # torn, or another program's
            continue
        seen = True
    return reader.run if seen else None


# --- as Megatron prints it ------------------------------------------------------------------------------------------


def megatron_lines(run: Run, *, dated: bool = True, inside: bool = False) -> Iterator[str]:
    """The run's log: the arguments, its steps, its evaluations (never dated), its end. `inside`: the printed time of a
    step holds the evaluation before it.
    """
    last = run.lines[-1].iteration
    total = max(run.max_steps or 0, last)
    started = run.started if run.started is not None else run.lines[0].at - run.lines[0].steps * run.lines[0].seconds
    yield "------------------------ arguments ------------------------"
    for argument, value in _arguments(run, total).items():
        yield f"  {argument} {'.' * (48 - len(argument))} {value}"
    yield "-------------------- end of arguments ---------------------"
    yield f"[before the start of training step] datetime: {_stamp(started)} "
    evaluations = iter(sorted(run.evaluations, key=lambda item: item.at))
    coming = next(evaluations, None)
    for line in run.lines:
        counted = f"consumed samples: {line.iteration * run.batch_size:12d}"
        while coming is not None and coming.at <= line.at:
            yield _evaluation(coming)
            coming = next(evaluations, None)
        spent = line.seconds + (line.paused / line.steps if inside else 0.0)
        loss = f" lm loss: {line.loss:.6E} |" if line.loss is not None else ""
        yield (
            f"{f' [{_stamp(line.at)}]' if dated else ''} iteration {line.iteration:8d}/{total:8d} | {counted} | "
            f"elapsed time per iteration (ms): {1000 * spent:.1f} | learning rate: 1.000000E-04 | "
            f"global batch size: {run.batch_size:5d} |{loss} loss scale: 1.0 | "
            "number of skipped iterations:   0 | number of nan iterations:   0 |"
        )
    while coming is not None:
        yield _evaluation(coming)
        coming = next(evaluations, None)
    yield f"[after training is done] datetime: {_stamp(run.stopped or run.lines[-1].at)} "


def _evaluation(item: Evaluation) -> str:
    return f" validation loss at iteration {item.iteration} | lm loss value: {item.value:.6E} | "


def _arguments(run: Run, total: int) -> dict[str, object]:
    places = [item.iteration for item in run.evaluations]
    between = Counter(after - before for before, after in pairwise(places) if after > before)
    return {
        "eval_interval": between.most_common(1)[0][0] if between else (places or [total])[0],
        "eval_iters": 10 if places else 0,
        "global_batch_size": run.batch_size,
        "log_interval": Counter(line.steps for line in run.lines).most_common(1)[0][0],
        "seq_length": 8192,
        "train_iters": total,
    }


def _stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")

"""The four ways in which the product reads a log, and what it says in each, as facts.

Here alone the corpus touches the product's reading: a command, a page, messages of the follower. A fact is a line of
public names and numbers; facts of the four modes can be compared as text.
"""

import json
import math
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from megatron_monitor.commands.arguments import ConfigOptions
from megatron_monitor.commands.replay import replay as replay_command
from megatron_monitor.core import Core
from megatron_monitor.core.saved import of_parts
from megatron_monitor.follow.content import Content
from megatron_monitor.follow.messages import CaughtUp, Data, Opened, Scanned
from megatron_monitor.incidents import Transition
from megatron_monitor.once import metrics_page
from megatron_monitor.prometheus_text import TextFormat
from megatron_monitor.snapshot import Snapshot
from tests.corpus.inputs import Input, Piece

Facts = set[str]
_VALUES = {
    "megatron_iteration_seconds": "seconds", "megatron_samples_per_second": "samples/s",
    "megatron_tokens_per_second": "tokens/s", "megatron_tflops_per_gpu log": "tflops", "megatron_lm_loss": "loss",
    "megatron_tflops_per_gpu computed": "tflops computed", "megatron_loss": "loss", "megatron_loss_scale": "scale",
    "megatron_validation_loss": "validation", "megatron_gpu_memory_bytes": "memory",
    "megatron_global_batch_size": "batch", "megatron_grad_norm": "norm",
}  # fmt: skip
_COUNTS = {
    "megatron_train_iterations": "of", "megatron_world_size": "gpus", "megatron_consumed_samples": "samples",
    "megatron_consumed_tokens": "tokens", "megatron_skipped_iterations_total": "skipped",
    "megatron_nan_iterations_total": "nan", "megatron_overflows_total": "overflows",
    "megatron_last_checkpoint_iteration": "checkpoint",
}  # fmt: skip
_FIGURES = {
    "megatron_checkpoint_save_seconds": "save", "megatron_unsaved_progress_seconds": "at risk",
    "megatron_gpu_seconds_total": "gpu seconds", "megatron_baseline_iteration_seconds": "baseline",
    "megatron_slowdown_ratio": "slowdown", "megatron_iteration_duration_seconds_count": "timed",
    "megatron_goodput_ratio": "effective",
}  # fmt: skip
_EVIDENCE = (
    "timeout_seconds",
    "timeout_reason",
    "message",
    "rank",
    "node",
    "exit_code",
    "last_checkpoint_iteration",
    "ratio",
)
_SAMPLE = re.compile(r"(megatron_\w+)\{(.*)\} (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


# --- what is said, as facts -------------------------------------------------------------------------------------------


def _number(value: float, digits: int = 4) -> str:
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.{digits}g}"


def _row(title: str, values: Mapping[str, Any]) -> Iterator[str]:
    if values:
        yield f"{title}: " + ", ".join(f"{name} {value}" for name, value in values.items())


def of_page(page: str) -> Facts:
    """Of a page of metrics: each run's state, totals and last values."""
    runs: dict[str, list[tuple[str, dict[str, str], float]]] = {}
    for line in page.splitlines():
        found = _SAMPLE.match(line)
        if found and 'run="' in line:
            labels = dict(_LABEL.findall(found[2]))
            runs.setdefault(labels.pop("run"), []).append((found[1], labels, float(found[3])))
    return {f"{run} | {fact}" for run, samples in runs.items() for fact in _facts_of_samples(samples)}


def _facts_of_samples(samples: list[tuple[str, dict[str, str], float]]) -> Iterator[str]:
    one = {name: value for name, labels, value in samples if not labels}
    labelled = [(name, " ".join(filter(None, labels.values())), value) for name, labels, value in samples if labels]
    for name, label, value in labelled:
        if name == "megatron_run_state" and value:
            yield f"state {label}"
    totals = {
        "iterations": one.get("megatron_iterations_total"), "last": one.get("megatron_iteration"),
        "restarts": one.get("megatron_restarts_total"), "lost": one.get("megatron_lost_iterations_total"),
    }  # fmt: skip
    failures = {label: value for name, label, value in labelled if name == "megatron_failures_total"}
    yield from _totals(totals, failures)
    yield from _row("counts", {text: _number(one[name], 6) for name, text in _COUNTS.items() if name in one})
    values = {text: _number(one[name]) for name, text in _VALUES.items() if name in one}
    for name, label, value in labelled:
        if name in _VALUES:
            values[f"{_VALUES[name]} {label}"] = _number(value)
        elif f"{name} {label}" in _VALUES:
            values[_VALUES[f"{name} {label}"]] = _number(value)
    yield from _row("values", values)
    yield from _row("figures", {text: _number(one[name], 3) for name, text in _FIGURES.items() if name in one})
    deadline = one.get("megatron_hang_deadline_timestamp_seconds", math.inf)
    if deadline < math.inf:  # else no progress is expected
        yield f"silence allowed: {deadline - one['megatron_last_progress_timestamp_seconds']:.3g} s"
    lost = {label: _number(value) for name, label, value in labelled if name == "megatron_lost_seconds_total"}
    yield from _row("lost seconds", lost)
    counted = {label: _number(value) for name, label, value in labelled if name == "megatron_incidents_total"}
    yield from _row("incidents counted", counted)
    for name, labels, value in samples:
        if name == "megatron_run_info":
            yield from _row("info", {name: label for name, label in labels.items() if label})
        elif name == "megatron_incident" and value:
            yield f"open: {labels['incident']} {labels['severity']}"


def _totals(totals: Mapping[str, float | None], failures: Mapping[str, float]) -> Iterator[str]:
    known = {name: _number(value, 9) for name, value in totals.items() if value is not None}
    yield from _row("totals", known | {cause: _number(value) for cause, value in sorted(failures.items())})


def of_transitions(rows: Iterable[dict[str, Any]]) -> Facts:
    """Of messages in their order, `time` in seconds since the beginning: one incident from its firing to its end.
    `replay` shows what is told to nobody, too, without the word `quiet`.
    """
    open_: dict[tuple[str, str], dict[str, Any]] = {}
    found: list[dict[str, Any]] = []
    for row in rows:
        key, firing = (row["run"], row["incident"]), row["status"] == "firing"
        incident = open_.get(key)
        if incident is None:
            incident = {**row, "severities": [], "told": [], "times": [], "end": "open"}
            open_[key] = incident
            found.append(incident)
        if firing and row["severity"] not in incident["severities"][-1:]:
            incident["severities"].append(row["severity"])
        if not row.get("quiet", True):
            incident["told"].append(row["severity"] if firing else "end")
        if firing:
            incident["evidence"] = row["evidence"]
        incident["times"].append(f"{row['time']:.0f}")
        if not firing:
            incident["end"] = "resolved"
            del open_[key]
    facts, seen = Facts(), Counter[tuple[str, str]]()
    for one in found:
        seen[one["run"], one["incident"]] += 1
        title = f"{one['run']} | {one['incident']} {seen[one['run'], one['incident']]}"
        causes = [str(one["evidence"][key]) for key in ("failure", "cause", "reason") if one["evidence"].get(key)]
        onset = [] if one.get("onset_iteration") is None else [f"since iteration {one['onset_iteration']}"]
        facts.add(f"{title}: " + ", ".join([" > ".join(one["severities"]), *causes, *onset, one["end"]]))
        facts.add(f"{title} times: " + ", ".join(one["times"]))
        facts.update(_row(f"{title} says", _said(one["evidence"])))
        if one["told"]:
            facts.add(f"{title} told: " + ", ".join(one["told"]))
    return facts


def _said(evidence: Mapping[str, Any]) -> dict[str, str]:
    """What a message says of why; measured numbers are rounded, they depend on when lines were read."""
    known = {name: str(evidence[name])[:100] for name in _EVIDENCE if evidence.get(name) is not None}
    for name in known.keys() & {"timeout_seconds", "timeout_reason", "ratio"}:
        known[name] = re.sub(r"\d+\.\d+", lambda found: f"{float(found[0]):.2g}", known[name])
    return known


def of_summary(summary: Mapping[str, Any]) -> Facts:
    """Of what `replay` says last of a run."""
    totals = {"iterations": "iterations", "last": "last_iteration", "restarts": "restarts", "lost": "lost_iterations"}
    known = {name: summary.get(key) for name, key in totals.items()}
    facts = {f"state {summary['state']}", *_totals(known, summary["failures"])}
    medians = {name.removeprefix("median_"): value for name, value in summary.items() if name.startswith("median_")}
    facts.update(_row("medians", {name: _number(value) for name, value in medians.items()}))
    ratio = summary.get("goodput")
    facts.update(_row("replayed", {"seconds": round(summary["seconds"])} | ({} if ratio is None else {"ratio": ratio})))
    facts.update(_row("lost seconds", {name: _number(value) for name, value in summary["lost_seconds"].items()}))
    if stands := summary.get("slowdown"):
        facts.add(f"slowdown: {stands}")
    return {f"{summary['run']} | {fact}" for fact in facts}


# --- finished files ---------------------------------------------------------------------------------------------------


def _written(given: Input, folder: Path) -> list[str]:
    for file in given.files:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(given.content(file))
        os.utime(path, (given.written_at(file),) * 2)
    return [str(folder / file) for file in given.files]


def replayed(paths: Iterable[str], settings: Iterable[str] = (), after: float = 10.0, begins: float = 0.0) -> Facts:
    """What `replay` prints of files."""
    options = [part for setting in settings for part in ("--set", setting)]
    done = CliRunner().invoke(replay_command, ["--json", "--all", "--after", f"{after}s", *options, *paths])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    facts = of_transitions(_timed(row, begins) for row in rows if "summary" not in row or "incident" in row)
    for row in rows:
        if "incident" not in row:
            facts |= of_summary(row["summary"])
    return facts or {f"exit {done.exit_code}"}


def _timed(row: dict[str, Any], begins: float) -> dict[str, Any]:
    moment = row["time"]
    seconds = moment if isinstance(moment, int | float) else _seconds(moment) - begins
    return {"evidence": {}, **row, "time": seconds}


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp()


def read_once(paths: Iterable[str], settings: Iterable[str] = ()) -> Facts:
    """What `run --once` prints of files."""
    page, _, _ = metrics_page(ConfigOptions(None, tuple(settings)).load(list(paths)))
    return of_page(page) or {"no run"}


# --- files that grow --------------------------------------------------------------------------------------------------


class _Daemon:
    """A core whose files grow in memory; its state is kept whenever the daemon would keep it."""

    def __init__(self, given: Input, chance: random.Random, folder: str) -> None:
        self.given, self.chance, self.folder = given, chance, folder
        self.now = self.looked_at = given.begins
        self.reported = list[Transition]()
        self.dies_at: list[float] = []
        self.held: dict[str, bytes] = {}  # what the files hold
        self.written: dict[str, float] = {}  # when they were last written
        self.read: dict[str, int] = {}  # how far they were read
        self.disk: dict[str, bytes | None] = {}
        self.core = self._core()

    def _core(self) -> Core:
        paths = [f"{self.folder}/{file}" for file in self.given.files]
        core = Core(ConfigOptions(None, self.given.settings).load(paths))
        core.handle(Scanned("", self.now), self.now)
        return core

    def write(self, piece: Piece) -> None:
        self.held[piece.file] = self.held.get(piece.file, b"") + piece.data
        self.written[piece.file] = self.given.begins + piece.at

    @property
    def behind(self) -> bool:
        return any(self.read.get(file, 0) < len(data) for file, data in self.held.items())

    def poll(self, *, whole: bool = False) -> None:
        """The follower looks: each file that grew gives some of what it holds, or all."""
        self.looked_at = self.now
        grown = [file for file, data in self.held.items() if self.read.get(file, 0) < len(data)]
        self.chance.shuffle(grown)
        for file in grown:
            self._read_on(file, whole=whole)
        self.tick()

    def pass_until(self, instant: float) -> None:
        """Time passes: judged each second, and more seldom in a long silence."""
        while self.now < instant:
            self.now = min(instant, self.now + max(1.0, (self.now - self.looked_at) / 30))
            if self.dies_at and self.dies_at[0] <= self.now:
                self.dies_at.pop(0)
                self.killed()
            self.tick()

    def tick(self) -> None:
        """Judge what is due, and save as the daemon would: what was told at once, the rest now and then."""
        transitions = self.core.tick(self.now)
        self.reported += transitions
        reported = any(not one.display_only for one in transitions)
        if self.dies_at and (reported or self.chance.random() < 0.05):
            self.disk |= self.core.parts(self.now)

    def _read_on(self, file: str, *, whole: bool) -> None:
        path, data, start = f"{self.folder}/{file}", self.held[file], self.read.get(file)
        if start is None:
            self.core.handle(Opened(path, path, None, len(data), self.now, False, owner=1000), self.now)
            start = 0
            if self.chance.random() < 0.5:  # found while it was empty
                self.core.handle(CaughtUp(path, self.now), self.now)
                self.read[file] = 0
        stop = len(data)
        if not whole and self.chance.random() < 0.25:
            stop = self.chance.randint(start, len(data))
        if stop > start:
            self._deliver(file, start, data[start:stop])
        if file not in self.read:
            self.core.handle(CaughtUp(path, self.now), self.now)
        self.read[file] = stop

    def _deliver(self, file: str, start: int, data: bytes) -> None:
        self.core.handle(Data(f"{self.folder}/{file}", start, data, self.written[file], self.now, 0), self.now)

    def killed(self) -> None:
        """Killed without a word and started again some seconds later, from the state on the disk."""
        self.now += self.chance.choice((0.0, 2.0, 20.0))
        problems: list[str] = []
        kept = {name: part for name, part in self.disk.items() if part}
        saved = of_parts(kept, problems) if kept else None
        assert not problems, problems
        self.core = self._core()
        positions = self.core.restore(saved) if saved is not None else {}
        for file in list(self.read):
            path, data = f"{self.folder}/{file}", self.held[file]
            position = positions.get(path)
            start = 0 if position is None else position.start
            known = Content(offset=start, proved=position)
            self.core.handle(Opened(path, path, known, len(data), self.now, position is not None, 1000), self.now)
            if data[start:]:
                self._deliver(file, start, data[start:])
            self.core.handle(CaughtUp(path, self.now), self.now)
            self.read[file] = len(data)
        self.looked_at = self.now

    def facts(self) -> Facts:
        """What it told, and what its page shows now."""
        begins = self.given.begins
        rows = (
            {**one.to_json(), "quiet": one.display_only, "evidence": one.evidence, "time": one.time - begins}
            for one in self.reported
        )
        snapshot = self.core.snapshot(self.now)
        page = TextFormat().page(Snapshot(at=snapshot.at, runs=snapshot.runs))
        return of_transitions(rows) | of_page(page) or {"no run"}


_MANY = 100  # texts of an input whose files are looked at each five seconds, and not each second


def live(given: Input, folder: str, kills: int = 0, chance: random.Random | None = None) -> Facts:
    """What the daemon says while the lines come at their times, killed so many times. `chance`: where and how."""
    chance = chance or random.Random(f"{given.name} {kills}")
    pieces, begins, place = given.pieces, given.begins, 0
    last = begins + pieces[-1].at
    ends, pace = last + given.after, 5.0 if len(pieces) > _MANY else 1.0
    daemon = _Daemon(given, chance, folder)
    daemon.dies_at = sorted(chance.uniform(begins, last + min(given.after, 60.0)) for _ in range(kills))
    while place < len(pieces) or daemon.behind or daemon.now < ends:
        if daemon.behind:
            daemon.pass_until(daemon.now + pace * chance.uniform(0.3, 1.5))
        elif place < len(pieces):
            daemon.pass_until(begins + pieces[place].at + pace * chance.uniform(0.05, 1.0))
        else:
            daemon.pass_until(ends)
        while place < len(pieces) and begins + pieces[place].at <= daemon.now:
            daemon.write(pieces[place])
            place += 1
        daemon.poll(whole=place == len(pieces))
    return daemon.facts()


MODES: dict[str, Callable[[Input, Path], Facts]] = {
    "R": lambda given, folder: replayed(_written(given, folder), given.settings, given.after, given.begins),
    "O": lambda given, folder: read_once(_written(given, folder), given.settings),
    "L": lambda given, folder: live(given, str(folder)),
    "K": lambda given, folder: live(given, str(folder), kills=2),
}
"""R: replay. O: run --once. L: live in random chunks. K: live, killed and resumed twice."""


def played(given: Input, folder: Path) -> list[str]:
    """Every fact of an input, in order, behind the modes in which it holds."""
    modes: dict[str, str] = {}
    given = replace(given, settings=tuple(one.replace("$folder", str(folder)) for one in given.settings))
    for mode, play in MODES.items():
        for fact in play(given, folder):
            modes[fact] = modes.get(fact, "") + mode
    return sorted(f"{fact}  [{held}]" for fact, held in modes.items())

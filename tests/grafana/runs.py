"""The runs of the backfilled day: a small model of a training, and one script a run.

Seven runs: healthy; hung in evaluation; slowed by 5 %; crashed twice and restarted; diverging; finished; watched by a
daemon that died. Two daemons follow the healthy one: no query may count it twice or fail on it. Times are seconds
before the end of the day (negative), as in `Scene.advance`.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from monitor.run.pace import HISTOGRAM_BUCKETS
from monitor.run.phases import RUN_STATES

if TYPE_CHECKING:
    from tests.grafana.history import Page

HOUR = 3600.0
FIRST, DEAD, SECOND = "login1:9843", "login2:9843", "login3:9843"
SLOWED_AT, SLOWED_BY = -5 * HOUR, 1.05
HUNG_SILENT_AT, HANG_BUDGET = -2400.0, 900.0
CRASHES = ((-9 * HOUR, "ecc"), (-3 * HOUR, "nccl"))
DOWN_FOR = 900.0  # seconds from a crash to the next launch
DIVERGES_AT = -2 * HOUR


@dataclass
class Scene:
    """One run. `advance` moves it, `sample` writes what a scrape would have seen."""

    run: str
    gpus: int
    seconds: float  # per iteration, normally
    batch: int
    sequence: int
    tp: int
    pp: int
    mbs: int
    layers: int
    hidden: int
    total: int  # planned iterations
    tflops: float
    iteration: float = 0.0  # done before the day began
    daemons: tuple[str, ...] = (FIRST,)
    fault: str = ""
    dtype: str = "bf16"
    peak: float | None = 989.0
    ends_at: float = math.inf
    save_every: int = 500
    state: str = "training"
    at: float = -24 * HOUR
    pace: float = 0.0
    progress_at: float = 0.0
    finished_total: float = 0.0
    counts: list[float] = field(default_factory=lambda: [0.0] * (len(HISTOGRAM_BUCKETS) + 1))
    spent: float = 0.0
    productive: float = 0.0
    checkpoint: float = 0.0
    busy_until: float = -math.inf
    validation: float | None = None
    restarts: int = 0
    lost_iterations: float = 0.0
    lost_seconds: dict[str, float] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    fired: dict[tuple[str, str], bool] = field(default_factory=dict)
    fired_counts: dict[str, int] = field(default_factory=dict)
    skipped: float = 0.0

    def __post_init__(self) -> None:
        self.noise = random.Random(self.run)
        self.pace = self.seconds
        self.checkpoint = self.iteration - self.iteration % self.save_every
        self.evaluated = self.saved = self.iteration
        self.lm_loss, self.grad_norm = self.loss(), 0.4
        self.validation = self.lm_loss + 0.04

    # --- what happens -----------------------------------------------------------------------------------------------

    def advance(self, at: float, step: float) -> None:
        """Move to `at` (seconds before the end of the day, negative), `step` seconds after the last time."""
        self.at = at
        before, self.state = self.state, self._state()
        if self.state == "training":
            slow = SLOWED_BY if self.fault == "slow" and at > SLOWED_AT else 1.0
            self.pace = self.seconds * slow * (1 + self.noise.gauss(0, 0.004))
            done = step / self.pace
            self.iteration += done
            self.finished_total += done
            self.spent += step
            self.productive += step
            for place, bound in enumerate((*HISTOGRAM_BUCKETS, math.inf)):
                self.counts[place] += done if self.pace <= bound else 0.0
            self.skipped += self._skips(done)
            self.lm_loss = self.loss()
            rise = 2 + (at - DIVERGES_AT) / 900 if self.fault == "diverge" and at > DIVERGES_AT else 1.0
            self.grad_norm = (0.4 + abs(self.noise.gauss(0, 0.05))) * rise
        if self.state in ("training", "saving", "starting") or (self.state == "evaluating" and self.fault != "hang"):
            self.progress_at = at
        if before == "saving" and self.state != "saving":
            self.checkpoint = self.iteration
        if before == "evaluating" and self.state == "training":
            self.validation = self.loss() + 0.04
        self._judge()

    def _state(self) -> str:
        if self.at >= self.ends_at:
            return "finished"
        if self.fault == "hang" and self.at >= HUNG_SILENT_AT:
            return "evaluating" if self.at < HUNG_SILENT_AT + HANG_BUDGET else "hung"
        if self.fault == "crash":
            for crashed_at, failure in CRASHES:
                if crashed_at <= self.at < crashed_at + DOWN_FOR:
                    self._crash(failure)
                    return "crashed"
                if crashed_at + DOWN_FOR <= self.at < crashed_at + DOWN_FOR + 360:
                    if self.state == "crashed":
                        self.restarts += 1
                    return "starting"
        if self.at < self.busy_until and self.state in ("evaluating", "saving"):
            return self.state
        if self.iteration - self.saved >= self.save_every:
            self.saved, self.busy_until = self.iteration, self.at + 150
            return "saving"
        if self.iteration - self.evaluated >= 2 * self.save_every:
            self.evaluated, self.busy_until = self.iteration, self.at + 240
            return "evaluating"
        return "training"

    def _crash(self, failure: str) -> None:
        if self.state == "crashed":
            return
        lost = self.iteration - self.checkpoint
        self.failures[failure] = self.failures.get(failure, 0) + 1
        self.lost_iterations += lost
        self.lost_seconds[failure] = self.lost_seconds.get(failure, 0.0) + lost * self.seconds
        self.productive -= lost * self.seconds
        self.iteration = self.saved = self.evaluated = self.checkpoint

    def _skips(self, done: float) -> float:
        chance = 0.3 if self.fault == "diverge" and self.at > DIVERGES_AT else 0.002
        return float(self.dtype == "fp16" and self.noise.random() < chance * done)

    def _judge(self) -> None:
        silent = self.at - self.progress_at
        judged = {
            ("hang", "warning"): self.fault == "hang" and HANG_BUDGET / 2 < silent <= HANG_BUDGET,
            ("hang", "critical"): self.state == "hung",
            ("slowdown", "warning"): self.fault == "slow" and self.at > SLOWED_AT + 600,
            ("crash", "critical"): self.state == "crashed",
            ("divergence", "critical"): self.fault == "diverge" and self.at > DIVERGES_AT + 1800,
            ("loss_spike", "warning"): self.fault == "diverge" and 300 < self.at - DIVERGES_AT < 1500,
        }
        for (incident, severity), now in judged.items():
            if now and not self.fired.get((incident, severity)):
                self.fired_counts[incident] = self.fired_counts.get(incident, 0) + 1
            if now or (incident, severity) in self.fired:
                self.fired[(incident, severity)] = now

    def open_incidents(self) -> list[tuple[str, str]]:
        """Kind and severity of what fires."""
        return [key for key, now in self.fired.items() if now]

    def loss(self) -> float:
        """Training loss: a power law with noise, and the divergence on top."""
        base = 1.9 + 9.0 * (self.iteration + 300) ** -0.28 + self.noise.gauss(0, 0.012)
        if self.fault == "diverge" and self.at > DIVERGES_AT:
            base += 1.7 * (1 - math.exp((DIVERGES_AT - self.at) / 4000))
        return base

    # --- what a scrape sees -----------------------------------------------------------------------------------------

    def sample(self, page: Page, at: float, instance: str) -> None:
        """Every metric that this run's log would give."""

        def put(name: str, value: float | None, /, **labels: str) -> None:
            if value is not None:
                page.put(f"megatron_{name}", at, value, {"run": self.run, **labels}, instance)

        dp = self.gpus // (self.tp * self.pp)
        put("run_info", 1, world_size=str(self.gpus), tp=str(self.tp), pp=str(self.pp), dp=str(dp), mbs=str(self.mbs),
            layers=str(self.layers), hidden=str(self.hidden), heads=str(self.hidden // 128), seq_len=str(self.sequence),
            dtype=self.dtype, zero_stage="1", dialect="megatron-lm")  # fmt: skip
        put("world_size", self.gpus)
        for name in RUN_STATES:
            put("run_state", float(name == self.state), state=name)
        end = at - self.at
        speed = self.batch / self.pace
        put("iteration", math.floor(self.iteration))
        put("train_iterations", self.total)
        put("iterations_total", math.floor(self.finished_total))
        put("consumed_samples", math.floor(self.iteration) * self.batch)
        put("consumed_tokens", math.floor(self.iteration) * self.batch * self.sequence)
        put("iteration_seconds", self.pace)
        put("samples_per_second", speed)
        parts = {"compute": 0.82, "communication": 0.1, "data": 0.01, "optimizer": 0.05, "untimed": 0.02}
        for category, share in parts.items():
            put("iteration_part_seconds", share * self.pace, category=category)
            put("iteration_part_spread_seconds", 0.02 * share * self.pace, category=category)
        for timer, share in (("forward-compute", 0.27), ("backward-compute", 0.55), ("all-grads-sync", 0.1)):
            put("timer_seconds", 0.99 * share * self.pace, timer=timer, bound="min")
            put("timer_seconds", share * self.pace, timer=timer, bound="max")
        put("tokens_per_second", speed * self.sequence)
        tflops = self.tflops * self.seconds / self.pace
        put("tflops_per_gpu", tflops, source="log")
        put("tflops_per_gpu", tflops * 1.0007, source="computed")
        if self.peak:
            put("mfu_ratio", tflops / self.peak)
            put("hfu_ratio", tflops / self.peak * 1.21)
        for bound, by in (("min", -0.01), ("max", 0.01)):
            put("recent_lm_loss", self.lm_loss + by, bound=bound)
            put("recent_grad_norm", self.grad_norm + by, bound=bound)
            put("recent_iteration_seconds", self.pace + by, bound=bound)
        put("gpu_memory_capacity_bytes", 80 * 2**30)
        put("gpu_seconds_total", self.productive * self.gpus)
        for incident, severity in self.open_incidents():
            put(
                "incident_info",
                1,
                incident=incident,
                severity=severity,
                phase="training",
                failure="",
                rank="3",
                node="node7",
                summary="what it is",
                advice="what to do",
                line="the line",
            )
        if self.state == "crashed":
            put("failure_info", 1, failure="nccl", rank="3", node="node7", summary="s", advice="a", line="l")
        put("lm_loss", self.lm_loss)
        put("loss", 0.011 + self.noise.gauss(0, 0.0004), name="load balancing loss")
        put("validation_loss", self.validation, dataset="validation")
        calm = not (self.fault == "diverge" and self.at > DIVERGES_AT)
        put("grad_norm", self.grad_norm)
        put("learning_rate", 3e-4 * (0.55 + 0.45 * math.cos(math.pi * min(1.0, self.iteration / self.total))))
        if self.dtype == "fp16":
            put("loss_scale", 65536.0 if calm else max(64.0, 65536.0 * 2 ** -((self.at - DIVERGES_AT) // 700)))
        put("global_batch_size", self.batch)
        put("custom_value", 0.71 + self.noise.gauss(0, 0.003), name="data_mix_entropy")
        put("skipped_iterations_total", self.skipped)
        put("nan_iterations_total", 0)
        put("overflows_total", self.skipped)
        for kind, size in (("allocated", 41e9), ("max_allocated", 55e9), ("reserved", 61e9), ("max_reserved", 62e9)):
            put("gpu_memory_bytes", size + self.layers * 1e8, kind=kind)
        put("last_progress_timestamp_seconds", end + self.progress_at)
        if self.state not in ("finished", "crashed"):
            put("hang_deadline_timestamp_seconds", end + self.progress_at + HANG_BUDGET)
        put("baseline_iteration_seconds", self.seconds)
        put("slowdown_ratio", self.pace / self.seconds)
        for (incident, severity), now in self.fired.items():
            put("incident", float(now), incident=incident, severity=severity)
        for incident, severity in self.open_incidents():
            put("incident_since_timestamp_seconds", end + self.at - 300, incident=incident, severity=severity)
        if any(not now for now in self.fired.values()):
            put("incident_end_timestamp_seconds", end + self.at - 300, incident="loss_spike", severity="warning")
            put("incident_duration_seconds", 300, incident="loss_spike", severity="warning")
        for incident, count in self.fired_counts.items():
            put("incidents_total", count, incident=incident)
        for failure, count in self.failures.items():
            put("failures_total", count, failure=failure)
        put("restarts_total", self.restarts)
        put("last_checkpoint_iteration", math.floor(self.checkpoint))
        put("checkpoint_save_seconds", 141.0 + self.noise.gauss(0, 2))
        put("at_risk_seconds", (self.iteration - self.checkpoint) * self.seconds)
        put("lost_iterations_total", math.floor(self.lost_iterations))
        for cause, seconds in self.lost_seconds.items():
            put("lost_seconds_total", seconds, cause=cause)
        wall = min(self.at, self.ends_at) + 25 * HOUR
        ratio = (self.productive + 0.96 * HOUR) / wall
        put("effective_training_time_ratio", ratio)
        if self.failures:
            between = self.productive / sum(self.failures.values())
            put("mean_time_between_failures_seconds", between)
            put("advised_save_interval_seconds", math.sqrt(2 * 141.0 * between))
        if self.state not in ("finished", "crashed"):
            put("eta_timestamp_seconds", end + self.progress_at + (self.total - self.iteration) * self.seconds / ratio)
        put("cuda_launch_blocking", 0)
        page.histogram("megatron_iteration_duration_seconds", at, [math.floor(c) for c in self.counts], self.spent,
                       self.run, instance)  # fmt: skip


def scenes(clones: int = 0) -> list[Scene]:
    """The runs of the day."""
    made = [
        Scene("gpt-13b-base", 256, 6.2, 1024, 4096, 4, 2, 2, 40, 5120, 60000, 402.0, iteration=21000,
              daemons=(FIRST, SECOND)),
        Scene("gpt-70b-pretrain", 1024, 14.8, 2048, 8192, 8, 8, 1, 80, 8192, 40000, 371.0, iteration=9000, fault="hang",
              save_every=250),
        Scene("llama-8b-longctx", 128, 9.1, 256, 32768, 4, 1, 1, 32, 4096, 25000, 415.0, iteration=8000, fault="slow"),
        Scene("moe-8x7b", 512, 7.7, 2048, 4096, 2, 4, 1, 32, 4096, 80000, 288.0, iteration=33000, fault="crash"),
        Scene("gpt-1b-fp16-lr6e4", 32, 1.9, 512, 2048, 1, 1, 8, 24, 2048, 120000, 118.0, iteration=1500,
              fault="diverge", dtype="fp16", peak=312.0, save_every=2000),
        Scene("gpt-3b-ablation-a", 64, 3.4, 512, 4096, 2, 1, 4, 32, 2560, 20000, 366.0, iteration=2000,
              ends_at=-7 * HOUR),
        Scene("gpt-3b-ablation-b", 64, 3.6, 512, 4096, 1, 2, 4, 32, 2560, 40000, 346.0, iteration=1000,
              daemons=(DEAD,)),
    ]  # fmt: skip
    for number in range(clones):
        gpus = 8 * 2 ** (number % 5)
        made.append(Scene(f"sweep-{number:03d}", gpus, 2.0 + number % 7, 512, 2048, 1, 1, 4, 24, 2048, 300000,
                          350.0 - 3 * (number % 11), iteration=100.0 * number))  # fmt: skip
    return made

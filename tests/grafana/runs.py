"""The trainings of the day that dashboards are looked at with: one simulated log each, told by the simulator.

Healthy (two daemons follow it: no query may count it twice); hung in evaluation; slowed by 10 %; crashed twice, once
for good reasons of each kind, and launched again; diverging; finished; watched by a daemon that died; crashed without
an end; one whose memory grows; and one of reinforcement learning. Times are seconds before the end of the day.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from megatron_monitor.simulate import Fault, Scenario, timeline
from tests.simulated import printed

HOUR = 3600.0
FIRST, DEAD, SECOND = "login1:9843", "login2:9843", "login3:9843"
DEAD_SINCE = 2400.0
SLOWED_BY = 1.10
CRASHED_AT = -1.5 * HOUR
DOWN_FOR = 900.0  # seconds from that crash to the next attempt
LAST_LINE = "[rank17]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
NCCL = (
    "[rank3]:[E1 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, "
    "OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600060 milliseconds before timing out.\n"
)


@dataclass(frozen=True)
class Run:
    """One log. `attempts`: (when its first line is written, what it prints)."""

    name: str
    attempts: tuple[tuple[float, Scenario], ...]
    daemons: tuple[str, ...] = (FIRST,)
    says: dict[float, str] = field(default_factory=dict)
    """Lines of its own, when."""
    nodes: str = "nid[001-048]"
    """As Slurm lists them."""
    second_job: str = ""
    """Fields that its iteration lines have before the loss."""

    def texts(self) -> Iterator[tuple[float, str]]:
        """(when, text), in that order."""
        own = sorted(self.says.items())
        for place, (began, scenario) in enumerate(self.attempts):
            ends = self.attempts[place + 1][0] if place + 1 < len(self.attempts) else float("inf")
            for at, text, _ in timeline(scenario):
                when = began + at
                while own and own[0][0] <= when:
                    yield own.pop(0)
                if when >= min(ends, 0.0):
                    break
                yield when, text.replace("lm loss:", f"{self.second_job}lm loss:") if self.second_job else text
        yield from own


def _sizes(
    gpus: int, seconds: float, batch: int, sequence: int, tp: int, pp: int, layers: int, hidden: int
) -> dict[str, object]:
    return {
        "world_size": gpus, "seconds_per_iteration": seconds, "global_batch_size": batch, "sequence_length": sequence,
        "tp": tp, "pp": pp, "layers": layers, "hidden": hidden, "heads": hidden // 128, "micro_batch_size": 1,
        "noise": 0.004, "eval_interval": 200, "eval_seconds": 60.0, "save_interval": 100, "save_seconds": 40.0,
        "iterations": 20000, "seed": gpus + layers, "start_epoch": 1_762_975_000.0,
    }  # fmt: skip


def _scenario(sizes: dict[str, object], *faults: Fault, **more: object) -> Scenario:
    return Scenario(**{**sizes, **more}, faults=faults)  # type: ignore[arg-type]


def runs() -> list[Run]:
    """The runs of the day, which is six hours long."""
    big = _sizes(1024, 14.8, 2048, 8192, 8, 8, 80, 8192)
    mid = _sizes(256, 12.4, 1024, 4096, 4, 2, 40, 5120)
    long = _sizes(128, 18.2, 256, 32768, 4, 1, 32, 4096)
    moe = {**_sizes(512, 15.4, 2048, 4096, 2, 4, 32, 4096), "inner": printed("range", 2)}
    tiny = _sizes(32, 14.7, 512, 2048, 1, 1, 24, 2048)
    small = _sizes(64, 13.6, 512, 4096, 2, 1, 32, 2560)
    began = -5.9 * HOUR
    hung_at = -DEAD_SINCE - 14.8 * 200 - 200  # two hundred iterations, two saves, then the evaluation that hangs
    other = {**small, "tp": 1, "pp": 2, "seconds_per_iteration": 14.4, "seed": 5}
    growing = {**small, "seed": 9, "save_interval": 0, "seconds_per_iteration": 6.8}
    healthy = _scenario(mid, format="megatron-lm", launch_blocking=0)
    diverging = _scenario(tiny, Fault("scale_cycle", 200), Fault("divergence", 960), fp16=True)
    return [
        Run("gpt-13b-base", ((began, healthy),), (FIRST, SECOND)),
        Run("gpt-70b-pretrain", ((hung_at, _scenario(big, Fault("hang_evaluation", 1))),)),
        Run("llama-8b-longctx", ((began, _scenario(long, Fault("slowdown", 500, factor=SLOWED_BY))),)),
        Run("moe-8x7b", (
            (began, _scenario(moe, Fault("crash_ecc", 250))),
            (-4.5 * HOUR, _scenario(moe, first_iteration=251)),
            (CRASHED_AT + DOWN_FOR, _scenario(moe, first_iteration=901)),
        ), says={CRASHED_AT: NCCL}, second_job="load balancing loss: 1.043210E+00 | "),
        Run("gpt-1b-fp16-lr6e4", ((began, diverging),)),
        Run("gpt-3b-ablation-a", ((began, _scenario(small, iterations=625)),)),
        Run("gpt-3b-ablation-b", ((began, _scenario(other, Fault("slowdown", 750, factor=1.2))),), (DEAD,)),
        Run("gpt-40b-no-exit", ((began, _scenario(moe, Fault("hang", 1100), seed=8)),),
            says={-2100.0: LAST_LINE}),
        Run("t5-11b-memory", ((began, _scenario(growing, Fault("memory_growth", 700))),)),
        Run("qwen-7b-grpo", ((-HOUR, _scenario(small, format="verl", inner=printed("verl"), iterations=100,
            seconds_per_iteration=180.0)),)),
    ]  # fmt: skip

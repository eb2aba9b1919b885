"""What to simulate: a training's sizes and pace, and the faults that befall it."""

from __future__ import annotations

from dataclasses import dataclass

from parsers.dialects import BIGSCIENCE, DEEPSPEED, GPT_NEOX, HF_TRAINER, MEGATRON_LM, MICROSOFT, Dialect


@dataclass(frozen=True, slots=True)
class Program:
    """What is simulated of a dialect: one version of it."""

    dialect: Dialect
    text: str
    """For `--help`."""
    stamped: bool = False
    """Prints a time stamp in each line."""

    @property
    def counts_overhead(self) -> bool:
        """Whether the time per iteration holds the save and evaluation before it."""
        return self.dialect.megatron and not (self.stamped and self.dialect.pauses_timer_if_stamped)


DIALECTS: dict[str, Program] = {
    "bigscience": Program(BIGSCIENCE, "BigScience Megatron-DeepSpeed of 2022: seconds, samples per second, TFLOPs; save and evaluation in the time"),
    "megatron-lm": Program(MEGATRON_LM, "NVIDIA Megatron-LM of 2026: time stamps, throughput per GPU; save and evaluation not in the time", stamped=True),
    "megatron-lm-2021": Program(MEGATRON_LM, "NVIDIA Megatron-LM of 2021: milliseconds"),
    "microsoft": Program(MICROSOFT, "microsoft Megatron-DeepSpeed: engine steps, tgs; save and evaluation in the time"),
    "gpt-neox": Program(GPT_NEOX, "EleutherAI gpt-neox: samples/sec first, flops with a unit"),
    "deepspeed": Program(DEEPSPEED, "the DeepSpeed engine without Megatron: step= and SamplesPerSec lines"),
    "hf-trainer": Program(HF_TRAINER, "HF Trainer: progress bars over carriage returns, metric dicts"),
}  # fmt: skip
TRAINERS: dict[str, Program] = {
    "torchtitan": Program(Dialect("torchtitan", megatron=False), "torchtitan: stamps, no time of a step", stamped=True),
    "nemo": Program(Dialect("nemo", megatron=False), "NeMo 2 where there is no terminal: steps count from 0"),
    "verl": Program(Dialect("verl", megatron=False), "verl: reinforcement learning behind Ray's prefix, the parts of each step"),
}  # fmt: skip
"""Of those that are data (parsers/trainers): they save without a word."""
PROGRAMS = DIALECTS | TRAINERS
FAULTS: dict[str, str] = {
    "hang": "silence from this iteration on",
    "hang_evaluation": "silence after the first validation set of the next evaluation",
    "hang_saving": "silence inside the next save",
    "hang_starting": "silence during set-up, before the first iteration",
    "hang_rollout": "silence inside the next rollout (verl; elsewhere as hang)",
    "hang_then_resume": "silence for `seconds`, then it goes on",
    "growing_hang": "as hang, while a status line an hour keeps the log growing",
    "buffered": "the launcher lets lines go in bursts of `seconds` from here on",
    "slowdown": "iterations take `factor` times as long from here on (default 1.05)",
    "slowdown_recovered": "as slowdown, for `length` iterations",
    "transient_slow": "this one iteration takes `factor` times as long",
    "drift": "each iteration is a little slower than the last: 1 % per hundred",
    "loss_spike": "grad norm and loss jump and recover within 30 iterations",
    "loss_spike_stays": "grad norm and loss jump and stay up",
    "resume_bump": "a restart after which the loss is 20 % up for ten iterations",
    "divergence": "the loss rises from here on",
    "slow_divergence": "the loss rises by 1 % in 20 iterations, no line of it abnormal",
    "nan_loss": "the loss field vanishes from here on",
    "inf_loss": "the loss is INF from here on",
    "overflow_storm": "every step overflows: the loss scale halves, the grad norm freezes",
    "frozen_grad_norm": "steps are skipped and only the grad norm shows it: it repeats bit for bit for `length` iterations",
    "scale_search": "no fault: the loss scale starts at 2^32 and is halved until a step succeeds (with fp16)",
    "scale_cycle": "no fault: the loss scale doubles, overflows twice and halves, every 60 iterations (with fp16)",
    "loss_scale_decline": "the loss scale sinks 8-fold over 1,200 iterations (with fp16)",
    "loss_scale_collapse": "the loss scale falls to its minimum and the program stops",
    "crash_oom": "CUDA out of memory on one rank",
    "crash_nccl": "the NCCL watchdog gives up on every rank",
    "crash_ecc": "an uncorrectable ECC error",
    "crash_python": "a Python exception on every rank, interleaved",
    "crash_killed": "one process is killed, the launcher ends the others",
    "crash_without_exit": "a fatal line of one rank, then silence",
    "crash_and_restart": "a crash, a new launch, back to the last checkpoint",
    "crash_loop": "three crashes soon after the launch",
    "time_limit": "Slurm's time limit",
    "preempted": "Slurm preempts the job",
    "node_failure": "a node fails",
    "checkpoint_failed": "the next save meets a full disk",
    "resume_discontinuity": "a restart after which the learning rate jumps",
    "memory_growth": "the memory reports grow towards the device's size",
    "memory_leak": "a report an iteration, each larger than the last, until the device is full",
    "lr_restart": "a restart after which the learning rate schedule begins from scratch",
    "save_unfinished": "from here on saves begin and no line reports their end; training goes on",
    "saves_stop": "from here on nothing is saved",
    "wrong_topology": "the arguments name a data parallel size that does not make the world size (from the start)",
    "wrong_size": "the MLP is left at a smaller model's width (from the start)",
    "launch_blocking": "a restart with CUDA_LAUNCH_BLOCKING=1, slower by `factor`",
    "slow_data": "the data loader makes iterations `factor` times as long from here on",
    "slow_network": "the network does",
    "slow_rank": "one rank computes longer, the others wait for it",
    "straggler": "one rank computes longer, by as much of the iteration, and no iteration does yet: others hide it",
    "slow_gpu_clocks": "all ranks compute longer: lower clocks",
    "slow_rollout": "generation makes the steps of reinforcement learning `factor` times as long from here on (verl)",
    "slow_save": "each save takes longer from here on, by `factor` less 1 of the time between two saves",
    "kill_switch": "a clean exit on request",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault at an iteration; the parameters that its kind does not name are ignored."""

    kind: str
    at: int
    factor: float = 1.05
    seconds: float = 600.0
    length: int = 50

    def __post_init__(self) -> None:
        """Refuse a kind that does not exist."""
        if self.kind not in FAULTS:
            raise ValueError(f"{self.kind!r} is no fault; there are {', '.join(sorted(FAULTS))}")


@dataclass(frozen=True, slots=True)
class Scenario:
    """A training. The defaults are BLOOM's sizes with shorter intervals; a size of 0 is not printed."""

    dialect: str = "bigscience"
    iterations: int = 500
    first_iteration: int = 1
    seconds_per_iteration: float = 105.22
    noise: float = 0.004
    """Relative standard deviation of the time; 1 % of the iterations are outliers on top."""
    seed: int = 0
    world_size: int = 384
    tp: int = 4
    pp: int = 12
    micro_batch_size: int = 2
    global_batch_size: int = 2048
    layers: int = 70
    hidden: int = 14336
    heads: int = 112
    sequence_length: int = 2048
    vocab: int = 250880
    rampup: tuple[int, int, int] | None = None
    """(start, increment, samples) of a batch size ramp-up."""
    log_interval: int = 1
    save_interval: int = 100
    """0: no saving."""
    save_seconds: float = 40.0
    save_noise: float = 0.0
    """How much saves vary: standard deviation of the logarithm of their time."""
    eval_interval: int = 0
    """0: no evaluation."""
    eval_sets: int = 1
    eval_seconds: float = 25.0
    """Of one validation set."""
    start_seconds: float = 60.0
    fp16: bool = False
    gpu: str = "NVIDIA A100-SXM4-80GB"
    printed_dp: int | None = None
    """Data parallel size as printed, for logs whose layout does not fit; computed if not given."""
    checkpointing: bool = True
    parameters: int | None = None
    """Parameters that DeepSpeed's pipeline engine prints."""
    printed_tflops: float | None = None
    """TFLOPs printed at `seconds_per_iteration`, as a table keeps them; by the program's formula if not given."""
    formula: str | None = None
    """A formula of run/flops.py in place of the program's own."""
    memory_mib: float | None = None
    """Memory reserved on the middle pipeline stages; the size of a usual report if not given."""
    end_memory_mib: float | None = None
    """The same on the first and the last stage."""
    launch_blocking: int | None = None
    timers: str = ""
    """The form in which the log prints timers (timers.FORMS); empty: it prints none."""
    timers_every: int = 1
    """Iteration lines of which one has timers."""
    tee_prefix: str = ""
    """What the launcher puts before each line, e.g. `[default7]:`."""
    faults: tuple[Fault, ...] = ()
    start_epoch: float = 1_767_225_600.0
    """Unix seconds of the first line, for dialects that print times (UTC)."""

    def __post_init__(self) -> None:
        """Refuse a dialect that does not exist and sizes that do not fit."""
        if self.dialect not in PROGRAMS:
            raise ValueError(f"{self.dialect!r} is no dialect; there are {', '.join(sorted(PROGRAMS))}")
        if self.printed_dp is None and self.world_size % (self.tp * self.pp):
            raise ValueError(f"world size {self.world_size} is no multiple of tp x pp = {self.tp * self.pp}")

    @property
    def program(self) -> Program:
        """The program that prints the log."""
        return PROGRAMS[self.dialect]

    @property
    def dp(self) -> int:
        """Data parallel size."""
        return self.printed_dp or self.world_size // (self.tp * self.pp)

    def batch_size_at(self, samples: int) -> int:
        """Global batch size after so many samples (microbatches.py: linear steps over the ramp's samples)."""
        if self.rampup is None:
            return self.global_batch_size
        start, increment, total = self.rampup
        steps = max(1, (self.global_batch_size - start) // increment)
        return min(self.global_batch_size, start + int(samples / max(1.0, total / steps)) * increment)

"""What each program prints. Sample values are computed; wording follows the programs (see parsers/ for who prints what)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from monitor.model import flops
from monitor.model.topology import Topology
from monitor.simulate.scenario import Scenario
from parsers.dialects import DEEPSPEED


@dataclass(frozen=True, slots=True)
class Step:
    """The figures of one iteration, before they are printed."""

    iteration: int
    samples: int
    batch_size: int
    elapsed: float
    learning_rate: float
    loss: float | None
    grad_norm: float
    loss_scale: float
    skipped: int = 0
    generation: float = 0.0
    """Seconds by which its rollout was longer than usual, or less."""
    loading: float = 0.0
    """Of `elapsed`: seconds in the data loader, which DeepSpeed's own clock leaves out."""


def topology_of(scenario: Scenario) -> Topology:
    """The scenario's sizes as the monitor names them."""
    return Topology(
        world_size=scenario.world_size,
        tensor_parallel_size=scenario.tp,
        pipeline_parallel_size=scenario.pp,
        data_parallel_size=scenario.dp,
        micro_batch_size=scenario.micro_batch_size,
        global_batch_size=scenario.global_batch_size,
        layers=scenario.layers,
        hidden_size=scenario.hidden,
        ffn_hidden_size=4 * scenario.hidden,
        attention_heads=scenario.heads,
        sequence_length=scenario.sequence_length,
        padded_vocab_size=scenario.vocab,
        dtype="fp16" if scenario.fp16 else "bf16",
        activation_checkpointing="full" if scenario.checkpointing else "none",
        glu=False,
        parameters=scenario.parameters,
        log_interval=scenario.log_interval,
    )


def stamp(scenario: Scenario, at: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """The time `at` seconds after the start, as logs print it."""
    return datetime.fromtimestamp(scenario.start_epoch + at, UTC).strftime(form)


def arguments(scenario: Scenario, first_iteration: int) -> str:
    """The arguments dump, with everything that follows from the scenario."""
    wrong = {fault.kind for fault in scenario.faults}
    values: dict[str, object] = {
        "adam_beta1": 0.9,
        "adam_beta2": 0.95,
        "bf16": not scenario.fp16,
        "checkpoint_activations": scenario.checkpointing,
        "data_parallel_size": 2 * scenario.dp if "wrong_topology" in wrong else scenario.dp,
        "eval_interval": scenario.eval_interval or 1_000_000_000,
        "eval_iters": 1 if scenario.eval_interval else 0,
        "ffn_hidden_size": (5 * scenario.hidden // 4) if "wrong_size" in wrong else 4 * scenario.hidden,
        "fp16": scenario.fp16,
        "global_batch_size": scenario.global_batch_size,
        "hidden_size": scenario.hidden,
        "iteration": first_iteration - 1,
        "log_interval": scenario.log_interval,
        "lr": 6e-05,
        "micro_batch_size": scenario.micro_batch_size,
        "num_attention_heads": scenario.heads,
        "num_layers": scenario.layers,
        "padded_vocab_size": scenario.vocab,
        "pipeline_model_parallel_size": scenario.pp,
        "rampup_batch_size": [str(part) for part in scenario.rampup] if scenario.rampup else None,
        "save": "/ckpt",
        "save_interval": scenario.save_interval,
        "seq_length": scenario.sequence_length,
        "swiglu": False,
        "tensor_model_parallel_size": scenario.tp,
        "train_iters": scenario.iterations,
        "world_size": scenario.world_size,
        "zero_stage": 1,
    }
    untold = {name for name in ("hidden_size", "ffn_hidden_size", "num_layers", "num_attention_heads", "padded_vocab_size")
              if not values[name]}  # fmt: skip
    values = {name: value for name, value in values.items() if name not in untold}
    body = "".join(f"  {name} {'.' * max(2, 48 - len(name))} {value}\n" for name, value in values.items())
    return f"------------------------ arguments ------------------------\n{body}-------------------- end of arguments ---------------------\n"


def set_up(scenario: Scenario, first_iteration: int) -> list[tuple[float, str]]:
    """(share of the start-up time, text): banners, arguments, milestones."""
    if not scenario.program.dialect.megatron:
        steps = scenario.iterations
        return [(0.1, f"***** Running training *****\n  Num examples = {steps * scenario.global_batch_size}\n"
                      f"  Instantaneous batch size per device = {scenario.micro_batch_size}\n"
                      f"  Total train batch size (w. parallel, distributed & accumulation) = {scenario.global_batch_size}\n"
                      f"  Total optimization steps = {steps}\n")]  # fmt: skip
    out = []
    if {fault.kind for fault in scenario.faults} & {"memory_growth", "memory_leak"}:
        out.append((0.0, f"GPU 0: {scenario.gpu} (UUID: GPU-00000000-0000-0000-0000-000000000000)\n"))
    if scenario.launch_blocking is not None:
        out.append((0.0, f"+ export CUDA_LAUNCH_BLOCKING={scenario.launch_blocking}\n"))
    out += [
        (0.02, f"using world size: {scenario.world_size}, data-parallel-size: {scenario.dp}, tensor-model-parallel size: "
               f"{scenario.tp}, pipeline-model-parallel size: {scenario.pp} \n"),
        (0.03, arguments(scenario, first_iteration)),
        (0.10, "> compiling dataset index builder ...\n"),
        (0.20, "[after megatron is initialized] datetime: {time} \n"),
        (0.40, "building GPT model ...\n"),
    ]  # fmt: skip
    if scenario.vocab:
        dummies = min(200, scenario.vocab - 1)
        size = scenario.vocab - dummies
        out.append((0.04, f" > padded vocab (size: {size}) with {dummies} dummy tokens (new size: {scenario.vocab})\n"))
    if scenario.parameters:
        count = f"TOTAL_PARAMS={scenario.parameters} ({scenario.parameters / 1e6:.3f}M)"
        out.append((0.42, f"[2022-02-21 10:00:00,000] [INFO] [engine.py:151:__init__] RANK=0 STAGE=0 LAYERS=9 [0, 9) "
                          f"STAGE_PARAMS=1 (0.000M) {count} UNIQUE_PARAMS={scenario.parameters} "
                          f"({scenario.parameters / 1e6:.3f}M)\n"))  # fmt: skip
    if first_iteration > 1:
        out.append((0.45, f" loading checkpoint from /ckpt at iteration {first_iteration - 1}\n"))
        out.append(
            (0.80, f"  successfully loaded checkpoint from /ckpt [ t 0, p 0 ] at iteration {first_iteration - 1}\n")
        )
    out += [
        (0.85, "[after model, optimizer, and learning rate scheduler are built] datetime: {time} \n"),
        (0.95, "[after dataloaders are built] datetime: {time} \n"),
        (0.97, "done with setup ...\ntraining ...\n"),
        (1.00, "[before the start of training step] datetime: {time} \n"),
    ]
    return sorted(out, key=lambda part: part[0])


def iteration_line(scenario: Scenario, step: Step, at: float) -> str:
    """The lines of one iteration."""
    return _PRINTERS[scenario.dialect](scenario, step, at)


def _tflops(scenario: Scenario, step: Step) -> float:
    if scenario.printed_tflops is not None:
        return scenario.printed_tflops * scenario.seconds_per_iteration / step.elapsed
    found = flops.computed_tflops(
        topology_of(scenario),
        step.elapsed,
        step.batch_size,
        scenario.sequence_length,
        scenario.program.dialect.name,
        scenario.formula,
    )
    return found[1] if found else 0.0


def _loss(step: Step, name: str = "lm loss") -> str:
    # `if avg > 0.0`: NaN is not, so the field vanishes
    return "" if step.loss is None or step.loss != step.loss else f"{name}: {step.loss:.6E} | "


def _scale(scenario: Scenario, step: Step) -> str:
    return f"loss scale: {step.loss_scale:.1f} | " if scenario.fp16 else ""


def _counters(step: Step) -> str:
    return f"number of skipped iterations: {step.skipped:3d} | number of nan iterations: {0:3d} |"


def _bigscience(scenario: Scenario, step: Step, _at: float) -> str:
    return (
        f" iteration {step.iteration:8d}/{scenario.iterations:8d} | consumed samples: {step.samples:12d} | "
        f"consumed tokens: {step.samples * scenario.sequence_length:12d} | elapsed time per iteration (s): "
        f"{step.elapsed:.2f} | learning rate: {step.learning_rate:.3E} | global batch size: {step.batch_size:5d} | "
        f"{_loss(step)}{_scale(scenario, step)}grad norm: {step.grad_norm:.3f} | num zeros: 0.0 | "
        f"{_counters(step).replace(f': {step.skipped:3d} ', ':   0 ')} samples per second: "
        f"{step.batch_size / step.elapsed:.3f} | TFLOPs: {_tflops(scenario, step):.2f} |\n"
    )


def _megatron_2021(scenario: Scenario, step: Step, _at: float) -> str:
    passes = f"forward-compute: {step.elapsed * 300:.2f} | backward-compute: {step.elapsed * 600:.2f}"
    timers = "" if scenario.timers else f"time (ms) | {passes}\n"
    return (
        f" iteration {step.iteration:8d}/{scenario.iterations:8d} | consumed samples: {step.samples:12d} | "
        f"elapsed time per iteration (ms): {step.elapsed * 1000:.1f} | learning rate: {step.learning_rate:.3E} | "
        f"global batch size: {step.batch_size:5d} | {_loss(step)}loss scale: {step.loss_scale:.1f} | "
        f"grad norm: {step.grad_norm:.3f} | {_counters(step)}\n{timers}"
    )


def _megatron(scenario: Scenario, step: Step, at: float) -> str:
    return (
        f" [{stamp(scenario, at, '%Y-%m-%d %H:%M:%S.%f')}] iteration {step.iteration:8d}/{scenario.iterations:8d} | "
        f"consumed samples: {step.samples:12d} | elapsed time per iteration (ms): {step.elapsed * 1000:.1f} | "
        f"throughput per GPU (TFLOP/s/GPU): {_tflops(scenario, step):.1f} | "
        f"learning rate: {step.learning_rate:.6E} | global batch size: {step.batch_size:5d} | {_loss(step)}"
        f"loss scale: {step.loss_scale:.1f} | grad norm: {step.grad_norm:.3f} | {_counters(step)}\n"
    )


def _microsoft(scenario: Scenario, step: Step, _at: float) -> str:
    rate = step.batch_size / step.elapsed
    tokens = rate * scenario.sequence_length / scenario.world_size
    loss = 0.0 if step.loss is None else step.loss
    return (
        f"steps: {step.iteration} loss: {loss:.4f} iter time (s): {step.elapsed:.3f} samples/sec: {rate:.3f}\n"
        f" iteration {step.iteration:8d}/{scenario.iterations:8d} | consumed samples: {step.samples:12d} | "
        f"consumed tokens: {step.samples * scenario.sequence_length:12d} | elapsed time per iteration (ms): "
        f"{step.elapsed * 1000:.1f} | learning rate: {step.learning_rate:.3E} | global batch size: {step.batch_size:5d} | "
        f"{_loss(step)}loss scale: {step.loss_scale:.1f} | grad norm: {step.grad_norm:.3f} | num zeros: 0.0 | "
        f"actual seqlen: {scenario.sequence_length:5d} | {_counters(step)} samples per second: {rate:.3f} | "
        f"tokens per gpu per second (tgs): {tokens:.3f} | TFLOPs: {_tflops(scenario, step):.2f} |\n"
    )


def _neox(scenario: Scenario, step: Step, _at: float) -> str:
    return (
        f" samples/sec: {step.batch_size / step.elapsed:.3f} | iteration {step.iteration:8d}/{scenario.iterations:8d} | "
        f"elapsed time per iteration (ms): {step.elapsed * 1000:.1f} | learning rate: {step.learning_rate:.3E} | "
        f"approx flops per GPU: {_tflops(scenario, step):.1f}TFLOPS | {_loss(step, 'lm_loss')}"
        f"{_scale(scenario, step)}{_counters(step)}\n"
    )


def _engine_time(scenario: Scenario, at: float) -> str:
    return stamp(scenario, at, "%Y-%m-%d %H:%M:%S") + f",{int(at * 1000) % 1000:03d}"


def _engine(scenario: Scenario, step: Step, at: float) -> str:
    rate = step.batch_size / (step.elapsed - step.loading)
    time = _engine_time(scenario, at)
    return (
        f"[{time}] [INFO] [logging.py:96:log_dist] [Rank 0] step={step.iteration}, skipped=0, "
        f"lr=[{step.learning_rate!r}], mom=[(0.9, 0.95)]\n"
        f"[{time}] [INFO] [timer.py:199:stop] epoch=0/micro_step={step.iteration}/global_step={step.iteration}, "
        f"RunningAvgSamplesPerSec={rate!r}, CurrSamplesPerSec={rate!r}, MemAllocated=3.96GB, MaxMemAllocated=22.95GB\n"
    )


def _trainer(scenario: Scenario, step: Step, at: float) -> str:
    percent = 100 * step.iteration // scenario.iterations
    left = (scenario.iterations - step.iteration) * step.elapsed
    bar = "#" * (percent // 10) + " " * (10 - percent // 10)
    loss = "nan" if step.loss is None else f"{step.loss:.4f}"
    return (
        f"\r{percent:3d}%|{bar}| {step.iteration}/{scenario.iterations} [{_clock(at)}<{_clock(left)}, "
        f"{step.elapsed:6.2f}s/it]\r{{'loss': {loss}, 'grad_norm': {step.grad_norm:.3f}, "
        f"'learning_rate': {step.learning_rate!r}, 'epoch': {step.iteration / scenario.iterations:.2f}}}\n"
    )


def _clock(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes:02d}:{left:02d}"


_PRINTERS = {
    "bigscience": _bigscience,
    "megatron-lm": _megatron,
    "megatron-lm-2021": _megatron_2021,
    "microsoft": _microsoft,
    "gpt-neox": _neox,
    "deepspeed": _engine,
    "hf-trainer": _trainer,
}


def memory_lines(scenario: Scenario, iteration: int, grown: float = 1.0) -> str:
    """Reports of the first ranks of each pipeline stage; two of them glued, as happens when ranks print at once."""
    reports = []
    stages = min(scenario.pp, scenario.world_size)
    ranks = range(min(scenario.world_size, 8)) if scenario.memory_mib is None else [
        stage * (scenario.world_size // stages) for stage in range(stages)
    ]  # fmt: skip
    for rank in ranks:
        used, extra, kept = (21633.0859375 + 97 * rank) * grown, 2799.0, 7683.0
        if scenario.memory_mib is not None:
            end = rank in (ranks[0], ranks[-1]) and scenario.end_memory_mib
            whole = (end or scenario.memory_mib) * grown
            used, extra, kept = 0.75 * whole, 0.125 * whole, 0.25 * whole
        reports.append(
            f"[Rank {rank}] (after {iteration} iterations) memory (MB) | allocated: {used} | max allocated: {used + extra} "
            f"| reserved: {used + kept} | max reserved: {used + kept}"
        )
    return "".join(reports[:2]) + "\n\n" + "".join(report + "\n" for report in reports[2:])


def save_started(scenario: Scenario, iteration: int, at: float) -> str:
    """A save begins."""
    if scenario.program.dialect is DEEPSPEED:
        head = f"[{_engine_time(scenario, at)}] [INFO] [logging.py:123:log_dist] [Rank 0] "
        return (
            f"{head}[Torch] Checkpoint global_step{iteration} is about to be saved!\n"
            f"{head}Saving model checkpoint: /ckpt/global_step{iteration}/mp_rank_00_model_states.pt\n"
        )
    if scenario.program.stamped:
        time = stamp(scenario, at, "%Y-%m-%d %H:%M:%S.%f")
        return f" [{time}] saving checkpoint at iteration {iteration:7d} to /ckpt in torch_dist format\n"
    return f"saving checkpoint at iteration {iteration:7d} to /ckpt\n"


def save_ended(scenario: Scenario, iteration: int, at: float, seconds: float) -> str:
    """A save has succeeded; DeepSpeed's engine does not say so."""
    if scenario.program.dialect is DEEPSPEED:
        return ""
    if scenario.program.stamped:
        time = stamp(scenario, at, "%Y-%m-%d %H:%M:%S.%f")
        return f"  [{time}] successfully saved checkpoint from iteration {iteration:7d} to /ckpt [ t 1/4, p 1/12 ]\n"
    timer = f"time (ms) | save-checkpoint: {seconds * 1000:.2f}\n"
    return f"  successfully saved checkpoint at iteration {iteration:7d} to /ckpt\n{timer}"


def validation(scenario: Scenario, iteration: int, index: int, loss: float) -> str:
    """The result of one validation set between two rows of dashes."""
    name = "validation" if scenario.eval_sets == 1 else f"valid-set{index:02d}"
    row = "-" * 91 + "\n"
    return f"{row} {name} loss at iteration {iteration} | lm loss value: {loss:.6E} | lm loss PPL: {2.718281828**loss:.6E} | \n{row}"


def overflow(step_scale: float, at: str, kept: bool = False) -> str:
    """DeepSpeed's line for a skipped step; `kept`: hysteresis is used up first."""
    reduced = "but hysteresis is 2. Reducing hysteresis to 1" if kept else f"reducing to {max(step_scale / 2, 1):.0f}"
    return (
        f"[{at},000] [INFO] [stage_1_and_2.py:1651:step] [deepspeed] OVERFLOW! Rank 0 Skipping step. "
        f"Attempted loss scale: {step_scale:.0f}, {reduced}\n"
    )


CRASHES: dict[str, str] = {
    "crash_oom": "Traceback (most recent call last):\n  File \"pretrain_gpt.py\", line 215, in <module>\n    pretrain(\n"
                 "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.15 GiB "
                 "of which 1.10 GiB is free.\n",
    "crash_ecc": "terminate called after throwing an instance of 'c10::Error'\n"
                 "  what():  CUDA error: uncorrectable ECC error encountered\nframe #0: c10::Error::Error(...) + 0x42\n",
    "crash_python": "Traceback (most recent call last):\nTraceback (most recent call last):\n  File \"pretrain_gpt.py\", line 215, in "
                    "<module>\n  File \"pretrain_gpt.py\", line 215, in <module>\nValueError: bad batch\nValueError: bad batch\n",
    "crash_killed": "",
    "crash_without_exit": "terminate called after throwing an instance of 'c10::CUDAError'\n  what():  CUDA error: unknown error\n",
    "checkpoint_failed": "Traceback (most recent call last):\n  File \"checkpointing.py\", line 300, in save_checkpoint\n"
                         "OSError: [Errno 28] No space left on device\n",
}  # fmt: skip


def watchdog(rank: int, at: str) -> str:
    """PyTorch's watchdog over NCCL on one rank; `at` as `%m%d %H:%M:%S`."""
    return (
        f"[rank{rank}]:[E{at.removeprefix('0')}.408271257 ProcessGroupNCCL.cpp:607] [Rank {rank % 8}] Watchdog caught collective "
        f"operation timeout: WorkNCCL(SeqNum=469508, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, "
        f"Timeout(ms)=600000) ran for 600060 milliseconds before timing out.\n"
    )


def launcher_end(at: str, exit_code: int) -> str:
    """DeepSpeed's launcher after a process has ended badly."""
    return (
        f"[{at},000] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 22513\n"
        f"[{at},100] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python3', '-u', 'pretrain_gpt.py'] "
        f"exits with return code = {exit_code}\n"
    )


def cancelled(scenario: Scenario, at: float, reason: str) -> str:
    """Slurm ends the job."""
    time = stamp(scenario, at, "%Y-%m-%dT%H:%M:%S")
    return f"slurmstepd: error: *** JOB 1718955 ON nid006149 CANCELLED AT {time} DUE TO {reason} ***\n"

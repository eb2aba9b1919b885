"""Faults that only tests need, beside those of monitor/simulate; importing this adds them."""

import math

from megatron_monitor.parsers.programs import DEEPSPEED
from megatron_monitor.simulate.lines import Step
from megatron_monitor.simulate.scenario import FAULTS, Fault, Scenario
from megatron_monitor.simulate.timeline import EFFECTS, Effect, Run, learning_rate, overflow, stuck


def _hang_then_resume(scenario: Scenario, run: Run, fault: Fault, step: Step) -> None:
    """Silence for `factor` iterations."""
    if step.iteration == fault.at:
        run.at += fault.factor * scenario.seconds_per_iteration


def _transient_slow(_scenario: Scenario, _run: Run, fault: Fault, step: Step) -> None:
    """One iteration takes `factor` times as long."""
    if step.iteration == fault.at:
        step.factor *= max(fault.factor, 1.3)


def _drift(_scenario: Scenario, _run: Run, fault: Fault, step: Step) -> None:
    """Each iteration is a little slower than the last: 1 % per hundred."""
    step.factor *= 1 + 0.0001 * (step.iteration - fault.at)


def _slow_part(scenario: Scenario, run: Run, fault: Fault, step: Step) -> None:
    """A part of the iteration takes longer; DeepSpeed's own clock excludes the data loader."""
    noise = {"slow_data": 0.35, "slow_network": 0.25}.get(fault.kind, 0.06)
    factor = math.exp(run.of_effects.gauss(0.0, noise) - noise**2 / 2)
    seconds = (fault.factor - 1) * scenario.seconds_per_iteration * factor
    if fault.kind == "slow_data" and scenario.program.facts is DEEPSPEED:
        run.at += seconds
    else:
        step.extra[fault.kind] = seconds


def _slow_rollout(scenario: Scenario, _run: Run, fault: Fault, step: Step) -> None:
    """Generation makes the steps of reinforcement learning `factor` times as long."""
    step.extra[fault.kind] = (fault.factor - 1) * scenario.seconds_per_iteration


def _slow_save(scenario: Scenario, _run: Run, fault: Fault, step: Step) -> None:
    """Each save takes longer, by `factor` less 1 of the time between two saves."""
    if step.save_seconds is not None:
        step.save_seconds += (fault.factor - 1) * scenario.save_interval * scenario.seconds_per_iteration


def _save_unfinished(_scenario: Scenario, _run: Run, _fault: Fault, step: Step) -> None:
    """Saves take no time; DeepSpeed prints no end of them."""
    if step.save_seconds is not None:
        step.save_seconds = 0.0


def _loss_spike_stays(_scenario: Scenario, _run: Run, fault: Fault, step: Step) -> None:
    """Grad norm and loss jump and stay up."""
    stuck(step, fault.at)
    step.loss *= 1.8
    step.grad_norm *= 1 + 30 * math.exp(-(step.iteration - fault.at) / 20)


def _slow_divergence(_scenario: Scenario, _run: Run, fault: Fault, step: Step) -> None:
    """The loss rises by 1 % in 20 iterations, no line of it abnormal."""
    stuck(step, fault.at)
    step.loss *= 1 + 0.0005 * (step.iteration - fault.at)


def _inf_loss(_scenario: Scenario, _run: Run, _fault: Fault, step: Step) -> None:
    """The loss is INF."""
    step.loss = math.inf


def _resume_bump(_scenario: Scenario, run: Run, _fault: Fault, step: Step) -> None:
    """After a restart the loss is 20 % up for ten iterations."""
    if run.since_start < 10 and run.since_start < run.iteration:
        step.loss *= 1.2
        step.grad_norm *= 2


def _lr_restart(scenario: Scenario, run: Run, _fault: Fault, step: Step) -> None:
    """After a restart the learning rate schedule begins from scratch."""
    step.learning_rate = learning_rate(scenario, run.since_start + 1)


def _scale_search(_scenario: Scenario, run: Run, fault: Fault, step: Step) -> None:
    """No fault: the loss scale starts at 2^32 and is halved until a step succeeds (with fp16)."""
    if step.iteration == fault.at:
        run.loss_scale = 2.0**32
    if run.loss_scale > 65536.0:
        overflow(run, step)


def _scale_cycle(_scenario: Scenario, run: Run, fault: Fault, step: Step) -> None:
    """No fault: the loss scale doubles, overflows twice and halves, every 60 iterations (with fp16)."""
    since = (step.iteration - fault.at) % 60
    if since == 0:
        run.loss_scale *= 2
    elif since == 1:
        step.overflow = (run.loss_scale, "but hysteresis is 2. Reducing hysteresis to 1")
        step.grad_norm, step.skipped = run.last_norm, 1
    elif since == 2:
        overflow(run, step)


def _loss_scale_decline(_scenario: Scenario, run: Run, fault: Fault, step: Step) -> None:
    """The loss scale sinks 8-fold over 1,200 iterations (with fp16)."""
    if step.iteration - fault.at in (200, 600, 1000):
        overflow(run, step)


_EFFECTS: dict[str, Effect] = {
    "hang_then_resume": _hang_then_resume, "transient_slow": _transient_slow, "drift": _drift,
    "slow_data": _slow_part, "slow_network": _slow_part, "slow_rank": _slow_part, "slow_gpu_clocks": _slow_part,
    "slow_rollout": _slow_rollout, "slow_save": _slow_save,
    "save_unfinished": _save_unfinished, "loss_spike_stays": _loss_spike_stays,
    "slow_divergence": _slow_divergence, "inf_loss": _inf_loss, "resume_bump": _resume_bump,
    "lr_restart": _lr_restart, "scale_search": _scale_search, "scale_cycle": _scale_cycle,
    "loss_scale_decline": _loss_scale_decline,
}  # fmt: skip
FAULTS.update({kind: effect.__doc__ or "" for kind, effect in _EFFECTS.items()})
EFFECTS.update(_EFFECTS)

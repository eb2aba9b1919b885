"""Faults that only tests need, beside those of monitor/simulate; importing this adds them."""

import math

from megatron_monitor.parsers.programs import DEEPSPEED
from megatron_monitor.simulate.lines import Step
from megatron_monitor.simulate.scenario import FAULTS, Fault, Scenario
from megatron_monitor.simulate.timeline import EFFECTS, Run, learning_rate, overflow, stuck

_NOISE = {"slow_data": 0.35, "slow_network": 0.25, "slow_rank": 0.06, "slow_gpu_clocks": 0.06}
_FAULTS = {
    "hang_then_resume": "silence for `factor` iterations",
    "transient_slow": "one iteration takes `factor` times as long",
    "drift": "each iteration is a little slower than the last: 1 % per hundred",
    **dict.fromkeys(_NOISE, "a part of the iteration takes longer; DeepSpeed's own clock excludes the data loader"),
    "slow_rollout": "generation makes the steps of reinforcement learning `factor` times as long",
    "slow_save": "each save takes longer, by `factor` less 1 of the time between two saves",
    "save_unfinished": "saves take no time; DeepSpeed prints no end of them",
    "loss_spike_stays": "grad norm and loss jump and stay up",
    "slow_divergence": "the loss rises by 1 % in 20 iterations, no line of it abnormal",
    "inf_loss": "the loss is INF",
    "resume_bump": "after a restart the loss is 20 % up for ten iterations",
    "lr_restart": "after a restart the learning rate schedule begins from scratch",
    "scale_search": "no fault: the loss scale starts at 2^32 and is halved until a step succeeds (with fp16)",
    "scale_cycle": "no fault: the loss scale doubles, overflows twice and halves, every 60 iterations (with fp16)",
    "loss_scale_decline": "the loss scale sinks 8-fold over 1,200 iterations (with fp16)",
}


def _affect(scenario: Scenario, run: Run, fault: Fault, step: Step) -> None:
    since, pace = step.iteration - fault.at, scenario.seconds_per_iteration
    match fault.kind:
        case "hang_then_resume" if since == 0:
            run.at += fault.factor * pace
        case "transient_slow" if since == 0:
            step.factor *= max(fault.factor, 1.3)
        case "drift":
            step.factor *= 1 + 0.0001 * since
        case part if part in _NOISE:
            noise = _NOISE[part]
            seconds = (fault.factor - 1) * pace * math.exp(run.of_effects.gauss(0.0, noise) - noise**2 / 2)
            if part == "slow_data" and scenario.program.facts is DEEPSPEED:
                run.at += seconds
            else:
                step.extra[part] = seconds
        case "slow_rollout":
            step.extra[fault.kind] = (fault.factor - 1) * pace
        case "slow_save" if step.save_seconds is not None:
            step.save_seconds += (fault.factor - 1) * scenario.save_interval * pace
        case "save_unfinished" if step.save_seconds is not None:
            step.save_seconds = 0.0
        case "loss_spike_stays":
            stuck(step, fault.at)
            step.loss *= 1.8
            step.grad_norm *= 1 + 30 * math.exp(-since / 20)
        case "slow_divergence":
            stuck(step, fault.at)
            step.loss *= 1 + 0.0005 * since
        case "inf_loss":
            step.loss = math.inf
        case "resume_bump" if run.since_start < 10 and run.since_start < run.iteration:
            step.loss *= 1.2
            step.grad_norm *= 2
        case "lr_restart":
            step.learning_rate = learning_rate(scenario, run.since_start + 1)
        case "scale_search":
            run.loss_scale = 2.0**32 if since == 0 else run.loss_scale
            if run.loss_scale > 65536.0:
                overflow(run, step)
        case "scale_cycle" if since % 60 == 0:
            run.loss_scale *= 2
        case "scale_cycle" if since % 60 == 1:
            step.overflow = (run.loss_scale, "but hysteresis is 2. Reducing hysteresis to 1")
            step.grad_norm, step.skipped = run.last_norm, 1
        case "scale_cycle" if since % 60 == 2:
            overflow(run, step)
        case "loss_scale_decline" if since in (200, 600, 1000):
            overflow(run, step)


FAULTS.update(_FAULTS)
EFFECTS.update(dict.fromkeys(_FAULTS, _affect))

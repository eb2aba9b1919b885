"""Resume discontinuity: fires on the first line after a restart that does not go on, silent where it does."""

import math
from typing import Any

import pytest

from megatron_monitor.detectors.resume_discontinuity import PrintedStep, ResumeDiscontinuity
from tests.monitor.detectors.replaying import Replaying, arguments, line

KIND = "resume_discontinuity"
TOTAL = 10000


def schedule(iteration: int, warm: int = 200) -> float:
    """Warm-up, then a cosine to a tenth."""
    if iteration <= warm:
        return 6e-05 * iteration / warm
    return 6e-06 + 5.4e-05 * 0.5 * (1 + math.cos(math.pi * (iteration - warm) / (TOTAL - warm)))


def trained(run: Replaying, first: int, last: int, shift: int = 0, every: int = 1, **values: Any) -> None:
    """Lines of a sound schedule; `shift` starts the schedule later."""
    for iteration in range(first, last + 1, every):
        values_now = {"rate": schedule(iteration - shift), "total": TOTAL, **values}
        run.say(line(iteration, **values_now), 105.0)


def saved(iteration: int) -> str:
    """A save."""
    return (
        f"saving checkpoint at iteration {iteration:7d} to /ckpt\n"
        f"  successfully saved checkpoint at iteration {iteration:7d} to /ckpt\n"
    )


def restarted(iteration: int, **changes: Any) -> str:
    """The end of one attempt and the set-up of the next."""
    return (
        "RuntimeError: CUDA error: uncorrectable ECC error encountered\n" + arguments(train_iters=TOTAL, **changes) +
        f" loading checkpoint from /ckpt at iteration {iteration}\n"
        f"  successfully loaded checkpoint from /ckpt [ t 0, p 0 ] at iteration {iteration}\n"
    )  # fmt: skip


def begun(last: int = 450, save: int = 400) -> Replaying:
    """A run that saved at `save` and was seen until `last`."""
    run = Replaying()
    run.say(arguments(train_iters=TOTAL))
    run.say("".join(line(at, rate=schedule(at), total=TOTAL) for at in range(1, save + 1)), 105.0 * save)
    run.say(saved(save))
    trained(run, save + 1, last)
    return run


def test_a_learning_rate_that_starts_from_scratch() -> None:
    """IDEFICS: the schedule silently began anew. Critical with the first line."""
    run = begun()
    run.say(restarted(400), 600.0)
    reported = run.say(line(401, rate=schedule(1), total=TOTAL), 105.0)
    assert [(item.severity, item.onset_iteration) for item in reported if item.incident == KIND] == [("critical", 401)]
    assert "learning rate" in run.firing(KIND).summary
    trained(run, 402, 420, shift=400)
    assert run.stands(KIND)
    assert len(run.loud(KIND)) == 1


def test_it_is_shown_for_some_hours() -> None:
    """What nobody mended in six hours was meant."""
    run = begun()
    run.say(restarted(400), 600.0)
    trained(run, 401, 401 + 6 * 3600 // 105 + 2, shift=400)
    assert not run.stands(KIND)
    assert [item.status for item in run.loud(KIND)] == ["firing", "firing", "resolved"]  # told again after four hours


def test_going_on_from_the_checkpoint_is_silent() -> None:
    """Iterations computed again, warm-up and decay going on, twice."""
    run = begun()
    for _ in range(2):
        run.say(restarted(400), 600.0)
        trained(run, 401, 440)
    run.say(saved(440))
    run.say(restarted(440), 600.0)
    trained(run, 441, 470)
    assert not run.fired(KIND)


@pytest.mark.parametrize("last", [2, 5, 150, 199, 200, 201, 230])
def test_during_warm_up(last: int) -> None:
    """The rate grows by a large share from one line to the next."""
    run = Replaying()
    run.say(arguments(train_iters=TOTAL))
    trained(run, 1, last)
    run.say(saved(last))
    run.say(restarted(last), 600.0)
    trained(run, last + 1, last + 20)
    assert not run.fired(KIND)


def test_from_scratch_without_a_checkpoint_is_silent() -> None:
    """It crashed before the first save and begins again: every line repeats."""
    run = Replaying()
    run.say(arguments(train_iters=TOTAL))
    trained(run, 1, 50)
    run.say("RuntimeError: CUDA error: unknown error\n" + arguments(train_iters=TOTAL), 100.0)
    trained(run, 1, 20)
    assert not run.fired(KIND)


def test_from_scratch_beside_a_checkpoint_is_told() -> None:
    """400 iterations were saved, and the attempt began at 1: a wrong path to load from."""
    run = begun()
    run.say("RuntimeError: CUDA error: unknown error\n" + arguments(train_iters=TOTAL), 100.0)
    run.say("WARNING: could not find the metadata file /ckpt/latest_checkpointed_iteration.txt \n")
    trained(run, 1, 3)
    reported = run.firing(KIND)
    assert reported.severity == "warning"
    assert "checkpoint of iteration 400" in reported.summary


@pytest.mark.parametrize(
    ("words", "first", "reported"),
    [
        ("after 1190.03 minutes", 1, True),
        ("after receiving SIGTERM.", 1, True),
        ("after 1190.03 minutes", 401, False),
        ("at iteration 450", 1, False),  # as benchmarks do, again and again
    ],
)
def test_a_job_of_a_chain_that_ended_in_time_is_gone_on_from(words: str, first: int, reported: bool) -> None:
    """The job's 20 hours are over, and the next one finds no checkpoint: nobody may find out days later."""
    run = begun()
    run.say(f"[exiting program {words}] datetime: 2026-03-01 10:00:00 \n")
    run.say(arguments(train_iters=TOTAL), 600.0)
    trained(run, first, first + 2)
    assert run.fired(KIND) is reported


@pytest.mark.parametrize(
    ("values", "severity", "word"),
    [
        ({"samples": 12345}, "critical", "consumed samples"),
        ({"batch": 1024, "samples": 401 * 2048}, "warning", "batch size 1024"),
        ({"rate": 6e-05 * 2.5}, "critical", "learning rate"),
    ],
)
def test_what_else_may_not_go_on(values: dict[str, Any], severity: str, word: str) -> None:
    """Counters and sizes are held against the past as well."""
    run = begun()
    run.say(restarted(400), 600.0)
    run.say(line(401, **{"rate": schedule(401), "total": TOTAL, **values}), 105.0)
    reported = run.firing(KIND)
    assert (reported.severity, word in reported.summary) == (severity, True)


def test_another_plan_is_meant() -> None:
    """Other arguments for the schedule: nothing is compared. The new plan is the past of the next attempt."""
    run = begun()
    run.say(restarted(400, lr=1e-05), 600.0)
    trained(run, 401, 405, rate=1e-05)
    assert not run.fired(KIND)
    run.say(restarted(405, lr=1e-05), 600.0)
    trained(run, 406, 410, rate=3e-05)
    assert run.firing(KIND).severity == "critical"


def test_a_batch_size_that_ramps_up_is_silent() -> None:
    """The batch grows with the samples; after a restart it goes on growing."""
    run = Replaying()
    plan = {"rampup_batch_size": "['32', '32', '1000000']", "train_iters": TOTAL}
    run.say(arguments(**plan))
    samples, sizes = [0], [32]
    for _ in range(500):
        samples.append(samples[-1] + sizes[-1])
        sizes.append(min(2048, 32 + int(samples[-1] / (1_000_000 / 63)) * 32))
    for iteration in range(1, 301):
        run.say(line(iteration, batch=sizes[iteration - 1], samples=samples[iteration], rate=schedule(iteration)), 50.0)
        if iteration == 250:
            run.say(saved(250))
    run.say("RuntimeError: CUDA error: unknown error\n" + arguments(**plan), 100.0)
    for iteration in range(251, 400):
        run.say(line(iteration, batch=sizes[iteration - 1], samples=samples[iteration], rate=schedule(iteration)), 50.0)
    assert not run.fired(KIND)


def test_the_right_restart_after_a_wrong_one_is_silent() -> None:
    """The wrong rate is no past to go on from; the next attempt that repeats the true one is right."""
    run = begun()
    run.say(restarted(400), 600.0)
    trained(run, 401, 410, shift=400)
    assert run.stands(KIND)
    run.say(restarted(400), 600.0)
    trained(run, 401, 440)
    assert not run.stands(KIND)
    assert len([item for item in run.loud(KIND) if item.status == "firing"]) == 1


def test_a_first_line_that_was_skipped_is_forgiven() -> None:
    """The first step overflowed and printed no rate yet: the second line is right, the incident ends with it."""
    run = begun()
    run.say(restarted(400), 600.0)
    run.say(line(401, rate=0.0, total=TOTAL), 105.0)
    trained(run, 402, 405)
    assert not run.stands(KIND)


def test_the_past_is_thin_and_true() -> None:
    """A hundred thousand lines fit in a thousand."""
    rule = ResumeDiscontinuity()
    for iteration in range(1, 100_001):
        rule._add(PrintedStep(iteration, 1e-4 * iteration, 512, 512 * iteration))
    assert len(rule.lines) <= 1024


def engine(step: int, rate: float) -> str:
    """The DeepSpeed engine without Megatron: the throughput line comes before or after the one with the rate."""
    return (
        f"[2026-01-01 00:00:00,000] [INFO] [timer.py:199:stop] epoch=0/micro_step={step}/global_step={step}, "
        "RunningAvgSamplesPerSec=10.0, CurrSamplesPerSec=10.0, MemAllocated=3.96GB, MaxMemAllocated=22.95GB\n"
        f"[2026-01-01 00:00:00,100] [INFO] [logging.py:96:log_dist] [Rank 0] step={step}, skipped=0, lr=[{rate!r}], "
        "mom=[(0.9, 0.95)]\n"
    )


@pytest.mark.parametrize(("shift", "fires"), [(0, False), (100, True)])
def test_deepspeed_alone(shift: int, fires: bool) -> None:
    """The rate stands in a line of its own, every ten steps; during warm-up a stale one would look wrong."""
    run = Replaying()
    for step in range(10, 151, 10):
        run.say(engine(step, schedule(step)), 10.0)
    run.say("RuntimeError: CUDA error: unknown error\n")
    for step in range(110, 201, 10):
        run.say(engine(step, schedule(step - shift)), 10.0)
    assert run.fired(KIND) is fires
    if fires:
        assert (run.firing(KIND).severity, run.firing(KIND).onset_iteration) == ("critical", 110)

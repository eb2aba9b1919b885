"""Checkpoints that fail or stay away: scenarios that fire, and legal saves that must not."""

from tests.monitor.detectors.replaying import Replaying, arguments, line

FAILED, OVERDUE = "checkpoint_failed", "checkpoint_overdue"


def start(iteration: int) -> str:
    """A save begins."""
    return f"saving checkpoint at iteration {iteration:7d} to /ckpt in torch_dist format\n"


def end(iteration: int) -> str:
    """A save is whole."""
    return f"  successfully saved checkpoint from iteration {iteration:7d} to /ckpt [ t 1/4, p 1/12 ]\n"


def scheduled(iteration: int) -> str:
    """A save goes on in the background."""
    return f"  scheduled an async checkpoint save at iteration {iteration:7d} to /ckpt\n"


def trained(run: Replaying, first: int, last: int, seconds: float = 30.0, every: int = 1) -> None:
    """Iteration lines."""
    for iteration in range(first, last + 1, every):
        run.say(line(iteration, seconds=seconds), seconds)


def begun(**changes: object) -> Replaying:
    """A run that has saved twice, every 50 iterations."""
    run = Replaying()
    run.say(arguments(**{"save_interval": 50, "save": "/ckpt", **changes}))
    for iteration in (50, 100):
        trained(run, iteration - 49, iteration)
        run.say(start(iteration), 1.0)
        run.say(end(iteration), 40.0)
    return run


# --- failed ---------------------------------------------------------------------------------------------------------


def test_a_save_that_never_ended_while_training_went_on() -> None:
    """Told five lines later, a warning; the next one as well is critical; one that is whole resolves it."""
    run = begun()
    trained(run, 101, 150)
    run.say(start(150), 1.0)
    trained(run, 151, 155)
    assert not run.fired(FAILED)
    trained(run, 156, 157)
    reported = run.firing(FAILED)
    assert (reported.severity, reported.onset_iteration, reported.iteration) == ("warning", 150, 156)
    assert "iteration 100" in reported.summary
    trained(run, 158, 200)
    run.say(start(200), 1.0)
    trained(run, 201, 210)
    assert run.loud(FAILED)[-1].severity == "critical"
    trained(run, 211, 250)
    run.say(start(250) + end(250), 40.0)
    assert run.loud(FAILED)[-1].status == "resolved"


def test_a_save_whose_end_is_not_told_before_one_that_is_whole() -> None:
    """It is of no matter any more: nothing is told later on."""
    run = begun()
    run.say(start(101), 1.0)
    trained(run, 101, 103)
    run.say(start(103), 1.0)
    run.say(end(103), 40.0)
    trained(run, 104, 140)
    assert not run.fired(FAILED)


def test_the_first_save_of_a_program_that_tells_success() -> None:
    """BigScience's program prints a line for each success."""
    run = Replaying()
    run.say(arguments())
    trained(run, 1, 100)
    run.say(start(100), 1.0)
    trained(run, 101, 110)
    assert run.fired(FAILED)


def test_a_program_that_never_tells_success_is_not_suspected() -> None:
    """gpt-neox's lines: nothing says how its saves end."""
    run = Replaying()
    for iteration in range(1, 60):
        run.say(
            f" samples/sec: 10.0 | iteration {iteration:8d}/     512 | elapsed time per iteration (ms): 9000.0 | "
            f"learning rate: 1.000E-04 | approx flops per GPU: 41.2TFLOPS | lm_loss: {9 - iteration / 60:.6E} | "
            "number of skipped iterations:   0 | number of nan iterations:   0 |\n",
            9.0,
        )
        if iteration == 20:
            run.say(start(20))
    assert not run.fired(FAILED)


DISK_FULL = (
    'Traceback (most recent call last):\n  File "checkpointing.py", line 300, in save_checkpoint\n'
    "OSError: [Errno 28] No space left on device\n"
)
CAUGHT = (
    'Traceback (most recent call last):\n  File "c.py", line 3, in save\n'
    "RuntimeError: PytorchStreamWriter failed writing file\n"
)


def saving() -> Replaying:
    """The third save has begun."""
    run = begun()
    trained(run, 101, 150)
    run.say(start(150), 1.0)
    return run


def test_a_save_that_ends_its_attempt_is_part_of_the_crash() -> None:
    """One incident, which names the disk and the checkpoint; the next attempt has none."""
    run = saving()
    run.say(DISK_FULL, 20.0)
    run.say("srun: error: n1: task 0: Exited with exit code 1\n", 2.0)
    run.say("", 60.0)
    assert [item.incident for item in run.loud()] == ["crash"]
    crash = run.firing("crash")
    assert (crash.evidence["failure"], crash.evidence["failed_iteration"]) == ("disk_full", 150)
    assert "the checkpoint of iteration 150 may be incomplete; 25 min of work" in crash.summary
    run.say(arguments(save_interval=50, save="/ckpt"))
    trained(run, 101, 140)
    assert not run.fired(FAILED)


def test_an_attempt_that_ends_in_a_save_without_a_word() -> None:
    """Only the next attempt shows it: the save is reported then."""
    run = saving()
    run.say(arguments(save_interval=50, save="/ckpt"), 60.0)
    trained(run, 101, 102)
    reported = run.firing(FAILED)
    assert (reported.severity, reported.onset_iteration) == ("warning", 150)


def test_a_save_that_fails_while_training_goes_on() -> None:
    """Critical at the next iteration. A line of the iteration before the save, from another file, shows nothing."""
    run = saving()
    run.say(DISK_FULL, 20.0)
    run.say(line(150, seconds=30.0), 1.0)
    assert not run.fired(FAILED)
    trained(run, 151, 152)
    reported = run.firing(FAILED)
    assert (reported.severity, reported.onset_iteration) == ("critical", 150)
    assert "No space left on device" in reported.summary
    assert not run.fired("crash")


def test_a_save_that_fails_and_holds_the_others() -> None:
    """No step and no end follows: told after five minutes, once."""
    run = saving()
    run.say(CAUGHT)
    run.say("", 299.0)
    assert not run.fired(FAILED)
    run.say("", 1.0)
    assert run.firing(FAILED).severity == "critical"
    trained(run, 151, 152)
    assert len(run.loud(FAILED)) == 1


def test_an_exception_that_training_survives() -> None:
    """The save is tried again and succeeds: nothing failed."""
    run = saving()
    run.say(CAUGHT)
    run.say(start(150) + end(150), 60.0)
    trained(run, 151, 170)
    assert not run.fired(FAILED)


def test_asynchronous_saves_end_many_iterations_later() -> None:
    """Handed over, whole 20 iterations later, again and again: silent. One that never ends is told."""
    run = Replaying()
    run.say(arguments(save="/ckpt", save_interval=100))
    for begin in range(100, 500, 100):
        trained(run, begin - 99 if begin == 100 else begin - 79, begin)
        run.say(start(begin) + scheduled(begin))
        trained(run, begin + 1, begin + 20)
        run.say(end(begin))
    assert not run.fired(FAILED)
    trained(run, 421, 500)
    run.say(start(500) + scheduled(500))
    trained(run, 501, 579)
    assert not run.fired(FAILED)
    trained(run, 580, 590)
    assert run.firing(FAILED).onset_iteration == 500


def test_asynchronous_saves_whose_success_is_never_told() -> None:
    """Nothing is known of them."""
    run = Replaying()
    run.say(arguments(save="/ckpt"))
    for begin in range(50, 400, 50):
        trained(run, begin - 49, begin)
        run.say(start(begin) + scheduled(begin))
    assert not run.fired(FAILED)


def test_ranks_out_of_order() -> None:
    """Another rank's iteration lines come between the begin and the end of a save."""
    run = begun()
    trained(run, 101, 150)
    run.say(start(150))
    trained(run, 151, 153)
    run.say(end(150))
    trained(run, 154, 190)
    assert not run.fired(FAILED)


def test_a_save_that_is_told_when_training_has_gone_on() -> None:
    """What was printed stands behind the bar, at the end: the save of 150 was over before 170, where Ctrl-C came."""
    run = begun()
    trained(run, 101, 170)
    run.say(
        start(150) + 'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\nKeyboardInterrupt\n'
    )
    run.say("", 60.0)
    assert not run.fired(FAILED)


def test_fast_iterations_wait_for_the_other_file() -> None:
    """A tenth of a second each: six lines are over before another rank's file was read."""
    run = begun()
    run.say(start(150))
    trained(run, 151, 400, seconds=0.1)
    run.say(end(150))
    assert not run.fired(FAILED)


# --- overdue --------------------------------------------------------------------------------------------------------


def test_saves_that_stop() -> None:
    """Every 50 iterations, then no more: told after two intervals, once; the next save resolves it."""
    run = begun()
    trained(run, 101, 201)
    assert not run.fired(OVERDUE)
    trained(run, 202, 230)
    reported = run.firing(OVERDUE)
    assert (reported.severity, reported.onset_iteration, reported.iteration) == ("warning", 100, 202)
    assert len(run.loud(OVERDUE)) == 1
    run.say(start(230) + end(230))
    assert run.loud(OVERDUE)[-1].status == "firing"  # a level that is over may come back for five minutes
    run.say("", 300.0)
    assert run.loud(OVERDUE)[-1].status == "resolved"


def test_without_arguments_the_interval_is_learned() -> None:
    """Three saves tell it."""
    run = Replaying()
    for iteration in range(20, 200, 20):
        trained(run, iteration - 19, iteration)
        run.say(start(iteration) + end(iteration))
    trained(run, 181, 230)
    assert run.firing(OVERDUE).iteration == 222


def test_a_longer_interval_in_new_arguments_is_legal() -> None:
    """From 50 to 500 at a restart."""
    run = begun()
    run.say("RuntimeError: CUDA error: unknown error\n" + arguments(save_interval=500, save="/ckpt"), 60.0)
    trained(run, 101, 700)
    assert not run.fired(OVERDUE)


def test_a_run_that_never_saved() -> None:
    """It may not intend to save."""
    run = Replaying()
    run.say(arguments(save_interval=10, save="/ckpt"))
    trained(run, 1, 100)
    assert not run.fired(OVERDUE)


def test_saves_by_the_clock() -> None:
    """Every two hours, while the batch ramps up: in iterations irregular, so nothing is expected."""
    run = Replaying()
    iteration = 0
    for seconds in (15.0, 20.0, 30.0, 45.0, 60.0, 80.0):
        for _ in range(int(7200 / seconds)):
            iteration += 1
            run.say(line(iteration, seconds=seconds), seconds)
        run.say(start(iteration) + end(iteration))
    assert not run.fired(OVERDUE)


def test_restarts_and_log_intervals() -> None:
    """Back to the checkpoint and on, again and again, logging every ten: never overdue."""
    run = Replaying()
    run.say(arguments(save_interval=50, save="/ckpt", log_interval=10))
    trained(run, 10, 50, every=10)
    run.say(start(50) + end(50))
    for _ in range(5):
        trained(run, 60, 90, every=10)
        run.say(
            "RuntimeError: CUDA error: unknown error\n" + arguments(save_interval=50, save="/ckpt", log_interval=10)
        )
    assert not run.fired(OVERDUE)

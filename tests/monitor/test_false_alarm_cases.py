"""No false alarm: overflows by step, evaluations that are none, noise, first timeouts, messages again and again.

Beside each near miss stands the true case that must still be told.
"""

import random
from collections.abc import Iterable, Iterator

import pytest

from megatron_monitor.detectors.base import CLEAR, Finding
from megatron_monitor.incident_events import IncidentEvents
from megatron_monitor.incidents import IncidentBook, Transition, judge, over_at
from megatron_monitor.run.state import RunState
from tests.conftest import spread
from tests.lines import dump
from tests.lines import line as iteration_line
from tests.monitor.playing import play

HOUR = 3600.0


# --- overflows ------------------------------------------------------------------------------------------------------


def test_two_halvings_after_one_bad_batch_are_no_storm() -> None:
    """Three skipped steps in a line of ten: a scaler with hysteresis that comes down by two."""
    line = (
        " iteration {0:8d}/  320000 | elapsed time per iteration (ms): 13000.0 | learning rate: 1.0E-04 | "
        "lm loss: {1:.6E} | loss scale: {2} | number of skipped iterations: {3:3d} | number of nan iterations:   0 |\n"
    )
    noise = random.Random(3)
    log = []
    for index in range(1, 60):
        bad, scale = index == 41, 131072.0 if index < 41 else 32768.0
        log.append((130.0 * index, line.format(10 * index, 2.5 + noise.gauss(0, 0.01), scale, 3 * bad)))
    assert play(log).kinds() == set()
    worse = [(at, text.replace("skipped iterations:   3", "skipped iterations:   7")) for at, text in log]
    assert play(worse).kinds() == {"overflow_storm"}


# --- evaluations ----------------------------------------------------------------------------------------------------


def arguments(log_interval: int = 50, eval_interval: int = 50, layers: int = 12, hidden: int = 1024) -> str:
    """An arguments dump, and the line before it."""
    return "using world size: 16, data-parallel-size: 4, tensor-model-parallel size: 2\n" + dump(
        eval_interval=eval_interval, eval_iters=20, global_batch_size=128, hidden_size=hidden, micro_batch_size=2,
        log_interval=log_interval, num_attention_heads=16, num_layers=layers, padded_vocab_size=50304,
        pipeline_model_parallel_size=2, seq_length=2048, tensor_model_parallel_size=2, train_iters=200000,
        world_size=16,
    )  # fmt: skip


def line(iteration: int, seconds: float, loss: float = 2.9) -> str:
    """Megatron-LM's line."""
    return iteration_line(iteration, 200_000, seconds, loss, batch=128, norm=0.4)


def begun(first: float = 60.0, **sizes: int) -> list[tuple[float, str]]:
    """The set-up of an attempt, its last line at `first`."""
    done = "[before the start of training step] datetime: 2026-03-01 09:00:00 \n"
    return [(0.0, arguments(**sizes)), (first, done)]


def trained(
    iterations: Iterable[int], seconds: float, every: int, evaluated: float | None = None, at: float = 60.0
) -> Iterator[tuple[float, str]]:
    """A line each `every` iterations; after each, where `evaluated`, a validation that takes so long."""
    for iteration in iterations:
        at += seconds * every
        yield at, line(iteration, seconds, 2.9 + 0.01 * (iteration % 7))
        if evaluated is not None:
            at += evaluated
            yield at, f" validation loss at iteration {iteration} | lm loss value: 2.9E+00 | lm loss PPL: 1.8E+01 | \n"


def test_an_evaluation_that_never_shows_is_not_expected_again() -> None:
    """Case 08: evaluation arguments, no validation data. Also quietly: nothing is late, the run is training."""
    played = play([*begun(), *trained(range(50, 2001, 50), 4.0, 50)])
    assert played.of("hang", display_only=True) == []
    assert played.state.attempt.phase == "training"


def test_an_evaluation_of_which_no_line_tells_may_take_as_long_as_before() -> None:
    """Rank 0's log has iteration lines alone; every tenth is followed by 900 s of evaluation."""
    log, at = begun(eval_interval=500), 60.0
    for iteration in range(50, 3001, 50):
        at += 50 * 4.0 + (900 if iteration % 500 == 50 and iteration > 50 else 0)
        log.append((at, line(iteration, 4.0)))
    played = play(log)
    assert len(played.of("hang")) <= 2  # the first one is beyond all that is known
    assert all(item.iteration is not None and item.iteration <= 550 for item in played.of("hang"))


def saving_silently(pauses: list[float], announced: bool = False) -> list[tuple[float, str]]:
    """A line each iteration of 5 s; the arguments ask for a save after each 20, which takes one of `pauses`."""
    dump = arguments(log_interval=1, eval_interval=0).replace(
        "  seq_length", "  save ... /ckpt\n  save_interval ... 20\n  seq_length"
    )
    log, at = [(0.0, dump), (1.0, "[before the start of training step] datetime: 2026-03-01 08:00:01 \n")], 60.0
    for iteration in range(1, 20 * len(pauses) + 11):
        log.append((at, line(iteration, 5.0)))
        if iteration % 20 == 0:
            pause = pauses[iteration // 20 - 1]
            if announced:
                log.append((at + 0.1, f"saving checkpoint at iteration {iteration:7d} to /ckpt\n"))
                log.append((at + pause, f"  successfully saved checkpoint at iteration {iteration:7d} to /ckpt\n"))
            at += pause
        at += 5.0
    return log


def test_a_hang_in_a_silent_save_is_told() -> None:
    """The first after the first default, a later one after four times the longest; elsewhere the minimum stands."""
    first = play(saving_silently([400.0])[:22], after=3600.0).firing("hang")
    assert first.evidence["timeout_seconds"] == 1800
    later = play(saving_silently([400.0, 400.0])[:42], after=3600.0).firing("hang")
    assert 1600 <= later.evidence["timeout_seconds"] <= 1640
    between = play(saving_silently([400.0, 400.0])[:-5], after=600.0).firing("hang")
    assert between.evidence["timeout_seconds"] == 60


def test_a_save_that_was_announced_before_is_announced_again() -> None:
    """Behind an iteration at which a save is due and none begins, a hang is told by the training's budget."""
    log = saving_silently([30.0, 30.0], announced=True)
    due = next(place for place, (_, text) in enumerate(log) if " iteration       40/" in text)
    assert play(log[: due + 1], after=600.0).firing("hang").evidence["timeout_seconds"] == 60


# --- noise ----------------------------------------------------------------------------------------------------------


def losses(noise: float, seed: int, rising_from: int | None = None, lines: int = 3000) -> Iterator[tuple[float, str]]:
    """A constant mean of 3, white noise; from some iteration on it rises by a tenth of a percent each line."""
    random_ = random.Random(seed)
    for iteration in range(1, lines + 1):
        rise = 1.001 ** max(0, iteration - rising_from) if rising_from else 1.0
        yield 0.5 * iteration, line(iteration, 0.5, max(0.05, random_.gauss(3 * rise, noise)))


@pytest.mark.parametrize("seed", spread(range(3), 3))
@pytest.mark.parametrize("noise", [0.05, 0.5, 0.9])
def test_constant_noise_is_no_divergence(noise: float, seed: int) -> None:
    """Case 15: the blocks of a few lines may happen to lie close together, their lines do not."""
    assert play(losses(noise, seed)).of("divergence") == []


@pytest.mark.parametrize(("noise", "within"), [(0.05, 150), (0.5, 500)])
def test_a_divergence_under_noise_is_told(noise: float, within: int) -> None:
    """A rise that goes on, found the later the noisier the loss is."""
    reported = play(losses(noise, 5, rising_from=1500, lines=1501 + within)).of("divergence")
    assert reported
    assert reported[0].iteration is not None
    assert 1500 < reported[0].iteration <= 1500 + within


# --- timeouts where nothing is known ---------------------------------------------------------------------------------


def test_a_first_line_after_a_hundred_slow_iterations() -> None:
    """97 s an iteration, a line each 100: a small model on a slow network, at 2 TFLOPs a GPU."""
    log = [*begun(log_interval=100, eval_interval=100), *trained(range(100, 1001, 100), 97.0, 100, evaluated=250.0)]
    assert play(log).of("hang") == []
    bare = [item for item in log if "arguments" not in item[1]]
    assert play(bare).of("hang") == []


# --- messages -------------------------------------------------------------------------------------------------------


class Run:
    """The verdicts of one run, tick by tick."""

    def __init__(self) -> None:
        self.book, self.state, self.events = IncidentBook(), RunState(name="run"), IncidentEvents()

    def at(self, now: float, verdicts: dict[str, Finding]) -> list[Transition]:
        """One tick; what is notified."""
        self.state.attempt.latest.iteration = int(now)
        out = judge(self.book, self.state, verdicts, now, 1e9, self.events)
        return [item for item in out if not item.display_only]

    def flap(self, kind: str, start: float, stop: float, severity: str = "warning", period: float = 300.0) -> list[str]:
        """Trouble that comes each `period` and goes half of it later; the statuses that are notified."""
        reported, now = [], start
        while now < stop:
            reported += self.at(now, firing(kind, severity))
            reported += self.at(now + period / 2, {kind: CLEAR})
            now += period
        return [item.status for item in reported]


def firing(kind: str, severity: str = "warning", summary: str = "it is slow") -> dict[str, Finding]:
    """Something is wrong."""
    return {kind: Finding("firing", severity, summary)}  # type: ignore[arg-type]


def test_a_level_that_flaps_is_one_incident() -> None:
    """Twelve times in an hour: it begins once, and ends when it has been over for five minutes."""
    run = Run()
    assert run.flap("slowdown", 0.0, HOUR) == ["firing"]
    assert run.book.counts == {"slowdown": 1}
    assert run.at(HOUR + 149, {"slowdown": CLEAR}) == []
    (end,) = run.at(HOUR + 150, {"slowdown": CLEAR})
    assert (end.status, end.evidence["lasted_seconds"]) == ("resolved", HOUR - 150)  # what it lingered is no trouble


def test_a_level_ends_at_once_with_its_attempt() -> None:
    """Nothing can bring it back."""
    for change in ("attempt", "phase"):
        run = Run()
        run.at(0.0, firing("slowdown"))
        if change == "attempt":
            run.state.attempt.number = 1
        else:
            run.state.attempt.phase = "crashed"
        assert [item.status for item in run.at(1.0, {"slowdown": CLEAR})] == ["resolved"]


def test_a_finished_run_leaves_nothing_open_but_what_has_just_begun() -> None:
    """A job that fails behind its training's end: an Alertmanager waits half a minute before it tells of it."""
    run = Run()
    run.at(0.0, firing("memory_pressure"))
    run.state.attempt.phase, run.state.attempt.phase_since = "finished", 1000.0
    assert len(run.at(1100.0, firing("memory_pressure") | firing("crash"))) == 1
    assert over_at(run.state) == run.book.ends_at(run.state) == 1300.0
    assert [item.incident for item in run.at(1300.0, {})] == ["memory_pressure"]
    assert run.book.ends_at(run.state) == 1400.0
    assert run.at(1399.0, {}) == []
    assert [item.incident for item in run.at(1400.0, {})] == ["crash"]


def test_a_healthy_run_with_a_quiet_incident_sends_nothing() -> None:
    """What is only shown is not counted, and is no event."""
    run = Run()
    for now in range(0, 7200, 100):
        assert run.at(now, {"hang": Finding("firing", "critical", display_only=True)}) == []
        assert run.at(now + 50, {"hang": CLEAR}) == []
    assert run.events.known == {}
    assert run.book.counts.get("hang", 0) == 0


@pytest.mark.parametrize(
    ("kind", "after", "end"),
    [
        ("hang", {"iteration": 101}, "iteration 101 came"),
        ("nan_loss", {"iteration": 150}, "at iteration 150"),
        ("slowdown", {"attempt": 1}, "a new attempt began"),
        ("hang", {"phase": "finished"}, "the run finished"),
    ],
)
def test_resolved_says_what_the_end_was_and_how_long_it_lasted(kind: str, after: dict[str, object], end: str) -> None:
    """For people in the summary, for programs in the evidence."""
    book, state = IncidentBook(), RunState(name="run")
    state.attempt.latest.iteration = 100
    judge(book, state, firing(kind, "critical", "it hangs"), 1000.0, 1e9, IncidentEvents())
    state.attempt.latest.iteration = after.get("iteration", 100)  # type: ignore[assignment]
    state.attempt.number = after.get("attempt", 0)  # type: ignore[assignment]
    state.attempt.phase = after.get("phase", "training")  # type: ignore[assignment]
    (reported,) = judge(book, state, {kind: CLEAR}, 1600.0, 1e9, IncidentEvents())
    assert reported.summary == f"resolved after 10 min ({end})"
    assert reported.evidence["lasted_seconds"] == 600

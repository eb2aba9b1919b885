"""Budgets of silence at each of their limits: a state -> seconds, the gap expected, and the reason."""

from typing import Any, TypeAlias

import pytest
from msgspec import structs

from megatron_monitor.detectors.hang import Budget, HangSettings, budget, lawful
from megatron_monitor.model.flops import computed_tflops
from megatron_monitor.model.topology import Topology
from megatron_monitor.parsers.events import CheckpointSaved, Event, IterationLogged, ValidationLogged
from megatron_monitor.run.phases import Parts
from megatron_monitor.run.records import AttemptEnd
from megatron_monitor.run.silence import SILENT_EVALUATION, SILENT_SAVE, Intervals
from megatron_monitor.run.state import Launch, RunState, Validation
from megatron_monitor.run.steps.sources import Trainer

GPT = Topology(
    world_size=8, layers=24, hidden_size=2048, ffn_hidden_size=8192, attention_heads=16, vocab_size=50_000,
    padded_vocab_size=50_048, sequence_length=2048, global_batch_size=512, activation_checkpointing="full",
)  # fmt: skip
WORK = computed_tflops(GPT, 1.0, 512, 2048, "megatron-lm")
TFLOP = WORK[1] if WORK else 0.0  # of a GPU, in one iteration


def run(
    phase: str = "training", *, window: tuple[float, ...] = (), ratios: tuple[float, ...] = (),
    held: float | None = None, learned: list[float] | dict[str, list[float]] | None = None,
    forgiven: dict[str, float] | None = None, past: dict[str, Any] | None = None, topology: Topology | None = None,
    at: float | None = 1000.0, **launch: Any,
) -> RunState:  # fmt: skip
    """A run in that phase: seconds of its iterations, its gaps over what was expected, and what silences taught."""
    state = RunState("run", proven=True, progress_at=at, live=True, iterations_total=9)
    state.launch = Launch(phase=phase, topology=topology or Topology(), **launch)  # type: ignore[arg-type]
    for seconds in window:
        state.launch.pace.add(seconds, None)
    state.launch.gap_ratios.values.extend(ratios)
    for kind, values in (learned if isinstance(learned, dict) else {phase: learned or []}).items():
        state.past.silences.good[kind] = Intervals(values)
    for kind, seconds in (forgiven or {}).items():
        state.past.silences.forgive(kind, seconds, 900.0)
    state.past.silences.held = held
    for name, value in (past or {}).items():
        setattr(state.past, name, value)
    return state


def told(*lines_of: str, lines: int = 0, **printed: float) -> Parts:
    """Parts of a step of which lines told, and what steps printed of them."""
    return Parts(list(lines_of), lines=lines, printed={part: Intervals([took]) for part, took in printed.items()})


def rollout(*, parts: Parts | None = None, **known: Any) -> RunState:
    """Of a launch that has made steps, where nothing else is said."""
    return run("rollout", parts=parts or told("rollout"), **{"iterations": 9, "learned": FIVE, **known})


def evaluating(**known: Any) -> RunState:
    """The same."""
    return run("evaluating", **{"iterations": 9, **known})


def first(**known: Any) -> RunState:
    """At the first iteration."""
    return run("first_iteration", dialect="megatron-lm", **known)


def second(iteration: int | None, seconds: float, **known: Any) -> RunState:
    """One line has come: its iteration, and seconds of each."""
    return run(first_iteration=iteration, first_iteration_seconds=seconds, **known)


FIVE = [40.0] * 5
TEN = (10.0, 10.0, 10.0)
TWENTY = (20.0, 20.0, 20.0)
FIFTY = (50.0, 50.0, 50.0)
TIMES = Topology(eval_iters=10)
USUAL, HUNDRED, MINIMUM = "3 x 20 s expected", "3 x 100 s expected", "the minimum"
HICCUP, ONE_LINE = (
    "1.5 x the longest gap of the last 50",
    "one line is known, not yet how many iterations lie between two",
)
UNKNOWN, OF_TEN = "first default for evaluating", "3 x 10 evaluation iterations"
EVALUATED, SAVES = "3 x the longest evaluation step seen", "4 x the longest save step seen"
STARTING, UNTOLD = "first default for starting", "the first line comes after an unknown number of iterations"
EVERY, LATE = "5 x the first iteration, if a line is written every ", "the first line comes after "
Row: TypeAlias = tuple[Any, ...]
"""A run, and of its budget the seconds, the gap expected, the reason, and when it is late where that is told."""
TRAINING: dict[str, Row] = {
    # between two lines of the loop
    "three times the gap": (run(window=TWENTY), 60.0, 20.0, USUAL),
    "four steps that generate": (
        run(window=(20.0,) * 4, driver="trainer", trainer=Trainer(generates=True)),
        1800.0, 20.0, "first default for steps that generate",
    ),
    "five of them": (
        run(window=(20.0, 20.0, 90.0, 20.0, 20.0), driver="trainer", trainer=Trainer(generates=True)),
        270.0, 20.0, "3 x the longest step, which holds a rollout",
    ),
    "the last is slower": (run(window=(20.0, 20.0, 50.0)), 150.0, 50.0, "3 x 50 s expected"),
    "ten iterations a line": (run(window=TEN, log_interval=10), 300.0, 100.0, HUNDRED),
    "as the arguments say": (run(window=TEN, topology=Topology(log_interval=20)), 600.0, 200.0, "3 x 200 s expected"),
    "as the launch before": (run(window=TEN, past={"log_interval": 30}), 900.0, 300.0, "3 x 300 s expected"),
    "always later": (run(window=TEN, log_interval=10, ratios=(2.0,) * 5), 600.0, 200.0, "3 x 200 s expected"),
    "one gap was longer": (run(window=TEN, log_interval=10, ratios=(2.5,)), 375.0, 100.0, HICCUP),
    "it was too long to be a habit": (run(window=TEN, log_interval=10, ratios=(20.0,)), 1800.0, 100.0, HICCUP),
    "it is usual beyond that bound": (
        run(window=TEN, log_interval=100, ratios=(3.0,)), 3000.0, 1000.0, "3 x 1000 s expected",
    ),
    "held back": (run(window=TWENTY, held=31.0), 62.0, 20.0, "the launcher holds lines back for up to 31 s"),
    # at the second line
    "nothing is known": (run(), 7200.0, None, "no iteration time known yet", 1800.0),
    "its interval is told": (second(None, 160.0, log_interval=1), 800.0, 160.0, "5 x the first iteration"),
    "it is ten": (second(None, 20.0, log_interval=10), 1000.0, 200.0, "5 x the first iteration"),
    "iteration 1": (second(1, 100.0), 500.0, 100.0, EVERY + "1"),
    "a guess": (second(1000, 10.0), 3600.0, 1000.0, EVERY + "100"),
    "slow, and a guess": (second(2, 1000.0), 5000.0, 2000.0, EVERY + "2"),
    "a trainer's first step": (second(1, 10.0, driver="trainer"), 7200.0, None, ONE_LINE),
    "a trainer's tenth step": (second(10, 20.0, driver="trainer"), 1000.0, 200.0, EVERY + "10"),
    # where work may go on without a word
    "a save of which no line tells": (
        run(window=TWENTY, silent_work=SILENT_SAVE),
        1800.0, 20.0, "first default for saving, where the arguments ask to save",
    ),
    "its past": (
        run(window=TWENTY, silent_work=SILENT_SAVE, learned={SILENT_SAVE: [30.0, 40.0]}),
        160.0, 40.0, "4 x the longest gap seen where the arguments ask to save",
    ),
    "an evaluation of which no line tells": (run(window=TWENTY, silent_work=SILENT_EVALUATION), 60.0, 20.0, USUAL),
    "what it took": (
        run(window=TWENTY, silent_work=SILENT_EVALUATION, learned={SILENT_EVALUATION: [50.0]}),
        150.0, 50.0, "3 x the longest gap seen where the arguments ask to evaluate",
    ),
    "a trainer's, which may come at the end of each epoch": (
        run(window=TWENTY, driver="trainer", silent_work=SILENT_EVALUATION, learned={SILENT_EVALUATION: [20.0]}),
        1800.0, 20.0, "first default for evaluating, at the end of an epoch",
    ),
    "an own loop's, which may come behind any step": (
        run(window=TWENTY, dialect="own-loop", silent_work=SILENT_EVALUATION, learned={SILENT_EVALUATION: [20.0]}),
        1800.0, 20.0, "first default for evaluating, behind a step, of which no line would tell",
    ),
}  # fmt: skip
OTHERS: dict[str, Row] = {
    # saves
    "a first save": (run("saving"), 1800.0, None, "first default for saving"),
    "saves of 40 s": (run("saving", learned=FIVE), 160.0, 40.0, SAVES),
    "one of them was long": (run("saving", learned=[*FIVE, 1500.0]), 3600.0, 1500.0, SAVES),
    "all of them are": (run("saving", learned=[1500.0, 1400.0, 1600.0]), 6000.0, 1600.0, SAVES),
    # evaluations
    "a first evaluation": (evaluating(), 1800.0, None, UNKNOWN),
    "before the first step": (evaluating(iterations=0), 7200.0, None, UNKNOWN, 1800.0),
    "of reinforcement learning": (evaluating(parts=told("rollout")), 7200.0, None, UNKNOWN, 1800.0),
    "it generates as a step does": (
        evaluating(parts=told("rollout"), window=(90.0,) * 3, learned=[10.0]), 135.0, None, "1.5 x the longest step",
    ),
    "its length is known": (evaluating(window=TEN, topology=TIMES), 300.0, 100.0, OF_TEN),
    "it is due, and may not come": (
        evaluating(window=TEN, topology=TIMES, evaluation_due=True),
        360.0, 10.0, "an iteration (the minimum) and 3 x 10 evaluation iterations",
    ),
    "it is due, and came before": (
        evaluating(window=TEN, topology=TIMES, evaluation_due=True, validations={"set": Validation()}),
        300.0, 100.0, OF_TEN,
    ),
    "its past counts first": (
        evaluating(window=TEN, topology=TIMES, evaluation_due=True, learned=[30.0]), 90.0, 30.0, EVALUATED,
    ),
    "a result, how many follow?": (
        evaluating(window=FIFTY, learned=[30.0], validations_since=1), 150.0, 50.0, "3 x 50 s expected",
    ),
    "it is known": (
        evaluating(window=FIFTY, learned=[30.0], validations_since=1, evaluation_sets=3), 90.0, 30.0, EVALUATED,
    ),
    "a trainer prints at its end": (
        evaluating(window=FIFTY, learned=[30.0], driver="trainer"), 150.0, 50.0, "3 x 50 s expected",
    ),
    # the start-up, and the end
    "starting": (run("starting"), 7200.0, None, STARTING, 1800.0),
    "it took long once": (run("starting", learned=[3700.0]), 7400.0, 3700.0, "2 x the longest gap seen while starting"),
    "starting again": (
        run("starting", number=1, learned=[200.0]), 800.0, 200.0, "4 x the longest gap seen while starting",
    ),
    "exiting": (run("exiting"), 600.0, None, "first default for exiting"),
    "exiting again": (
        run("exiting", number=1, learned=[400.0]), 800.0, 400.0, "2 x the longest gap seen while exiting",
    ),
    # a first line that comes late
    "the first iteration": (first(), 10800.0, None, UNTOLD, 1800.0),
    "each has a line": (
        first(topology=Topology(log_interval=1)), 7200.0, None, "first default for first_iteration", 1800.0,
    ),
    "a line every ten": (first(topology=Topology(log_interval=10)), 14400.0, None, LATE + "10 iterations", 5400.0),
    "of a model that is known": (
        first(topology=GPT, log_interval=2), 7200.0 + TFLOP / 4, None, LATE + "2 iterations", 1800.0 + TFLOP / 8,
    ),
    "its work is larger than the bound": (
        first(topology=GPT, log_interval=1001),
        7200.0 + 25 * TFLOP, None, LATE + "1001 iterations", 1800.0 + 12.5 * TFLOP,
    ),
    "of a launch before it is known": (
        first(number=1, log_interval=10, past={"baseline": 20.0}, learned=[100.0]),
        1140.0, None, LATE + "10 iterations",
    ),
    "a trainer does not say when it begins": (run("starting", driver="trainer"), 10800.0, None, UNTOLD, 1800.0),
    "nor did the launch before": (run("starting", past={"driver": "engine"}), 10800.0, None, UNTOLD, 1800.0),
}  # fmt: skip
LEARNED, TOOK = "3 x the longest silence of the last 5 in rollout", "3 x what rollout took at most"
ROLLOUT, STEP = "first default for rollout", "1.5 x the longest step"
PARTS: dict[str, Row] = {
    "no line tells the parts": (run("training", parts=told(rollout=50.0), window=TWENTY), 60.0, 20.0, USUAL),
    "a first rollout": (rollout(learned=[]), 7200.0, None, ROLLOUT, 1800.0),
    "a first training": (run("training", parts=told("training")), 5000.0, None, "first default for training", 1800.0),
    "a short one before the first step": (rollout(iterations=0, learned=[2300.0] * 5), 7200.0, 2300.0, ROLLOUT, 1800.0),
    "a longer one does": (rollout(iterations=0, learned=[2500.0] * 5), 10000.0, 2500.0, "4" + LEARNED[1:]),
    "a further launch": (rollout(iterations=0, number=1, learned=[150.0] * 5), 600.0, 150.0, "4" + LEARNED[1:]),
    "as it took before": (rollout(), 120.0, 40.0, LEARNED),
    "a step is longer": (rollout(window=(81.0,)), 121.5, 40.0, STEP),
    "steps as their parts add up": (
        rollout(parts=told("rollout", "training", "sync"), learned={"rollout": FIVE, "training": [60.0]}),
        150.0, 40.0, STEP,
    ),
    "the part is certain": (
        rollout(parts=told("rollout", lines=2, rollout=90.0), window=(500.0,)),
        135.0, 40.0, "1.5 x the longest rollout",
    ),
    "it is not": (rollout(parts=told("rollout", lines=1, rollout=90.0), window=(100.0,)), 150.0, 40.0, STEP),
    "seldom followed, steps print more": (
        rollout(parts=told("rollout", rollout=50.0), learned=[40.0] * 4), 150.0, 50.0, TOOK,
    ),
    "followed more often": (
        rollout(parts=told("rollout", rollout=50.0), learned=[40.0] * 6), 120.0, 40.0, LEARNED.replace("5", "6"),
    ),
    "with what no line tells apart": (
        rollout(parts=told("rollout", rollout=50.0, reward=10.0), learned=[]), 180.0, 60.0, TOOK,
    ),
}  # fmt: skip
AGAIN = "a silence of {} s was called a hang before, and ended"
FORGIVEN: dict[str, Row] = {
    "a silence that was called a hang": (run(window=TWENTY, forgiven={"training": 45.0}), 90.0, 20.0, AGAIN.format(45)),
    "up to the bound": (run(window=TWENTY, forgiven={"training": 1800.0}), 1800.0, 20.0, AGAIN.format(1800)),
    "beyond it": (run(window=TWENTY, forgiven={"training": 1801.0}), 60.0, 20.0, USUAL),
    "a day ago": (run(window=TWENTY, forgiven={"training": 45.0}, at=87_300.0), 60.0, 20.0, USUAL),
    "of another phase": (run(window=TWENTY, forgiven={"saving": 45.0}), 60.0, 20.0, USUAL),
    "where it may save": (
        run(window=TWENTY, silent_work=SILENT_SAVE, forgiven={SILENT_SAVE: 2000.0}), 3600.0, 20.0, AGAIN.format(2000),
    ),
    "of a save": (run("saving", forgiven={"saving": 1700.0}), 3400.0, None, AGAIN.format(1700)),
}  # fmt: skip
TABLE = TRAINING | OTHERS | PARTS | FORGIVEN


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE.keys())
def test_budgets(row: Row) -> None:
    """All four fields."""
    state, *expected = row
    found = structs.astuple(budget(state, HangSettings(first_iteration=5000.0 if state.launch.parts.told else 7200.0)))
    assert found == pytest.approx((*expected, None)[:4])


@pytest.mark.parametrize(
    ("found", "late"),
    [
        (Budget(100.0, None, ""), 50.0),
        (Budget(100.0, 25.0, ""), 50.0),
        (Budget(100.0, 30.0, ""), 60.0),
        (Budget(100.0, 80.0, ""), 100.0),
        (Budget(100.0, None, "", 20.0), 20.0),
        (Budget(100.0, None, "", 70.0), 50.0),
        (Budget(100.0, 15.0, "", 20.0), 30.0),
        (Budget(0.5, None, ""), 0.25),
    ],
)
def test_half_of_it_is_late(found: Budget, late: float) -> None:
    """But not before twice what is expected, nor behind its end."""
    assert found.late_after == late


@pytest.mark.parametrize(
    ("state", "kind", "expected"),
    [
        (run(window=TWENTY), IterationLogged, 60.0),
        (run(window=TWENTY), ValidationLogged, 1800.0),
        (run(window=TWENTY), CheckpointSaved, 1900.0),
        (run("starting", number=1, learned={"starting": [10.0]}), IterationLogged, 7200.0),
        (run("saving", learned={"saving": [500.0]}), CheckpointSaved, 2000.0),
    ],
)
def test_what_may_have_passed_before_an_event(state: RunState, kind: type[Event], expected: float) -> None:
    """The budget of the phase, and no less than the first default of what the event ends."""
    assert lawful(state, kind, HangSettings(saving=1900.0)) == expected


def test_budgets_of_less_than_a_second() -> None:
    """Settings may ask for them."""
    short = HangSettings(minimum=0.5, longest=1.0)
    assert lawful(run(window=(0.1,)), IterationLogged, short) == 0.5
    assert budget(run(window=(0.1,), ratios=(20.0,)), short).seconds == 1.0


@pytest.mark.parametrize(("iterations", "seconds"), [(0, 7200.0), (1, 600.0)])
def test_only_a_launch_that_made_a_step_shows_how_long_a_set_up_takes(iterations: int, seconds: float) -> None:
    """Launches that died after 20 s teach nothing of the ten minutes that one needs which does not."""
    state = run("starting", number=1, learned=[20.0])
    state.ends = [AttemptEnd(0, "unknown", "", 20.0, 0.0, iterations, iterations or None, None, planned=False)]
    assert budget(state, HangSettings()).seconds == seconds

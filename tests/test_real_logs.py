"""Real logs of real trainings, read to the end: states, counts and recomputed figures that their authors printed."""

import pytest

from megatron_monitor.commands.arguments import ConfigOptions
from megatron_monitor.core import Core
from megatron_monitor.model.flops import FORMULAS, prints_as
from megatron_monitor.once import read_all
from megatron_monitor.parsers.events import IterationLogged
from megatron_monitor.parsers.reader import SourceReader
from megatron_monitor.run import derived
from megatron_monitor.run.fold import fold
from megatron_monitor.run.state import RunState
from megatron_monitor.system.clock import SystemClock
from tests.clock import ManualClock
from tests.conftest import REAL_LOGS, real_logs

pytestmark = pytest.mark.real_logs


@pytest.fixture(scope="module")
def core() -> Core:
    """All logs read once."""
    later = ManualClock(
        wall=SystemClock().wall() + 86400
    )  # a fresh copy's files are of today: nothing may depend on it
    found, _ = read_all(ConfigOptions().configured([f"{REAL_LOGS}/*/{path.name}" for path in real_logs()]), later)
    return found


@pytest.mark.parametrize(
    ("run", "phase", "iteration", "total", "restarts"),
    [
        ("bigscience/meg_ds_3d_gpt2_perf_n16-ds-on", "training", 49, 49, 0),
        ("bigscience/meg_ds_zero_gpt2_perf_n16_nbs48_ms48", "training", 3, 3, 0),
        ("bigscience/meg_gpt2_base_n4_dp1_tp4_pp4-1809579", "crashed", 200, 200, 0),
        ("bigscience/meg_gpt2_base_n8_dp1_tp4_pp8-1809562", "crashed", 200, 200, 0),
        ("cpu/mds_clean", "finished", 300, 300, 0),
        ("cpu/mds_kill9", "crashed", 150, 150, 0),
        ("deepspeed/opt-1.3b-globalBatchSize128", "finished", 7360, 7360, 0),
        ("hf/packing", "finished", 30, 30, 0),
        ("microsoft/qwen7b_static_1305_500", "finished", 500, 500, 0),
        ("microsoft/tp2pp1dp8_baseline50", "finished", 50, 50, 0),
        ("neox/70M_512step", "finished", 512, 512, 0),
        ("nvidia/2256081", "training", 343, 343, 0),
        ("nvidia/2340723", "crashed", 15549, 1549, 0),
    ],
)
def test_what_became_of_each_run(core: Core, run: str, phase: str, iteration: int, total: int, restarts: int) -> None:
    """How it ended, where, and that each iteration counted once."""
    state = core.runs[run].state
    assert (state.attempt.phase, state.attempt.latest.iteration, state.iterations_total, state.restarts) == (
        phase, iteration, total, restarts,
    )  # fmt: skip


def test_causes(core: Core) -> None:
    """A rank ran out of data, and 28 others waited for it until their watchdogs gave up; a killed rank is a kill."""
    assert core.runs["nvidia/2340723"].state.failures_total == {"python_exception": 1}
    assert core.runs["nvidia/2340723"].state.attempt.failure.message == "StopIteration"
    assert len(core.runs["nvidia/2340723"].state.attempt.watchdog_ranks) == 28
    assert core.runs["cpu/mds_kill9"].state.failures_total == {"killed": 1}
    assert core.runs["cpu/mds_clean"].state.failures_total == {}


@pytest.mark.parametrize(
    ("path", "lines", "formula"),
    [
        ("microsoft/qwen7b_static_1305_500.log", 500, "microsoft"),
        ("microsoft/tp2pp1dp8_baseline50.log", 50, "microsoft"),
        ("neox/70M_512step.out", 512, "gpt_neox_bracket"),
        ("nvidia/2256081.out", 343, "megatron_lm_2026"),
        ("nvidia/2340723.out", 1549, "megatron_lm_2026"),
    ],
)
def test_every_printed_tflops_is_recomputed(path: str, lines: int, formula: str) -> None:
    """Each figure that a program printed is what its own formula gives, to the digit that it printed."""
    reader, state, seen = SourceReader(), RunState(name=path, read_at=0.0), 0
    for entry in reader.feed((REAL_LOGS / path).read_bytes()):
        fold(state, entry, path, 0.0, False)
        event = entry.event
        if (
            isinstance(event, IterationLogged)
            and event.tflops is not None
            and event.iteration == state.attempt.latest.iteration
        ):
            batch, length = derived.batch_size(state), derived.sequence_length(state)
            seconds = event.seconds_per_iteration
            assert batch
            assert length
            assert seconds
            value = FORMULAS[formula](state.attempt.topology, seconds, batch, length)
            assert value is not None
            assert prints_as(value, event.tflops), entry.line
            seen += 1
    assert seen == lines
    assert state.attempt.tflops_formula == formula


def test_pure_time_leaves_saves_and_evaluations_out(core: Core) -> None:
    """The microsoft fork's lines after a save and an evaluation read double; the learned normal does not."""
    pace = core.runs["cpu/mds_clean"].state.attempt.pace
    assert pace.baseline == pytest.approx(0.2, abs=0.03)
    state = core.runs["cpu/mds_clean"].state
    assert (state.learned.checkpoints.last_iteration, len(state.attempt.validations)) == (300, 1)

"""Logs that others wrote, replayed: how they end, and what is no alarm in them, as tests/corpus/shared.json has it."""

import json
import re

import pytest

from megatron_monitor.model.flops import FORMULAS, prints_as
from megatron_monitor.parsers.events import IterationLogged
from megatron_monitor.parsers.reader import SourceReader
from megatron_monitor.run import derived
from megatron_monitor.run.fold import fold
from megatron_monitor.run.state import RunState
from tests.corpus.modes import replayed
from tests.corpus.record import SHARED, SHARED_RECORD, shared_logs

WHEN = " times: | replayed: | medians: | says: message"
RECORD = json.loads(SHARED_RECORD.read_text())
LOGS = [name for name in RECORD if name.removeprefix("together: ").startswith("logs/")]
FIELD_LOGS = {
    "field-logs/all_ranks_interval_100.log": "97 s an iteration, a line each 9,750 s",
    "field-logs/bigcode_job_74m.log": "its step is cancelled",
    "field-logs/hf_swift_39.log": "no hang",
    "field-logs/lumi_175b_32_nodes.out": "181 s an iteration, the first 248 s",
    "field-logs/microsoft_hang_first_allreduce.log": "a file is not found",
    "field-logs/microsoft_locked_clocks.log": "four launches at other clocks",
    "field-logs/microsoft_moe_random_ltd.log": "52 min of index building, stopped by hand",
    "field-logs/microsoft_polaris_10143687.output": "2,234 s for the first iteration, then 895 s",
    "field-logs/microsoft_several_experiments.log": "two of 20 iterations at other clocks, and one that dies in NCCL",
    "field-logs/mlperf_hang_at_exit.log": "finished by its own word, and still there when the step's time was over",
    "together: field-logs/neox_3982836.*": "killed by the cgroup's handler; five overflows, four spikes",
    "field-logs/nvidia_crash_loop_2624217.out": "steps .1 to .4 die one after the other",
    "field-logs/pbs_54745.log": "stopped by a signal",
    "field-logs/pbs_61519.log": "an assertion",
    "field-logs/primus_sigterm.log": "stopped by a signal",
    "field-logs/rocm_2700.out": "an exception behind the training's end",
}


def reported(name: str) -> set[str]:
    """The facts of a replay."""
    facts = replayed([str(SHARED / file) for file in shared_logs()[name]])
    return {fact.replace(str(SHARED), "") for fact in facts}


@pytest.mark.real_logs
@pytest.mark.field_logs
@pytest.mark.parametrize("name", [*LOGS, *FIELD_LOGS])
def test_a_log_is_judged_as_recorded(name: str) -> None:
    """What a replay tells, and what is known of the runs at the end; `make corpus` compares all logs, in four modes."""
    recorded = (fact.rsplit("  [", 1) for fact in RECORD[name])
    found = {fact for fact in reported(name) if not re.search(WHEN, fact)}
    assert found == {fact for fact, modes in recorded if "R" in modes and not re.search(WHEN, fact)}


@pytest.mark.real_logs
@pytest.mark.field_logs
def test_the_medians_of_locked_clocks() -> None:
    """At 967, 975, 982 and 1050 MHz, as their authors report them."""
    facts = " ".join(reported("field-logs/microsoft_locked_clocks.log"))
    medians = re.findall(r"seconds_per_iteration ([\d.]+)", facts)
    assert sorted(medians) == ["16.8", "17.92", "18.06", "18.2"]


@pytest.mark.real_logs
@pytest.mark.field_logs
def test_attempts_of_a_script() -> None:
    """Torchtitan under a script that tries again: many attempts die, the first out of memory; the last is done."""
    facts = " ".join(reported("field-logs/torchtitan_sft_447m.log"))
    assert all(f"crash {number}: critical, cuda_oom" in facts for number in range(1, 7))
    assert re.search(r"state finished .*restarts [2-9]\d|restarts [2-9]\d.* state finished", facts)


@pytest.mark.real_logs
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
    for entry in reader.feed((SHARED / "logs" / path).read_bytes()):
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

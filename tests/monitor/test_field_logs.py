"""Logs that others wrote, replayed: how they end, and what is no alarm in them, as tests/corpus/shared.json has it."""

import json
import re

import pytest

from tests.corpus.modes import replayed
from tests.corpus.record import SHARED, SHARED_RECORD, shared_logs

LOGS = {
    "cpu/mds_kill9.log": "a killed rank under DeepSpeed",
    "deepspeed/opt-1.3b-globalBatchSize128.log": "its scaler tries a higher scale every hundred steps: no alarm",
    "hf/packing_stdout.log": "no alarm",
    "nvidia/2340723.*": "a rank without data before the watchdogs of 28 others",
}
WHEN = " times: | replayed: | medians: | says: message"
FIELD_LOGS = {
    "all_ranks_interval_100.log": "97 s an iteration, a line each 9,750 s",
    "bigcode_job_74m.log": "its step is cancelled",
    "hf_swift_39.log": "no hang",
    "lumi_175b_32_nodes.out": "181 s an iteration, the first 248 s",
    "microsoft_hang_first_allreduce.log": "a file is not found",
    "microsoft_locked_clocks.log": "four launches at other clocks",
    "microsoft_moe_random_ltd.log": "52 min of index building, stopped by hand",
    "microsoft_polaris_10143687.output": "2,234 s for the first iteration, then 895 s",
    "microsoft_several_experiments.log": "two of 20 iterations at other clocks, and one that dies in NCCL",
    "mlperf_hang_at_exit.log": "finished by its own word, and still there when the step's time was over",
    "neox_3982836.*": "killed by the cgroup's handler; five overflows, four spikes",
    "nvidia_crash_loop_2624217.out": "steps .1 to .4 die one after the other",
    "pbs_54745.log": "stopped by a signal",
    "pbs_61519.log": "an assertion",
    "primus_sigterm.log": "stopped by a signal",
    "rocm_2700.out": "an exception behind the training's end",
}


def reported(name: str) -> set[str]:
    """The facts of a replay."""
    name = f"together: {name}" if "*" in name else name
    facts = replayed([str(SHARED / file) for file in shared_logs()[name]])
    return {fact.replace(str(SHARED), "") for fact in facts}


@pytest.mark.real_logs
@pytest.mark.field_logs
@pytest.mark.parametrize("name", [*(f"logs/{one}" for one in LOGS), *(f"field-logs/{one}" for one in FIELD_LOGS)])
def test_a_log_is_judged_as_recorded(name: str) -> None:
    """What a replay tells, and what is known of the runs at the end; `make corpus` compares all logs, in four modes."""
    known = json.loads(SHARED_RECORD.read_text())
    recorded = (fact.rsplit("  [", 1) for fact in known.get(name) or known[f"together: {name}"])
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

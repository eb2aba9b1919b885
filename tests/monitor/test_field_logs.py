"""Logs that others wrote, replayed: what people are told of them, and what is known of the runs at the end."""

from pathlib import Path

import pytest

from megatron_monitor.archive import read_runs
from megatron_monitor.commands.arguments import Given
from megatron_monitor.config import default_config
from megatron_monitor.incidents import Transition
from megatron_monitor.reading import dated_events
from megatron_monitor.reports.rows import Options
from tests.conftest import FIELD_LOGS, REAL_LOGS
from tests.monitor.replayed import Ended, replayed


def judged(*paths: Path, after: float = 10.0) -> tuple[dict[str, Ended], list[Transition]]:
    """The runs of a job's files by name, watched for so many seconds after their end, and what people are told."""
    sources = {}
    for path in paths:
        with path.open("rb") as stream:
            sources[str(path)] = list(dated_events(stream, default_config()))
    return replayed(sources, after)


def one(*paths: Path, after: float = 180.0) -> tuple[Ended, list[Transition]]:
    """The same where there is one run."""
    runs, told = judged(*paths, after=after)
    (player,) = runs.values()
    return player, told


# --- how they end ---------------------------------------------------------------------------------------------------


def ends_of(told: list[Transition]) -> list[tuple[str, str, str]]:
    """(incident, severity, failure) of what fired at an end."""
    kinds = ("crash", "crash_without_exit", "crash_loop")
    return [
        (item.incident, item.severity, str(item.evidence.get("failure")))
        for item in told
        if item.incident in kinds and item.status == "firing"
    ]


@pytest.mark.real_logs
@pytest.mark.field_logs
@pytest.mark.parametrize(
    ("files", "severity", "failure", "message", "phase"),
    [
        ("microsoft_hang_first_allreduce.log", "critical", "python_exception", "FileNotFoundError", "crashed"),
        ("pbs_54745.log", "info", "stopped", "got signal: 15", "crashed"),
        ("pbs_61519.log", "critical", "python_exception", "AssertionError: OptimizerParamScheduler", "crashed"),
        ("primus_sigterm.log", "info", "stopped", "got signal: 15", "crashed"),
        ("rocm_2700.out", "warning", "python_exception", "FileNotFoundError", "finished"),
        ("neox_3982836.err neox_3982836.out", "critical", "host_oom", "oom-kill", "crashed"),
        ("microsoft_moe_random_ltd.log", "info", "stopped", "KeyboardInterrupt", "crashed"),
        ("bigcode_job_74m.log", "info", "stopped", "Slurm cancelled step 2610.0", "crashed"),
    ],
)
def test_how_logs_from_the_field_end(files: str, severity: str, failure: str, message: str, phase: str) -> None:
    """One end each, with its cause."""
    player, told = one(*(FIELD_LOGS / name for name in files.split()))
    assert ends_of(told) == [("crash", severity, failure)]
    (crash,) = [item for item in told if item.incident == "crash"]
    assert message in crash.evidence["message"]
    assert player.run.state.launch.phase == phase


@pytest.mark.real_logs
@pytest.mark.field_logs
def test_a_crash_loop_of_srun_steps() -> None:
    """Steps .1 to .4 die one after the other: four crashes of one run, a loop from the third on, no work lost."""
    player, told = one(FIELD_LOGS / "nvidia_crash_loop_2624217.out")
    crash, loop = ("crash", "critical", "python_exception"), ("crash_loop", "critical", "None")
    assert sorted(ends_of(told)) == [crash] * 4 + [loop]
    state = player.run.state
    assert (state.restarts, state.iterations_total, state.failures_total) == (3, 0, {"python_exception": 4})
    assert player.summary()["lost_iterations"] == 0


@pytest.mark.real_logs
@pytest.mark.field_logs
def test_attempts_of_a_script() -> None:
    """Torchtitan under a script that tries again: many attempts die, the first out of memory; the last is done."""
    player, told = one(FIELD_LOGS / "torchtitan_sft_447m.log")
    crashes = [item for item in ends_of(told) if item[0] == "crash"]
    assert crashes[:6] == [("crash", "critical", "cuda_oom")] * 6
    assert player.run.state.restarts > 20
    assert player.run.state.launch.phase == "finished"


@pytest.mark.real_logs
@pytest.mark.field_logs
def test_a_hang_at_exit() -> None:
    """MLPerf: finished by its own word, and still there when the step's time was over."""
    player, told = one(FIELD_LOGS / "mlperf_hang_at_exit.log")
    (hang,) = told
    assert (hang.incident, hang.severity, hang.evidence["phase"]) == ("hang", "critical", "exiting")
    assert player.run.state.launch.phase == "finished"


@pytest.mark.real_logs
def test_real_causes() -> None:
    """A rank without data before the watchdogs of 28 others; a killed rank under DeepSpeed."""
    _, told = one(*(REAL_LOGS / "nvidia" / f"2340723.{end}" for end in ("out", "err")))
    assert ends_of(told) == [("crash", "critical", "python_exception")]
    _, told = one(REAL_LOGS / "cpu" / "mds_kill9.log")
    assert ends_of(told) == [("crash", "critical", "killed")]


# --- what is no alarm -----------------------------------------------------------------------------------------------


@pytest.mark.real_logs
@pytest.mark.field_logs
@pytest.mark.parametrize(
    ("name", "iterations"),
    [
        ("all_ranks_interval_100.log", 1000),  # 97 s an iteration, a line each 9,750 s
        ("microsoft_moe_random_ltd.log", 2130),  # 52 min of index building
        ("microsoft_polaris_10143687.output", 2),  # 2,234 s, then 895 s
        ("lumi_175b_32_nodes.out", 8),  # 181 s an iteration, the first 248 s
        ("neox_3982836.out", 4500),
        ("hf_swift_39.log", 2353),
    ],
)
def test_field_logs_without_a_hang_or_a_storm(name: str, iterations: int) -> None:
    """Healthy, however slow to begin."""
    player, told = one(FIELD_LOGS / name, after=10.0)
    assert player.run.state.iterations_total == iterations
    assert {item.incident for item in told} & {"hang", "overflow_storm", "divergence"} == set()


@pytest.mark.real_logs
@pytest.mark.field_logs
def test_neox_has_five_overflows_and_its_spikes() -> None:
    """fp16: five skipped steps in 4,500, the loss spikes at 1760, 2240, 2320 and 2420; two messages an hour at most but
    for what grows worse.
    """
    player, told = one(FIELD_LOGS / "neox_3982836.out", after=10.0)
    assert player.run.state.overflows_total == 5
    assert player.run.state.skipped_iterations_total == 5
    spikes = {item.onset_iteration for item in told if item.incident == "loss_spike"}
    assert spikes >= {1760, 2240, 2320, 2420}
    assert {item.incident for item in told} == {"loss_spike", "loss_scale_collapse"}


@pytest.mark.real_logs
@pytest.mark.parametrize("name", ["deepspeed/opt-1.3b-globalBatchSize128.log", "hf/packing_stdout.log"])
def test_real_logs_without_any_alarm(name: str) -> None:
    """DeepSpeed's scaler tries a higher scale every hundred steps: two skipped steps each time, as its counter says."""
    player, told = one(REAL_LOGS / name, after=10.0)
    assert told == []
    if name.startswith("deepspeed"):
        assert player.run.state.skipped_iterations_total == player.run.state.overflows_total > 100


# --- which experiment a line belongs to -----------------------------------------------------------------------------


@pytest.mark.real_logs
@pytest.mark.field_logs
def test_several_experiments() -> None:
    """Two experiments of 20 iterations at other clocks, and one that dies in NCCL before its first iteration."""
    runs, told = judged(FIELD_LOGS / "microsoft_several_experiments.log")
    summaries = [player.summary() for player in runs.values()]
    assert [(one["state"], one["iterations"], one["lost_iterations"], one["restarts"]) for one in summaries] == [
        ("finished", 20, 0, 0), ("finished", 20, 0, 0), ("crashed", 0, 0, 0),
    ]  # fmt: skip
    assert list(runs)[2] == "run:dual32_tp4pp1dp8_static1200_20260324_131546_DGX2-1"
    assert [(item.run, item.incident, item.status) for item in told] == [(list(runs)[2], "crash", "firing")]
    assert "lost" not in told[0].summary


@pytest.mark.real_logs
@pytest.mark.field_logs
def test_locked_clocks() -> None:
    """Four launches of 50 iterations at 967, 975, 982 and 1050 MHz: the medians that their authors report."""
    runs, told = judged(FIELD_LOGS / "microsoft_locked_clocks.log")
    medians = [player.summary()["median_seconds_per_iteration"] for player in runs.values()]
    assert medians == pytest.approx([18.20, 18.06, 17.92, 16.80], abs=0.005)
    assert {player.summary()["state"] for player in runs.values()} == {"finished"}
    assert {player.run.state.iterations_total for player in runs.values()} == {50}
    assert told == []


@pytest.mark.real_logs
@pytest.mark.field_logs
def test_two_files_of_one_job() -> None:
    """GPT-NeoX: one run of 4,500 iterations, ended by the cgroup's out-of-memory handler; replayed and as a backlog."""
    runs, told = judged(FIELD_LOGS / "neox_3982836.out", FIELD_LOGS / "neox_3982836.err")
    (player,) = runs.values()
    assert (player.run.state.iterations_total, player.run.state.restarts) == (4500, 0)
    crash = [item for item in told if item.incident == "crash"]
    assert [item.evidence["failure"] for item in crash] == ["host_oom"]
    files = [str(FIELD_LOGS / f"neox_3982836.{end}") for end in ("err", "out")]
    ((state, _),) = read_runs(Given().configured(files), Options())[1]
    assert (state.name, state.launch.phase, state.iterations_total, state.restarts) == (
        "neox_3982836",
        "crashed",
        4500,
        0,
    )
    assert state.launch.failure is not None
    assert state.launch.failure.failure == "host_oom"

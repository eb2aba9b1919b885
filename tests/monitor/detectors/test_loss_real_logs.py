"""Real logs under the loss detectors: silent on healthy ones, and the quoted lines of two real spikes found at once."""

from pathlib import Path

import pytest

from tests.monitor.detectors.training_log import TrainingLog, calm_bloom, fp16

LOGS = Path(__file__).parents[4] / "shared" / "logs"
MINE = {"loss_spike", "divergence", "nan_loss", "loss_scale_collapse", "overflow_storm"}
HEALTHY = (
    "bigscience/meg_gpt2_base_n4_dp1_tp4_pp4-1809579.out",
    "bigscience/meg_gpt2_base_n8_dp1_tp4_pp8-1809562.out",
    "bigscience/meg_ds_3d_gpt2_perf_n16-ds-on.out",
    "bigscience/meg_ds_zero_gpt2_perf_n16_nbs48_ms48.out",
    "bigscience/hf_ds_gpt2_perf_n16_bs4-mbs8.out",
    "cpu/mds_clean.log",
    "cpu/mds_kill9.log",
    "deepspeed/opt-1.3b-globalBatchSize128.log",
    "hf/packing_stdout.log",
    "microsoft/qwen7b_static_1305_500.log",
    "microsoft/tp2pp1dp8_baseline50.log",
    "neox/70M_512step.out",
    "nvidia/2256081.out",
    "nvidia/2340723.out",
    "nvidia/2340723.err",
)
pytestmark = pytest.mark.real_logs


def test_every_log_is_listed() -> None:
    """A log that is added is judged too."""
    assert {str(path.relative_to(LOGS)) for path in LOGS.glob("*/*") if path.suffix in (".out", ".err", ".log")} == set(
        HEALTHY
    )


@pytest.mark.parametrize("path", HEALTHY)
def test_no_false_alarm(path: str) -> None:
    """Fed as live, line by line judged: none of these trainings had trouble with its loss or its scale."""
    log = TrainingLog()
    log.feed((LOGS / path).read_text("utf-8", errors="replace"))
    log.said += log.judge.judge(log.run, log.at)
    assert [(item.incident, item.iteration, item.summary) for item in log.said if item.incident in MINE] == []


def quoted(source: str, first: int, last: int) -> list[str]:
    """Iteration lines that a chronicle quotes."""
    out = []
    for row in (LOGS / "bigscience" / "chronicle-quotes.tsv").read_text("utf-8").splitlines():
        where, _, text = row.partition("\t")
        if where.startswith(source) and "iteration" in text and "elapsed" in text:
            number = int(text.split("iteration", 1)[1].split("/", 1)[0])
            if first <= number <= last:
                out.append(text + "\n")
    return out


def test_the_quoted_lines_of_bloom() -> None:
    """2022-04-12, after a made-up past: the chronicle's own lines."""
    log = TrainingLog()
    calm_bloom(log, range(31001, 31214))
    lines = quoted("train/tr11-176B-ml/chronicles.md", 31214, 31251)
    assert len(lines) == 11
    log.lines(line for line in lines)
    calm_bloom(log, range(31252, 31260))
    iteration, severity = log.first("loss_spike")
    assert (iteration or 0) in (31215, 31216)
    assert severity == "info"
    assert [item.severity for item in log.fired("loss_spike")] == ["info"]
    assert (log.resolved("loss_spike")[0].iteration or 0) <= 31252


def test_the_quoted_lines_of_the_13b() -> None:
    """A line in ten, the grad norm not computed."""
    log = TrainingLog()
    log.lines(fp16(iteration, log.around(2.775, 0.003), 32768.0) for iteration in range(28000, 29020, 10))
    log.lines(line for line in quoted("train/tr1-13B-base/chronicles.md", 29020, 29090))
    assert log.first("loss_spike") == (29050, "info")
    assert log.first("loss_scale_collapse") == (29050, "warning")
    assert log.incidents == {"loss_spike", "loss_scale_collapse"}

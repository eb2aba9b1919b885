"""Two real spikes under the loss detectors: found at once."""

import pytest

from tests.conftest import REAL_LOGS
from tests.monitor.detectors.training_log import TrainingLog, calm_bloom, fp16

pytestmark = pytest.mark.real_logs


def quoted(source: str, first: int, last: int) -> list[str]:
    """Iteration lines that a chronicle quotes."""
    out = []
    for row in (REAL_LOGS / "bigscience" / "chronicle-quotes.tsv").read_text("utf-8").splitlines():
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
    assert [item.severity for item in log.firings("loss_spike")] == ["info"]
    assert (log.resolved("loss_spike")[0].iteration or 0) <= 31252


def test_the_quoted_lines_of_the_13b() -> None:
    """A line in ten, the grad norm not computed."""
    log = TrainingLog()
    log.lines(fp16(iteration, log.around(2.775, 0.003), 32768.0) for iteration in range(28000, 29020, 10))
    log.lines(line for line in quoted("train/tr1-13B-base/chronicles.md", 29020, 29090))
    assert log.first("loss_spike") == (29050, "info")
    assert log.first("loss_scale_collapse") == (29050, "warning")
    assert log.incidents == {"loss_spike", "loss_scale_collapse"}

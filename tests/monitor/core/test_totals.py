"""Numbers as large as a line may hold, over and over: every sum stays one that the state can hold."""

from megatron_monitor.run.records import MOST
from tests.lines import line
from tests.monitor.core.following import Following

HUGE = 10**18 - 1
OTHERS = (
    f"[2026-01-01 00:00:00,000] [INFO] [logging.py:96:log_dist] [Rank 0] step={HUGE}, skipped={HUGE}, lr=[0.1]\n",
    f"  log_interval ......................... {HUGE}\n",
    line(HUGE),
)


def test_no_sum_exceeds_what_is_saved() -> None:
    """Twelve times over, which is beyond 64 bits for each."""
    logs = Following("runs=[{paths: ['/logs/*.log']}]")
    for number in range(1, 13):
        counted = line(number).replace("skipped iterations:   0", f"skipped iterations: {HUGE}")
        rank = f" > number of parameters on (tensor, pipeline) model parallel rank ({number}, 0): {HUGE}\n"
        for text in (
            counted.replace("nan iterations:   0", f"nan iterations: {HUGE}"),
            rank,
            *OTHERS[: 2 + number // 11],
        ):
            logs.write("/logs/a.log", text)
            logs.wait(1)
    saved = logs.saved()
    assert list(saved.runs) == ["a"]
    assert "megatron_monitor_quarantined_total" not in logs.core.counted().values
    totals = saved.runs["a"].state
    assert totals.skipped_iterations_total == totals.nan_iterations_total == MOST

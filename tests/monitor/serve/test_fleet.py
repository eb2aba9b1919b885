"""Which runs the table shows, and in which order."""

from typing import Any

import pytest

from megatron_monitor.serve.fleet import Choice
from megatron_monitor.snapshot import RunSnapshot

NOW = 1_700_000_000.0


def run(name: str, state: str = "training", *severities: str, **more: Any) -> RunSnapshot:
    """A run with incidents of these severities."""
    incidents = [{"severity": severity} for severity in severities]
    return RunSnapshot(name, {}, {"run": name, "state": state, "incidents": incidents, **more})


RUNS = [
    run(
        "gpt-a", topology={"tp": 8}, arguments={"lr": 0.0001, "use-flash-attn": True}, iteration=5, progress_at=NOW - 9
    ),
    run(
        "gpt-b",
        "hung",
        "warning",
        topology={"tp": 4},
        environment={"NCCL_DEBUG": "INFO"},
        iteration=70,
        progress_at=NOW - 60,
    ),
    run("llama", "finished", iteration=None, slowdown_ratio=1.5),
]


def shown(query: str) -> list[str]:
    """The names of the runs that this query shows."""
    return [one.run for one in Choice.of(query).rows_of(RUNS, NOW)[0]]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", "gpt-b gpt-a llama"),
        ("q=GPT", "gpt-b gpt-a"),
        ("q=tp%3D8", "gpt-a"),
        ("q=tp%3D8.0+gpt", "gpt-a"),
        ("q=tp%3D9", ""),
        ("q=tp%3D", "gpt-b gpt-a"),
        ("q=LR%3D1e-4", "gpt-a"),
        ("q=--use_flash_attn%3Dtrue", "gpt-a"),
        ("q=nccl_debug%3Dinfo", "gpt-b"),
        ("state=hung&state=finished", "gpt-b llama"),
        ("state=nonsense", ""),
        ("sort=-iteration", "gpt-b gpt-a llama"),
        ("sort=iteration", "gpt-a gpt-b llama"),  # an unknown value is last in both directions
        ("sort=-progress_at", "gpt-b gpt-a llama"),  # the longest silence is the largest
        ("sort=-over_normal", "llama gpt-b gpt-a"),
        ("sort=-incidents", "gpt-b gpt-a llama"),
        ("sort=run", "gpt-a gpt-b llama"),
        ("sort=nonsense&rows=x", "gpt-b gpt-a llama"),
        ("rows=1", "gpt-b"),
    ],
)
def test_the_query_chooses_the_rows(query: str, names: str) -> None:
    """Filters by name, setting and state; orders by any column."""
    assert shown(query) == names.split()


def test_an_address_holds_what_differs_from_the_default() -> None:
    """A heading leads to largest first, smallest first, the default order; the other choices stay."""
    choice = Choice.of("q=a+b&state=hung&rows=100")
    assert choice.address() == "?q=a+b&state=hung&rows=100"
    assert choice.address(q="", rows=50) == "?state=hung"
    assert [Choice.of(f"sort={sort}").next_sort("eta") for sort in ("", "-eta", "eta")] == [
        "?sort=-eta",
        "?sort=eta",
        "?",
    ]

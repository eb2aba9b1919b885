"""Panels of an iteration's parts by the log's own timers: on *run* and on *compare*."""

from __future__ import annotations

from grafana.source import queries as q
from grafana.source.layout import Line
from grafana.source.panels import Query, bars, chart, coloured, numbers, timeline

EMPTY = "No timers in the log: --timing-log-level 2, or wall_clock_breakdown"
COLOURS = {
    "compute": "green", "communication": "blue", "data": "orange", "optimizer": "purple", "checkpoint": "light-blue",
    "evaluation": "dark-purple", "rollout": "super-light-blue", "reward": "light-yellow", "logprobs": "light-purple",
    "sync": "dark-orange", "other": "yellow", "untimed": "#8e8e8e",
}  # fmt: skip
"""Category -> colour, the same on every panel."""
PARTS = {name: COLOURS[category] for name, category in (
    ("rollout", "rollout"), ("reward", "reward"), ("logprobs", "logprobs"), ("training", "compute"), ("sync", "sync"),
)}  # fmt: skip
"""Part of a step of reinforcement learning -> its colour: training is the compute of the other panels."""


def of_run(select: str) -> list[Line]:
    """Where an iteration of one run goes."""
    parts = q.value("megatron_iteration_part_seconds", select, "category")
    spread = q.value("megatron_iteration_part_spread_seconds", select, "category")
    longest = q.value("megatron_timer_seconds", select + ', bound="max"', "timer")
    part = " or ".join(
        f"{code} * ({q.value('megatron_run_part', select, part=name)} == 1)" for code, name in enumerate(PARTS, 1)
    )
    return [
        Line(4, [
            (24, timeline("Part of a step", "Reinforcement learning: which part of a step goes on, where the log tells. A "
                          "part that does not end is where it hangs; the Parts below have their seconds.",
                          Query(part, "part"),
                          mappings=numbers({float(code): item for code, item in enumerate(PARTS.items(), 1)}),
                          empty="No parts: no reinforcement learning, or its log tells none")),
        ]),
        Line(8, [
            (14, coloured(chart("Parts of an iteration", "Seconds of the last iteration on the rank that the others wait "
                                "for, by the log's timers. The part that grows is why it is slower; grey is in no timer: "
                                "garbage collection, logging, the host.", "s", Query(parts, "{{category}}"), stacked=True,
                                empty=EMPTY).min(0).decimals(2), **COLOURS)),
            (10, coloured(chart("Spread between ranks", "The most less the least of each part over the ranks. Compute that "
                                "spreads further than it did is a rank that is getting slow; the waiting of the others is "
                                "the spread of communication.", "s", Query(spread, "{{category}}"),
                                empty="The log prints no times over the ranks").min(0).decimals(3), **COLOURS)),
        ]),
        Line(9, [
            (24, bars("Timers, the longest over the ranks", "Each timer of the last iteration, up to 30. Timers hold one "
                      "another: forward-backward has the compute in it. Compare with a healthy hour.", "s",
                      Query(f"sort_desc({longest})", "{{timer}}"), empty=EMPTY).decimals(3)),
        ]),
    ]  # fmt: skip


def of_runs(select: str) -> Line:
    """The same of several runs beside one another: medians over the shown range."""
    middle = f"max by (run, category) (quantile_over_time(0.5, megatron_iteration_part_seconds{{{select}}}[$__range]))"
    share = f"{middle} / on (run) group_left () sum by (run) ({middle})"
    return Line(10, [
        (12, bars("Parts of an iteration, median", "Seconds, each run's parts by the log's timers. What differs between a "
                  "fast and a slow run of one model is where to look. At most 40.", "s",
                  Query(f"sort_desc(topk(40, {middle}))", "{{run}}: {{category}}"), empty=EMPTY).decimals(3)),
        (12, bars("Parts of an iteration, share", "The same as shares, also between models: more communication or data "
                  "than others have is a layout or a file system to improve. At most 40.", "percentunit",
                  Query(f"sort_desc(topk(40, {share}))", "{{run}}: {{category}}"),
                  empty=EMPTY).decimals(1).max(1.0)),
    ])  # fmt: skip

"""Rules of the budget: how much of the GPUs' time trains, over 6 hours and 3 days, and what took the rest."""

from __future__ import annotations

from collections.abc import Iterator

from deploy.source.rule import Group, Rule
from deploy.source.settings import Settings
from deploy.source.texts import asked

HEAD = """\
Goodput as an objective. Written by `python -m deploy.source`: the objective (--goodput) and the number of runs that should
be under way (--runs) are settings. Tests: `promtool test rules tests/goodput.yml`."""

_SIZE = "max by (cluster, run) (megatron_world_size)"
_ALIVE = "starting|training|evaluating|saving|hung"
GPUS = "cluster_state:megatron_gpus:sum"
PAID = "cluster:megatron_gpus_paid:sum"
TRAINING = "cluster:megatron_gpus_training:sum"
LOST = "cluster_cause:megatron_gpus_lost:sum"
RATIO_6H = "cluster:megatron_goodput:ratio6h"
RATIO_3D = "cluster:megatron_goodput:ratio3d"
_REDONE = "megatron_lost_seconds_total"
_FAST = 5
"""Times as fast as the objective allows: at this rate six hours take the losses of thirty."""


def _recorded() -> Iterator[Rule]:
    yield Rule(
        GPUS,
        f"""\
        sum by (cluster, state) (
          max by (cluster, run, state) (megatron_run_state == 1) * on (cluster, run) group_left () {_SIZE}
        )
        """,
        comment="GPUs by what their run does. A crashed run counts while the monitor shows it: for an hour.",
    )
    yield Rule(PAID, f'sum by (cluster) ({GPUS}{{state!~"finished|lost"}})', comment="GPUs that should train.")
    yield Rule(
        LOST,
        f"""\
        label_replace({GPUS}{{state=~"hung|crashed|starting|evaluating|saving"}}, "cause", "$1", "state", "(.+)")
        or
        label_replace(
          sum by (cluster, cause) (
            (
              max by (cluster, run, cause) (rate({_REDONE}[10m])) > 0
              or
              max by (cluster, run, cause) (
                {_REDONE} unless on (cluster, run, cause) last_over_time({_REDONE}[1d] offset 10m)
              ) / 600
            )
            * on (cluster, run) group_left () {_SIZE}
          ),
          "cause", "redone after $1", "cause", "(.+)"
        )
        """,
        comment="""\
GPUs that do not train, by cause: what their run does instead, and the work that a restart computes again. A counter that
appears was 0 before: its first value is a loss of these ten minutes.""",
    )
    yield Rule(
        TRAINING,
        f"""\
        clamp_min(
          sum by (cluster) (max by (cluster, run) (rate(megatron_gpu_seconds_total[10m])))
          - (sum by (cluster) ({LOST}{{cause=~"redone after .+"}}) or 0 * sum by (cluster) ({PAID})),
          0
        )
        """,
        comment="GPUs that compute iterations for the first time, on average of ten minutes.",
    )
    for record, window in ((RATIO_6H, "6h"), (RATIO_3D, "3d")):
        yield Rule(
            record,
            f"clamp_max(sum_over_time({TRAINING}[{window}]) / (sum_over_time({PAID}[{window}]) > 0), 1)",
            comment="Effective training time over paid time." if window == "6h" else "",
        )


def _causes(window: str) -> str:
    """The three causes that took most, in GPU-hours."""
    query = f"topk(3, sum by (cause) (sum_over_time({LOST}{{cluster=%q}}[{window}])) / 60)"  # one sample a minute
    return (
        "{{ with printf `" + query + "` $labels.cluster | query }}{{ range $number, $lost := . }}"
        "{{ if $number }}, {{ end }}{{ $lost.Labels.cause }} {{ $lost.Value | printf `%.0f` }} GPU-hours{{ end }}{{ end }}"
    )


def _notes(settings: Settings, summary: str, description: str, section: str) -> dict[str, str]:
    return {
        "summary": summary,
        "description": description,
        "runbook_url": f"{settings.runbook}#{section}",
        "dashboard_url": settings.grafana + "/d/megatron-fleet?var-cluster={{ $labels.cluster | urlquery }}",
    }


def _alerts(settings: Settings) -> Iterator[Rule]:
    allowed = round(1 - settings.goodput, 6)
    where = "{{ with $labels.cluster }}{{ . }}: {{ end }}"
    hour = asked(f"{RATIO_6H}{{cluster=%q}}", "$labels.cluster", "{{ . | first | value | humanizePercentage }}")
    yield Rule(
        "MegatronGoodputBurnsFast",
        f"""\
        (1 - {RATIO_6H}) > {_FAST * allowed:g}
        and on (cluster) (
          1 - sum_over_time({TRAINING}[30m]) / (sum_over_time({PAID}[30m]) > 0) > {_FAST * allowed:g}
        )
        and on (cluster) ({PAID} offset 3h)
        """,
        comment=f"""\
The objective allows to lose {allowed:.0%}; here it is {_FAST} times as much, of six hours and still now. Nobody is woken:
what stopped a run has paged already.""",
        wait="15m",
        labels={"severity": "warning"},
        annotations=_notes(
            settings,
            f"{where}{{{{ $value | humanizePercentage }}}} of the GPUs' time of 6 hours was lost",
            f"Goodput {hour}, objective {settings.goodput:.0%}. Lost most to: {_causes('6h')}.",
            "goodput",
        ),
    )
    yield Rule(
        "MegatronGoodputBelowObjective",
        f"{RATIO_3D} < {settings.goodput:g} and on (cluster) ({PAID} offset 1d)",
        wait="1h",
        labels={"severity": "warning"},
        annotations=_notes(
            settings,
            f"{where}goodput of 3 days is {{{{ $value | humanizePercentage }}}}, objective {settings.goodput:.0%}",
            f"Lost most to: {_causes('3d')}.",
            "goodput",
        ),
    )
    if settings.runs:
        yield Rule(
            "MegatronFewerRuns",
            f"""\
            (
              sum by (cluster) (max by (cluster, run) (megatron_run_state{{state=~"{_ALIVE}"}}))
              or
              0 * sum by (cluster) (megatron_monitor_runs)
            ) < {settings.runs}
            """,
            wait="30m",
            labels={"severity": "warning"},
            annotations=_notes(
                settings,
                f"{where}{{{{ $value }}}} runs are under way, {settings.runs} should be",
                "Runs that have ended were not started again, or their logs are not followed.",
                "goodput",
            ),
        )


def groups(settings: Settings) -> list[Group]:
    """Of goodput.yml."""
    rules = [*_recorded(), *_alerts(settings)]
    return [Group("megatron-goodput", rules, interval="1m")]

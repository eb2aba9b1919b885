"""The rules about runs: what is remembered while nobody can tell, the relay, deadlines, and what has ended."""

from __future__ import annotations

from deploy.source.incidents import relayed, run_notes
from deploy.source.rule import Group, Rule
from deploy.source.selection import SCOPE
from deploy.source.settings import Settings
from deploy.source.texts import BOARD, STATE_NOW, asked, clock, value

HEAD = """\
Alerts about runs. Written by `python -m deploy.source`, which takes the addresses of Grafana and of the runbook, and what
your scrapes call the daemons. In the PromQL of Prometheus 2.42. Tests: `promtool test rules tests/*.yml`."""

_TARGET = "instance, job, pod, container, endpoint, service, node, kubernetes_node"
"""Labels that a scrape adds and that say which daemon, not which run."""

_DAEMON_OF = f"ignoring (run, {SCOPE})"
"""Between what a daemon says of a run and of itself. Several that write textfiles on one node have its job and instance in
common and a label of their own, which no rule can know: all that they have in common must be equal."""

LOOKED = "megatron:rules_looked_timestamp_seconds"
PAUSED = "megatron:rules_paused_timestamp_seconds"
RESUMED = "megatron:rules_resumed_timestamp_seconds"
SEEN = "run:megatron_last_seen_timestamp_seconds:held"
INCIDENT = "run:megatron_incident:held"
DEADLINE = "run:megatron_hang_deadline_timestamp_seconds:held"
UNWATCHED = "run:megatron_unwatched_since_timestamp_seconds"
_SHOWN = "megatron_run_info"
_STATE = 'megatron_run_state{state="finished"}'
_SHOWN_NOW = f"max without (state, {_TARGET}) ({_STATE})"
"""Every run that a daemon shows has this series: here its label sets without the daemon's, value 0 or 1."""


def _remembered(record: str) -> str:
    return record.replace(":held", ":remembered")


def _kept(record: str) -> str:
    """What was recorded last, within the five minutes that Prometheus looks back or, after a longer pause, in memory."""
    past = f"last_over_time({_remembered(record)}[1d])"
    return f"({record} or ({past} and on () (time() - {RESUMED} < 600)))"


def memory() -> Group:
    """Every other minute, to be read back over a day."""
    return Group(
        "megatron-memory",
        [
            Rule(_remembered(SEEN), SEEN),
            Rule(_remembered(INCIDENT), INCIDENT),
            Rule(
                _remembered(DEADLINE),
                f"{DEADLINE} or on (cluster, run) ({_SHOWN_NOW} + Inf)",
                comment="""\
+Inf: a daemon shows the run and expects nothing of it. That there is no deadline is remembered too, so that an older one
does not come back.""",
            ),
        ],
        comment="""\
What is held above, once more in two minutes: where Prometheus was away for longer than the five minutes that it looks back,
it is known from here. Of its own, for a day of this is 720 samples a series, and of the group above 5,760.""",
        interval="2m",
    )


def recorded() -> list[Rule]:
    """What outlives a daemon, a Prometheus, and both."""
    return [
        Rule(
            PAUSED,
            f"{PAUSED} or on () last_over_time({LOOKED}[1d]) or on () vector(time())",
            comment="""\
When these rules were last evaluated before the last pause of five minutes or more, and since when they are again.""",
        ),
        Rule(RESUMED, f"{RESUMED} or on () vector(time())"),
        Rule(LOOKED, "vector(time())"),
        Rule(
            SEEN,
            f"""\
            max without (state) (timestamp({_STATE}))
            or
            (
              {_kept(SEEN)} > time() - 86400
              unless on (cluster, run) {_SHOWN}
              unless {_DAEMON_OF} (megatron_monitor_ready == 1)
              unless (
                {_kept(SEEN)} - {_DAEMON_OF} group_left ()
                max without (runs) (last_over_time(megatron_monitor_stopped_timestamp_seconds{{runs="over"}}[1d]))
                < 60
              )
            )
            """,
            comment="""\
When a daemon last showed the run, by daemon. It is kept for a day after the daemon has vanished, until a daemon shows the
run again, or the same daemon has read all its files and does not: then the run was taken from its configuration, or is
over for so long that it was dropped. Not kept where the daemon said at its stop that its runs were over with it.""",
        ),
        Rule(
            INCIDENT,
            f"""\
            max without ({_TARGET}) (megatron_incident)
            or
            ({_kept(INCIDENT)} and on (cluster, run) ({SEEN} unless on (cluster, run) {_SHOWN}))
            """,
            comment="""\
The incidents that the daemons export, and while none shows the run the last ones: nothing is resolved because nobody looks.""",
        ),
        Rule(
            DEADLINE,
            f"""\
            max without ({_TARGET}) (megatron_hang_deadline_timestamp_seconds)
            or
            ({_kept(DEADLINE)} < Inf and on (cluster, run) ({SEEN} unless on (cluster, run) {_SHOWN}))
            """,
            comment="""\
The deadline of each run. It outlives the daemon; it is dropped when a daemon shows the run without one (finished, crashed,
archived), not when the daemon is silent.""",
        ),
        Rule(
            UNWATCHED,
            f"""\
            ({SEEN} unless on (cluster, run) {_SHOWN})
            and on (cluster, run) {DEADLINE}
            """,
            comment="Since when nobody watches a run that was alive when it was last seen.",
        ),
        Rule(
            "cluster:megatron_runs:count",
            "sum by (cluster, state) (max by (cluster, run, state) (megatron_run_state))",
            comment="""\
Runs by state, and tokens per second of those that move: a hung run's last figure is no throughput.""",
        ),
        Rule(
            "cluster:megatron_tokens_per_second:sum",
            """\
            sum by (cluster) (
              max by (cluster, run) (megatron_tokens_per_second)
              and on (cluster, run) (megatron_run_state{state=~"training|evaluating|saving"} == 1)
            )
            """,
        ),
    ]


_TOLD_ALREADY = f'({INCIDENT}{{incident=~"hang|crash|crash_without_exit", severity="critical"}} == 1)'
_TOLD = 'ALERTS{alertname="MegatronHangDeadlinePassedWhileDown", alertstate="firing"}'
_RUN_QUERY = "{cluster=%q,run=%q}"
_OF_RUN = "$labels.cluster $labels.run"
_DEADLINE_AT = clock(" since ", f"max({DEADLINE}{_RUN_QUERY})", _OF_RUN)
_SEEN_AT = clock(" since ", f"max({SEEN}{_RUN_QUERY})", _OF_RUN)
_LAST_STATE = asked(
    f"max by (state) (last_over_time(megatron_run_state{_RUN_QUERY}[1d]) == 1)", _OF_RUN,
    '{{ . | first | label "state" }}', "unknown",
)  # fmt: skip
_LAST_ITERATION = asked(
    f"max(last_over_time(megatron_iteration{_RUN_QUERY}[1d]))", _OF_RUN, value('printf "%.0f"'), "unknown"
)
_DAEMON = "{cluster=%q,job=%q,instance=%q}"
_OF_DAEMON = "$labels.cluster $labels.job $labels.instance"
_STOPPED = asked(
    f"(time() - max(last_over_time(megatron_monitor_stopped_timestamp_seconds{_DAEMON}[1d])) "
    f"< time() - max({UNWATCHED}{_DAEMON}) + 60)",
    f"{_OF_DAEMON} {_OF_DAEMON}",
    "Their monitor was stopped in order.",
    "Their monitor is dead, or cannot be reached.",
)
_NAMES = (
    "{{ with printf `topk(5, max by (run) ("
    + UNWATCHED
    + _DAEMON
    + "))` "
    + _OF_DAEMON
    + " | query | sortByLabel `run` }}"
    "{{ range $number, $run := . }}{{ if $number }}, {{ end }}{{ $run.Labels.run }}{{ end }}{{ end }}"
)


def watched(settings: Settings) -> list[Rule]:
    """What the daemon cannot report."""
    return [
        Rule(
            "MegatronHangDeadlinePassed",
            f"""\
            (time() - {DEADLINE} > 30)
            and on (cluster, run) {_SHOWN}
            unless on (cluster, run) {_TOLD_ALREADY}
            """,
            comment="""\
Set by the daemon, judged by Prometheus's clock. Silent while the daemon itself reports the hang or the crash.""",
            wait="1m",
            labels={"severity": "critical"},
            annotations=run_notes(
                settings,
                f"{{{{ $labels.run }}}} is past its hang deadline{_DEADLINE_AT} and its monitor has not reported it",
                "The deadline passed {{ $value | humanizeDuration }} ago. The monitor that set it should have reported a "
                "hang and has not: its loop stands still, or its figures are old (textfile, Pushgateway). Treat it as a "
                f"hang. State {_LAST_STATE}, iteration {_LAST_ITERATION}.",
                "hang-deadline-passed",
            ),
        ),
        Rule(
            "MegatronHangDeadlinePassedWhileDown",
            f"""\
            time() - {DEADLINE} > 0
            and on (cluster, run) {UNWATCHED}
            unless on (cluster, run) {_TOLD_ALREADY}
            unless on (cluster, run) (
              max by (cluster, run) ({UNWATCHED})
              - max by (cluster, run) (
                {UNWATCHED} * 0 + {_DAEMON_OF} group_left ()
                max without (runs) (last_over_time(megatron_monitor_stopped_timestamp_seconds[1d]))
              )
              < 60
            )
            """,
            comment="""\
Nobody can tell: one page a cluster, whatever the number of runs (alertmanager.yml). Not of runs whose monitor was stopped
in order, which shows when that was in its last scrape: MegatronRunsUnwatched reports those. It waits for a daemon that is
started anew and reads a long backlog.""",
            wait="5m",
            labels={"severity": "critical"},
            annotations=run_notes(
                settings,
                f"{{{{ $labels.run }}}} is past its hang deadline and unwatched{_SEEN_AT}",
                "The deadline passed {{ $value | humanizeDuration }} ago, and no monitor has reported the run since "
                "before then: its monitor is down or cannot be reached. The run may hang, may have ended, or may be "
                f"well. Last known: {_LAST_STATE}, iteration {_LAST_ITERATION}.",
                "hang-deadline-passed-while-down",
            ),
        ),
        Rule(
            "MegatronRunsUnwatched",
            f"count by (cluster, job, instance) ({UNWATCHED})",
            comment="""\
One message a daemon that is gone, however it went. Thirty seconds before MegatronMonitorDown, which it silences.""",
            wait="90s",
            labels={"severity": "warning"},
            annotations={
                "summary": "{{ $value }} runs are unwatched"
                + clock(" since ", f"max({UNWATCHED}{_DAEMON})", _OF_DAEMON)
                + ": monitor {{ $labels.instance }} is gone",
                "description": f"{_STOPPED} What it last said is kept for a day; nothing new is known. Runs: {_NAMES}.",
                "runbook_url": f"{settings.runbook}#runs-unwatched",
                "dashboard_url": settings.grafana + "/d/megatron-fleet?var-cluster={{ $labels.cluster | urlquery }}",
            },
        ),
        Rule(
            "MegatronIncidentEnded",
            f"""\
            (
              max without ({_TARGET}) (megatron_incident_end_timestamp_seconds{{severity!="info"}}) > time() - 600
              or
              (
                max without ({_TARGET}) (megatron_incident_end_timestamp_seconds{{severity!="info"}})
                > on () group_left () ({PAUSED} - 60)
                and on () (time() - {RESUMED} < 600)
              )
            )
            and on (cluster, run, incident) last_over_time(megatron_incident_since_timestamp_seconds[1d])
            unless on (cluster, run, incident) ({INCIDENT} == 1)
            """,
            comment="""\
The end of an incident, by the daemon's word and for ten minutes. Alertmanager's own "resolved" also comes when Prometheus
has been away for four minutes, that is, when nobody has looked: alertmanager.yml does not send it. Of what ended in a pause
of Prometheus it is told after the pause.""",
            labels={"severity": "warning"},
            annotations=run_notes(
                settings,
                "{{ $labels.run }}: {{ $labels.incident }} ended"
                + clock(
                    " at ",
                    "max(megatron_incident_end_timestamp_seconds{cluster=%q,run=%q,incident=%q})",
                    f"{_OF_RUN} $labels.incident",
                )
                + asked(
                    "max(megatron_incident_duration_seconds{cluster=%q,run=%q,incident=%q})",
                    f"{_OF_RUN} $labels.incident",
                    " after {{ . | first | value | humanizeDuration }}",
                ),
                f"{STATE_NOW}Last iteration: {_LAST_ITERATION}.",
                "incident-ended",
            ),
        ),
        Rule(
            "MegatronRunWatchedAgain",
            f"""\
            max by (cluster, run) (last_over_time({_TOLD}[10m]))
            and on (cluster, run) {_SHOWN}
            unless on (cluster, run) {_TOLD}
            """,
            comment="The end of MegatronHangDeadlinePassedWhileDown: somebody looks. If it hangs, that is told by the monitor.",
            labels={"severity": "warning"},
            annotations=run_notes(
                settings,
                "{{ $labels.run }} is watched again",
                f"{STATE_NOW}Last iteration: {_LAST_ITERATION}.",
                "hang-deadline-passed-while-down",
            ),
        ),
    ]


def groups(settings: Settings) -> list[Group]:
    """Of runs.yml."""
    relay = list(relayed(settings))
    first = relay[0]
    relay[0] = Rule(
        first.name,
        first.expr,
        """\
--- what the daemon reports: one alert an incident kind, with the severity that the daemon gave it. No `for`: the
detectors have waited already. A late run (hang, warning) is shown on the dashboards and raises no alert.""",
        first.wait,
        first.labels,
        first.annotations,
    )
    return [Group("megatron-runs", [*recorded(), *relay, *watched(settings)]), memory()]


__all__ = ["BOARD", "HEAD", "groups"]

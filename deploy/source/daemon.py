"""The rules about the monitor itself: who watches the watcher."""

from __future__ import annotations

from deploy.source.rule import Group, Rule
from deploy.source.settings import Settings

HEAD = """\
Alerts about the monitor itself: who watches the watcher. Written by `python -m deploy.source`.
The job of a scrape is called megatron-monitor (Prometheus Operator: NAMESPACE/megatron-monitor); another name is a setting."""

_BOARD = "/d/megatron-monitor"
_INSTANCE = f"{_BOARD}?var-instance={{{{ $labels.instance | urlquery }}}}"


def groups(settings: Settings) -> list[Group]:
    """Of monitor.yml."""
    daemons = f'job=~"{settings.job}"'
    return [
        Group(
            "megatron-monitor",
            [
                Rule(
                    "MegatronWatchdog",
                    "vector(1)",
                    comment="""\
Always fires: a dead man's switch. Whoever receives it (alertmanager.yml, receiver watchdog) reports when it stops coming:
then Prometheus, Alertmanager or the way between them is dead, and no other alert would come either.""",
                    labels={"severity": "info"},
                    annotations=_notes(
                        settings,
                        "The alerts' way works",
                        "It fires for as long as Prometheus evaluates these rules and Alertmanager takes them.",
                        "watchdog",
                        _BOARD,
                    ),
                ),
                Rule(
                    "MegatronMonitorDown",
                    f"up{{{daemons}}} == 0",
                    wait="2m",
                    labels={"severity": "warning"},
                    annotations=_notes(
                        settings,
                        "Monitor {{ $labels.instance }} is down",
                        "Prometheus cannot scrape it. Hangs are still reported by the last deadlines that it exported; crashes, slowdowns and everything else are not.",
                        "monitor-down",
                        _INSTANCE,
                    ),
                ),
                Rule(
                    "MegatronMonitorAbsent",
                    "absent(megatron_monitor_build_info)",
                    comment="Remove it where a daemon lives and ends with its job: no job, no daemon.",
                    wait="15m",
                    labels={"severity": "warning"},
                    annotations=_notes(
                        settings,
                        "No megatron-monitor reports to this Prometheus",
                        "No target, textfile or push has shown a megatron-monitor for 15 minutes.",
                        "monitor-absent",
                        _BOARD,
                    ),
                ),
                Rule(
                    "MegatronMonitorStuck",
                    "time() - megatron_monitor_loop_timestamp_seconds > 60",
                    comment="With textfile and Pushgateway this is what being down looks like.",
                    wait="1m",
                    labels={"severity": "critical"},
                    annotations=_notes(
                        settings,
                        "Monitor {{ $labels.instance }} stands still",
                        "Its loop last turned {{ $value | humanizeDuration }} ago. What it shows is that old, and it judges nothing.",
                        "monitor-stuck",
                        _INSTANCE,
                    ),
                ),
                Rule(
                    "MegatronMonitorClockAhead",
                    "megatron_monitor_loop_timestamp_seconds - time() > 15",
                    wait="5m",
                    labels={"severity": "warning"},
                    annotations=_notes(
                        settings,
                        "The clock of monitor {{ $labels.instance }} is ahead",
                        "Its clock is {{ $value | humanizeDuration }} ahead of Prometheus's. Deadlines are compared across both clocks, so hangs are reported that much later.",
                        "monitor-clock-ahead",
                        _INSTANCE,
                    ),
                ),
                Rule(
                    "MegatronMonitorBlind",
                    """\
                megatron_monitor_sources{state="unreadable"} > 0
                unless ignoring (state) (
                  sum without (state) (megatron_monitor_sources{state!="unreadable"}) > 0
                )
                """,
                    wait="2m",
                    labels={"severity": "critical"},
                    annotations=_notes(
                        settings,
                        "Monitor {{ $labels.instance }} can read none of its logs",
                        "All {{ $value }} files that it follows are unreadable. Hangs and crashes of their runs are unknown, not absent.",
                        "monitor-blind",
                        _INSTANCE,
                    ),
                ),
                Rule(
                    "MegatronMonitorPartlyBlind",
                    """\
                megatron_monitor_sources{state="unreadable"} > 0
                and ignoring (state) (
                  sum without (state) (megatron_monitor_sources{state!="unreadable"}) > 0
                )
                """,
                    wait="10m",
                    labels={"severity": "warning"},
                    annotations=_notes(
                        settings,
                        "Monitor {{ $labels.instance }} cannot read some of its logs",
                        "{{ $value }} of the files that it follows cannot be read.",
                        "monitor-partly-blind",
                        _INSTANCE,
                    ),
                ),
                Rule(
                    "MegatronMonitorReadsNothing",
                    """\
                time() - megatron_monitor_last_read_timestamp_seconds > 900
                and (
                  sum without (run, state) (megatron_run_state{state=~"training|evaluating|saving"}) > 0
                )
                """,
                    wait="1m",
                    labels={"severity": "warning"},
                    annotations=_notes(
                        settings,
                        "Monitor {{ $labels.instance }} has read nothing for long",
                        "Nothing was read for {{ $value | humanizeDuration }} although runs are training. Either all of them are silent, or their file system does not answer.",
                        "monitor-reads-nothing",
                        _INSTANCE,
                    ),
                ),
                Rule(
                    "MegatronMonitorBehind",
                    "megatron_monitor_bytes_behind > 64 * 1024 * 1024",
                    wait="10m",
                    labels={"severity": "warning"},
                    annotations=_notes(
                        settings,
                        "Monitor {{ $labels.instance }} reads slower than the logs grow",
                        "{{ $value | humanize1024 }}B are written and not read. What it shows is out of date, and hangs may be reported late.",
                        "monitor-behind",
                        _INSTANCE,
                    ),
                ),
                Rule(
                    "MegatronMonitorRestarting",
                    f"changes(process_start_time_seconds{{{daemons}}}[30m]) > 3",
                    labels={"severity": "warning"},
                    annotations=_notes(
                        settings,
                        "Monitor {{ $labels.instance }} restarts again and again",
                        "{{ $value }} starts within 30 minutes.",
                        "monitor-restarting",
                        _INSTANCE,
                    ),
                ),
                Rule(
                    "MegatronMonitorNotificationsLost",
                    'increase(megatron_monitor_notifications_total{outcome=~"failed|dropped"}[15m]) > 0',
                    labels={"severity": "warning"},
                    annotations=_notes(
                        settings,
                        "Notifier {{ $labels.notifier }} of monitor {{ $labels.instance }} loses messages",
                        "About {{ $value | humanize }} messages were {{ $labels.outcome }} within 15 minutes. People who rely on this notifier did not get them.",
                        "monitor-notifications-lost",
                        _INSTANCE,
                    ),
                ),
                Rule(
                    "MegatronMonitorNotificationsOwed",
                    "min_over_time(megatron_monitor_notifications_owed[15m]) > 0",
                    labels={"severity": "warning"},
                    annotations=_notes(
                        settings,
                        "Notifier {{ $labels.notifier }} of monitor {{ $labels.instance }} is not accepted by its receiver",
                        "{{ $value }} messages or more have been owed for 15 minutes. They are sent when the receiver accepts them.",
                        "monitor-notifications-owed",
                        _INSTANCE,
                    ),
                ),
                Rule(
                    "MegatronMonitorOutputFailing",
                    'increase(megatron_monitor_output_writes_total{outcome="failed"}[15m]) > 2',
                    labels={"severity": "warning"},
                    annotations=_notes(
                        settings,
                        "Output {{ $labels.output }} of monitor {{ $labels.instance }} fails",
                        "About {{ $value | humanize }} writes failed within 15 minutes: what is read there is old.",
                        "monitor-output-failing",
                        _INSTANCE,
                    ),
                ),
                Rule(
                    "MegatronMonitorStateNotSaved",
                    """\
                increase(megatron_monitor_state_save_failures_total[15m]) > 0
                or
                (megatron_monitor_state_save_failures_total unless megatron_monitor_state_save_failures_total offset 15m)
                """,
                    comment="The counter appears with its first failure, which increase() alone would miss.",
                    labels={"severity": "warning"},
                    annotations=_notes(
                        settings,
                        "Monitor {{ $labels.instance }} cannot save its state",
                        "After a restart it would read the logs again and lose what it has learned since the last save.",
                        "monitor-state-not-saved",
                        _INSTANCE,
                    ),
                ),
                Rule(
                    "MegatronMonitorConfigRejected",
                    "megatron_monitor_config_last_reload_successful == 0",
                    wait="5m",
                    labels={"severity": "warning"},
                    annotations=_notes(
                        settings,
                        "Monitor {{ $labels.instance }} runs with an old configuration",
                        "The file was changed and the new one is refused; the one before is still in use.",
                        "monitor-config-rejected",
                        _INSTANCE,
                    ),
                ),
                Rule(
                    "MegatronMonitorPatternTimeouts",
                    """\
                increase(megatron_monitor_pattern_timeouts_total[15m]) > 0
                or
                (megatron_monitor_pattern_timeouts_total unless megatron_monitor_pattern_timeouts_total offset 15m)
                """,
                    labels={"severity": "warning"},
                    annotations=_notes(
                        settings,
                        "Pattern {{ $labels.pattern }} of monitor {{ $labels.instance }} takes too long",
                        "A pattern of the configuration was cut off on a line. Lines that it should have found may be missed.",
                        "monitor-pattern-timeouts",
                        _INSTANCE,
                    ),
                ),
                Rule(
                    "MegatronMonitorMalformedLines",
                    """\
                increase(megatron_monitor_malformed_lines_total[1h]) > 0
                or
                (megatron_monitor_malformed_lines_total unless megatron_monitor_malformed_lines_total offset 1h)
                """,
                    labels={"severity": "info"},
                    annotations=_notes(
                        settings,
                        "Monitor {{ $labels.instance }} meets lines that it half understands (rule {{ $labels.rule }})",
                        "Lines begin like a known one and do not parse: cut off by the writer, or a format that changed.",
                        "monitor-malformed-lines",
                        _INSTANCE,
                    ),
                ),
            ],
        )
    ]


def _notes(settings: Settings, summary: str, description: str, section: str, board: str) -> dict[str, str]:
    return {
        "summary": summary,
        "description": description,
        "runbook_url": f"{settings.runbook}#{section}",
        "dashboard_url": settings.grafana + board,
    }

"""*monitor*: the daemons themselves. What they do not see, nobody sees."""

from __future__ import annotations

from functools import partial
from typing import Any

from grafana_foundation_sdk.builders import dashboard as build

from grafana.source import panels
from grafana.source import queries as q
from grafana.source.layout import Line, Section, annotation, new, place, variable
from grafana.source.panels import Query, bars, chart, coloured, numbers, timeline
from grafana.source.tables import SEVERITY, Column, limit_look, mapped_look, rows

OWN = q.DAEMON
UP = {0.0: ("down", "red"), 1.0: ("up", "green")}
NO_DAEMON = "No daemon is scraped: add a scrape configuration"


def total(metric: str) -> str:
    """The sum over the chosen daemons."""
    return f"sum({metric}{{{OWN}}})"


def each(metric: str) -> str:
    """One series a daemon."""
    return f"max by (instance) ({metric}{{{OWN}}})"


figure = partial(panels.figure, empty="no daemon")


def _now() -> list[Line]:
    return [
        Line(3, [
            (6, figure("Up", "Daemons that Prometheus could scrape at its last try. Fewer than you run: see Down, and the table below.", "none",
                       f"count(up{{{OWN}}} == 1) or vector(0)", steps=((None, "red"), (1.0, "green")))),
            (6, figure("Down", "Scrape targets that do not answer. Their runs are watched by nobody: start "
                       "the daemon again; it goes on where it stopped.", "none",
                       f"count(up{{{OWN}}} == 0) or vector(0)", steps=((None, "green"), (1.0, "red")),
                       background=True)),
            (6, figure("Runs", "Runs that the daemons show. Fewer than you launched: look at Files by state.",
                       "none", total("megatron_monitor_runs"))),
            (6, figure("Unreadable", "Log files that a daemon may not or cannot read. Above 0 check mounts "
                       "and permissions; the error is in the chart of read errors.", "none",
                       f'sum(megatron_monitor_sources{{{OWN}, state="unreadable"}})',
                       steps=((None, "green"), (1.0, "dark-yellow")), background=True)),
        ]),
        Line(3, [
            (6, figure("Behind", "Written to the logs and not read yet. Megabytes that stay are a file system "
                       "or a daemon that cannot keep up.", "bytes", total("megatron_monitor_bytes_behind"),
                       steps=((None, "green"), (16e6, "dark-yellow"), (256e6, "orange")))),
            (6, figure("Loop ran", "Time since the slowest daemon last looked at its logs. Over 30 s it "
                       "is stuck: a hang would be reported late.", "s",
                       f"max(time() - megatron_monitor_loop_timestamp_seconds{{{OWN}}})",
                       steps=((None, "green"), (30.0, "dark-yellow"), (120.0, "red")))),
            (6, figure("Last read", "Time since any daemon last read anything. Long while runs train: the logs do "
                       "not reach this machine.", "s",
                       f"time() - max(megatron_monitor_last_read_timestamp_seconds{{{OWN}}})",
                       steps=((None, "green"), (900.0, "dark-yellow")))),
            (6, figure("Config", "Whether the configuration in use is the one in the file. If rejected, run "
                       "check-config on it.", "none", f"min(megatron_monitor_config_last_reload_successful{{{OWN}}})",
                       mappings=numbers({0.0: ("rejected", "orange"), 1.0: ("in use", "green")}))),
        ]),
        Line(6, [
            (12, timeline("Daemons over time", "Green while a daemon answers Prometheus. Red, or no band, is a time in "
                          "which its runs were not watched.", Query(each("up"), "{{instance}}"),
                          mappings=numbers(UP), empty="Nothing reported")),
            (12, _daemons()),
        ]),
    ]  # fmt: skip


def _daemons() -> Any:
    build_info = f"max by (instance, version) (megatron_monitor_build_info{{{OWN}}})"
    return rows(
        "Daemons",
        "Version and age of each daemon. Different versions side by side may judge differently: update the older.",
        [
            Query(each("up")),
            Query(build_info),
            Query(f"time() - {each('process_start_time_seconds')}"),
            Query(each("megatron_monitor_runs")),
        ],
        [
            Column("instance", "Daemon"),
            Column("A", "State", width=80, look=mapped_look(numbers(UP))),
            Column("version", "Version"),
            Column("C", "Runs since", "s"),
            Column("D", "Runs"),
        ],
        hidden=("Value #B",),
        empty=NO_DAEMON,
        sort="State",
        descending=False,
        pages=False,
    )


def _reading() -> list[Line]:
    return [
        Line(8, [
            (8, coloured(chart("Lines read", "Per second, by what became of them. Matched ones gave an event; too_long "
                       "ones were cut and not read. None at all while runs train is bad.", "short",
                       Query(q.rate("megatron_monitor_lines_total", OWN, "outcome"), "{{outcome}}"), stacked=True,
                       empty=NO_DAEMON).min(0), matched="green", other="#8e8e8e", too_long="orange")),
            (8, chart("Events, the 6 most frequent kinds", "Events read from the lines, per second. Iterations should be "
                      "there; a kind that floods is a log worth looking at.", "short",
                      Query(f"{q.rate('megatron_monitor_events_total', OWN, 'event')} and on (event) "
                            f"topk(6, sum by (event) (increase(megatron_monitor_events_total{{{OWN}}}[$__range] @ end())))",
                            "{{event}}"),
                      empty=NO_DAEMON).min(0)),
            (8, chart("Bytes read and behind", "Read per second, and what is left to read. Behind should return to "
                      "zero at once.", "bytes",
                      Query(q.rate("megatron_monitor_bytes_total", OWN), "read per second"),
                      Query(total("megatron_monitor_bytes_behind"), "behind"), empty=NO_DAEMON).min(0)),
        ]),
        Line(7, [
            (8, coloured(chart("Files by state", "Files that are followed. Reading is catching up, following is up to "
                       "date, unreadable is blind.", "none",
                       Query(f"sum by (state) (megatron_monitor_sources{{{OWN}}})", "{{state}}"), stacked=True,
                       empty=NO_DAEMON).min(0).decimals(0),
                       following="green", reading="blue", unreadable="dark-yellow")),
            (8, chart("Read errors", "Sources that could not be read, per second, by the system's error. ESTALE or EIO "
                      "is the mount, EACCES the permissions.", "short",
                      Query(f"{q.rate('megatron_monitor_io_errors_total', OWN, 'errno')} > 0", "{{errno}}"), bars=True,
                      colour="orange", empty="No read error").min(0)),
            (8, coloured(chart("Rotations and truncations", "Files found replaced or cut, per second. Nobody should cut a log of "
                      "a running training.", "short",
                      Query(f"{q.rate('megatron_monitor_rotations_total', OWN)} > 0", "rotated"),
                      Query(f"{q.rate('megatron_monitor_truncations_total', OWN)} > 0", "truncated"), bars=True,
                      empty="None in this range").min(0), rotated="blue", truncated="orange")),
        ]),
    ]  # fmt: skip


def _judging() -> list[Line]:
    return [
        Line(8, [(24, _alerts())]),
        Line(7, [
            (12, chart("Malformed lines", "Lines that begin like a known one and do not parse, by rule. A steady rate is "
                      "a program that changed its format: report it with the line.", "short",
                      Query(f"{q.rate('megatron_monitor_malformed_lines_total', OWN, 'rule')} > 0", "{{rule}}"),
                      bars=True, colour="orange", empty="Every known line parsed").min(0)),
            (12, chart("Notifications", "Per second, by notifier or output and outcome; owed: messages that the receiver "
                      "has not accepted yet. Failed and dropped messages are lost; an output that fails is out of date. "
                      "Slurm: refused are answers about another job than the run's.", "short",
                      Query(f"{q.rate('megatron_monitor_notifications_total', OWN, 'notifier', 'outcome')} > 0",
                            "{{notifier}}: {{outcome}}"),
                      Query(f"max by (notifier) (megatron_monitor_notifications_owed{{{OWN}}}) > 0", "{{notifier}}: owed"),
                      Query(f"{q.rate('megatron_monitor_output_writes_total', OWN, 'output', 'outcome')} > 0",
                            "{{output}}: {{outcome}}"),
                      Query(f"{q.rate('megatron_monitor_slurm_calls_total', OWN, 'outcome')} > 0", "slurm: {{outcome}}"),
                      Query(f"{q.rate('megatron_monitor_actions_total', OWN, 'policy', 'action', 'outcome')} > 0",
                            "{{policy}}, {{action}}: {{outcome}}"),
                      bars=True, empty="None sent, or no notifier is configured").min(0)),
        ]),
    ]  # fmt: skip


def _alerts() -> Any:
    firing = 'alertname=~"Megatron.*", alertname!="MegatronWatchdog", alertstate="firing"'
    by_severity = " or ".join(
        f'max by (alertname, run, instance) ({code} * ALERTS{{{firing}, severity="{name}"}})'
        for name, (code, _) in q.SEVERITIES.items()
    )
    return rows(
        "Alerts that fire",
        "Alerts of this project's rules that Prometheus holds firing, but for the watchdog, which always does. Empty is good, if "
        "the rules are loaded.",
        [Query(f'label_replace({by_severity}, "alertname", "$1", "alertname", "Megatron(.+)")')],
        [
            Column("A", "Severity", width=100, look=SEVERITY),
            Column("alertname", "Alert"),
            Column("run", "Run"),
            Column("instance", "Daemon"),
        ],
        empty="No alert fires, or the rules are not loaded",
        sort="Severity",
        pages=False,
    )


def _process() -> Section:
    return Section("Cost and process", [
        Line(7, [
            (6, chart("CPU", "Seconds of CPU a second, each daemon. One core busy all the time is too much: fewer "
                      "files, or a longer poll.", "none",
                      Query(f"max by (instance) (rate(process_cpu_seconds_total{{{OWN}}}[$__rate_interval]))",
                            "{{instance}}"), empty=NO_DAEMON).min(0).decimals(3)),
            (6, chart("Memory", "Resident memory of each daemon. It should be flat after the first hour.", "bytes",
                      Query(each("process_resident_memory_bytes"), "{{instance}}"), empty=NO_DAEMON).min(0)),
            (6, chart("Open files", "File descriptors over the limit. Near 100 % new logs cannot be opened: raise "
                      "LimitNOFILE.", "percentunit",
                      Query(f"{each('process_open_fds')} / {each('process_max_fds')}", "{{instance}}"),
                      empty=NO_DAEMON).min(0).max(1)),
            (6, chart("Turn of the loop", "Time that the last turn took, each daemon. Seconds mean that a hang is reported "
                      "late.", "s", Query(each("megatron_monitor_loop_duration_seconds"), "{{instance}}"),
                      empty=NO_DAEMON).min(0)),
        ]),
        Line(7, [
            (6, chart("Calls of stat", "Per second on log files: the load that polling puts on a shared file system. "
                      "Hundreds are much for a parallel file system.", "short",
                      Query(f"sum by (instance) (rate(megatron_monitor_stat_calls_total{{{OWN}}}[$__rate_interval]))",
                            "{{instance}}"), empty=NO_DAEMON).min(0)),
            (6, chart("Duration of a scrape", "As Prometheus measures it. Near the scrape timeout (10 s) gaps follow.",
                      "s", Query(each("scrape_duration_seconds"), "{{instance}}"), empty=NO_DAEMON).min(0)),
            (6, chart("Samples a scrape", "Series that each daemon exposes; 90 or so a run. A jump is a label that "
                      "explodes.", "short", Query(each("scrape_samples_scraped"), "{{instance}}"),
                      empty=NO_DAEMON).min(0)),
            (6, bars("State file and patterns", "Failures since start: state files not written or rebuilt from the "
                     "logs, patterns of your own that took too long, logs at which the monitor's own code failed "
                     "(its log has the traceback: report it). All should be 0.", "none",
                     Query(f"{total('megatron_monitor_state_save_failures_total')}", "not saved"),
                     Query(f"{total('megatron_monitor_state_rebuilds_total')}", "rebuilt"),
                     Query(f"sum by (pattern) (megatron_monitor_pattern_timeouts_total{{{OWN}}})",
                           "pattern {{pattern}}"),
                     Query(f"sum by (room) (megatron_monitor_put_aside_total{{{OWN}}})", "put aside: {{room}}"),
                     steps=((None, "green"), (1.0, "orange")), empty="No failure").decimals(0)),
        ]),
    ], collapsed=True)  # fmt: skip


def _limits() -> Section:
    mounts = f"max by (instance, mount, file_system, mode) (megatron_monitor_mount_info{{{OWN}}})"
    busy = f"max by (instance, mount) (megatron_monitor_mount_busy_seconds{{{OWN}}})"
    read = f"megatron_monitor_config_last_reload_success_timestamp_seconds{{{OWN}}}"
    return Section("Mounts and limits", [
        Line(8, [
            (12, rows("File systems", "Where the logs lie and how they are watched. Busy is how long the reader has been "
                      "in one call: if it grows, the mount hangs, and hangs of its runs cannot be seen.",
                      [Query(mounts), Query(busy)],
                      [Column("instance", "Daemon", width=140), Column("mount", "Mount"),
                       Column("file_system", "Kind", width=90), Column("mode", "Watched by", width=110),
                       Column("B", "Busy", "s", 90, limit_look(((None, "green"), (30.0, "orange"))))],
                      hidden=("Value #A",), empty=NO_DAEMON, sort="Busy", pages=False)),
            (12, chart("Busy mounts", "Time that the reader of a mount has been in one call. A line that climbs is a "
                       "mount that hangs: mend it, the daemon goes on by itself. Not heard: that time counts as no run's "
                       "silence.", "s",
                       Query(f"{busy} > 1", "{{instance}} {{mount}}"),
                       Query(f"sum by (instance, mount) (increase(megatron_monitor_unheard_seconds_total{{{OWN}}}"
                             "[$__rate_interval])) > 0", "not heard: {{instance}} {{mount}}"),
                       empty="No mount hangs").min(0)),
        ]),
        Line(6, [
            (24, rows("Word and page", "Whether a daemon has read all its files: only then is a run that it does not show "
                      "not followed. When it was asked to stop, and the address of its page.",
                      [Query(each("megatron_monitor_ready")),
                       Query(f"1000 * {each('megatron_monitor_stopped_timestamp_seconds')}"),
                       Query(f"max by (instance, url) (megatron_monitor_page_info{{{OWN}}})")],
                      [Column("instance", "Daemon", width=140),
                       Column("A", "All read", width=90, look=mapped_look(numbers({0.0: ("no", "orange"), 1.0: ("yes", "green")}))),
                       Column("B", "Asked to stop", "dateTimeAsIso", 190), Column("url", "Page")],
                      hidden=("Value #C",), empty=NO_DAEMON, sort="Daemon", descending=False, pages=False)),
        ]),
        Line(6, [
            (6, bars("Nodes that stand out", "Failures that name the node, or failed or slow launches with it, over all runs that "
                     "the daemons have seen; only nodes for which chance is no explanation. Why: megatron-monitor nodes, or the "
                     "daemon's page /nodes. Leave them out of the next launch.", "none",
                     Query(f"max by (node) (megatron_suspect_node{{{OWN}}})", "{{node}}"),
                     steps=((None, "orange"),), empty="None: no node stands out").decimals(0)),
            (6, bars("Runs not shown", "Runs beyond max_runs since start: dead ones are dropped first; refused live ones "
                     "are watched by nobody: raise max_runs or start a second daemon.", "none",
                     Query(f"sum by (reason) (megatron_monitor_runs_dropped_total{{{OWN}}}) > 0", "{{reason}}"),
                     steps=((None, "orange"),), empty="None").decimals(0)),
            (6, bars("Clock jumps", "Times that the wall clock of a daemon's machine was set by more than 5 s since "
                     "start. Budgets of silence are wrong for a moment; run a time daemon.", "none",
                     Query(f"sum by (instance) (megatron_monitor_clock_jumps_total{{{OWN}}}) > 0", "{{instance}}"),
                     steps=((None, "orange"),), empty="None").decimals(0)),
            (6, chart("HTTP connections", "Open now, each daemon. A climb is a client that never closes.", "none",
                      Query(each("megatron_monitor_http_connections"), "{{instance}}"),
                      empty=NO_DAEMON).min(0).decimals(0)),
        ]),
        Line(6, [
            (24, bars("Age of the configuration", "Time since the configuration in use was read. Younger than you think: "
                     "somebody changed it.", "s",
                     Query(f"max by (instance) (time() - {read})", "{{instance}}"), empty=NO_DAEMON)),
        ]),
    ], collapsed=True)  # fmt: skip


def monitor() -> build.Dashboard:
    """The daemons."""
    dashboard = (
        new("megatron-monitor", "The monitor itself: is it up, does it read its logs, do notifications arrive, what does it cost.")
        .with_variable(variable("job", "Job", "label_values(megatron_monitor_build_info, job)", foreign=False))
        .with_variable(variable("instance", "Daemon",
                                'label_values(megatron_monitor_build_info{job=~"$job"}, instance)', foreign=False))
        .annotation(annotation("Restarts of the monitor", "blue",
                               f"max by (instance) (changes(process_start_time_seconds{{{OWN}}}[$__rate_interval])) > 0",
                               "restart", "{{instance}}"))
    )  # fmt: skip
    return place(dashboard, [
        Section("Now", _now()),
        Section("Reading", _reading()),
        Section("Judging and telling", _judging()),
        _process(),
        _limits(),
    ])  # fmt: skip

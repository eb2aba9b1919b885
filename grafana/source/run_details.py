"""The collapsed rows of *run*: memory, configuration, data, and the rest that the log prints."""

from __future__ import annotations

from grafana.source import queries as q
from grafana.source.layout import Line, Section
from grafana.source.panels import LOGARITHMIC, Query, buckets, chart, figure, numbers
from grafana.source.tables import TOPOLOGY, Column, rows

RUN = q.ONE
BLOCKING = {0.0: ("off", "text"), 1.0: ("on: slow", "orange")}


def _memory() -> Section:
    return Section("Memory", [
        Line(8, [
            (24, chart("GPU memory", "Largest over the ranks that print it. Reserved should be flat; a slow climb is a "
                       "leak, a reserved far above allocated is fragmentation.", "bytes",
                       Query(q.value("megatron_gpu_memory_bytes", RUN, "kind"), "{{kind}}"),
                       Query(q.value("megatron_gpu_memory_capacity_bytes", RUN), "capacity"),
                       values=("lastNotNull", "max")).min(0)),
        ]),
    ], collapsed=True)  # fmt: skip


def _saving() -> Section:
    return Section("How often to save", [
        Line(4, [
            (8, figure("Time between failures", "Productive time over unplanned ends since the run began. Hours on thousands of "
                       "GPUs, days on hundreds; a fall is a sick node.", "s",
                       q.value("megatron_mean_time_between_failures_seconds", RUN),
                       empty="no failure yet").decimals(1)),
            (8, figure("Advised between saves", "Young and Daly's optimum from the time of a save and the time between "
                       "failures. Much longer intervals lose work, much shorter ones waste saves.", "s",
                       q.value("megatron_advised_save_interval_seconds", RUN),
                       empty="no failure yet").decimals(1)),
            (8, figure("At risk over advice", "Work at risk over the advised interval. Above 1 the next save is late by "
                       "that advice.", "percentunit",
                       f"{q.value('megatron_at_risk_seconds', RUN)} / {q.value('megatron_advised_save_interval_seconds', RUN)}",
                       steps=((None, "green"), (1.0, "dark-yellow"), (2.0, "orange")),
                       empty="no failure yet").decimals(0)),
        ]),
    ], collapsed=True)  # fmt: skip


_JOB = (("job_id", "Job"), ("job_state", "State"), ("reason", "Reason"), ("exit_code", "Exit code"), ("nodes", "Nodes"),
        ("restarts", "Requeued"), ("time_limit", "Time limit (s)"))  # fmt: skip


def _configuration() -> Section:
    titles = TOPOLOGY | {"mbs": "MBS"}
    return Section("Configuration", [
        Line(5, [
            (24, rows("Topology and model", "From the arguments that the log prints at the start; empty cells were not "
                      "printed. Two rows: the run was restarted with other arguments. Compare with what you meant to "
                      "launch.", [Query(q.value("megatron_run_info", RUN, *titles))],
                      [Column(label, title) for label, title in titles.items()],
                      hidden=("run", "cluster", "Value"), empty="Choose a run above", pages=False)),
        ]),
        Line(4, [
            (7, figure("Launch blocking", "CUDA_LAUNCH_BLOCKING. On makes every kernel wait: right for debugging, slow in production.",
                       "none", q.value("megatron_cuda_launch_blocking", RUN),
                       mappings=numbers(BLOCKING))),
            (17, rows("Slurm job", "What Slurm says of the run's job, asked once a minute. Not the state you expect? Ask "
                      "`scontrol show job` and whoever runs the cluster.",
                      [Query(q.value("megatron_job_info", RUN, *(name for name, _ in _JOB)))],
                      [Column(label, title) for label, title in _JOB],
                      hidden=("run", "cluster", "Value"), empty="No Slurm job is known of this run", pages=False)),
        ]),
    ], collapsed=True)  # fmt: skip


def _data() -> Section:
    return Section("Data and progress", [
        Line(7, [
            (8, chart("Samples consumed", "As the log prints it. It should climb in a straight line; a fall is a restart.", "short",
                      Query(q.value("megatron_consumed_samples", RUN), "samples"), alone="blue")),
            (8, chart("Tokens consumed", "As the log prints it; many programs do not. It should climb in a straight line; a fall is a restart.", "short",
                      Query(q.value("megatron_consumed_tokens", RUN), "tokens"), alone="blue")),
            (8, chart("Samples per second", "From batch size and time per iteration, while the run is alive. Steps "
                      "down at the same batch size are a slowdown.", "none",
                      Query(q.while_alive(q.value("megatron_samples_per_second", RUN), RUN), "samples/s"),
                      alone="blue").min(0)),
        ]),
        Line(9, [
            (6, chart("GPUs at work", "GPU-seconds of iterations a second: the GPUs that train, on average. Below the "
                      "world size by what evaluation, saving and waiting take.", "none",
                      Query(f"max by (cluster, run) (rate(megatron_gpu_seconds_total{{{RUN}}}[$__rate_interval]))",
                            "GPUs"), alone="blue").min(0).interval("5m")),
            (6, chart("Iterations finished per minute", "From the counter, repeated iterations included: 0 is no "
                       "progress, whatever the state is.", "none",
                       Query(f"60 * max by (cluster, run) (rate(megatron_iterations_total{{{RUN}}}[$__rate_interval]))",
                             "iterations/min"), alone="blue").min(0).interval("5m")),
            (6, buckets("Time per iteration, distribution", "How many iterations took how long, in seconds; finer and over the "
                        "normal it stands in the row Speed. A second band is a second level, or a ramp-up of the batch.", "s",
                        f"megatron_iteration_duration_seconds_bucket{{{RUN}}}", empty="No iteration in this range")),
            (6, chart("Silence and its budget", "Time since the last progress, and how long it may be before it is a "
                       "hang, logarithmic. The first must stay below the second.", "s",
                       Query(f"time() - {q.value('megatron_last_progress_timestamp_seconds', RUN)}", "silence"),
                       Query(f"{q.value('megatron_hang_deadline_timestamp_seconds', RUN)} - "
                             f"{q.value('megatron_last_progress_timestamp_seconds', RUN)}", "budget")).scale_distribution(LOGARITHMIC)),
        ]),
    ], collapsed=True)  # fmt: skip


def _incidents() -> Section:
    def each(metric: str) -> str:
        return q.value(metric, RUN, "incident", "severity")

    # Where one query alone has an answer Grafana calls its column "Value", whatever the query is.
    ended = f"{each('megatron_incident_end_timestamp_seconds')} or NaN * {each('megatron_incident_since_timestamp_seconds')}"

    return Section("Incidents, begin and end", [
        Line(8, [
            (24, rows("Begin and end of incidents", "Since when an open incident stands, and when the last one of each kind "
                      "ended and how long it had lasted: who was told of it was told of its end.",
                      [Query(f"1000 * {each('megatron_incident_since_timestamp_seconds')}"),
                       Query(f"1000 * ({ended})"),
                       Query(each("megatron_incident_duration_seconds"))],
                      [Column("incident", "Incident"), Column("severity", "Severity", width=110),
                       Column("A", "Open since", "dateTimeAsIso", 190), Column("B", "Last ended", "dateTimeAsIso", 190),
                       Column("C", "Had lasted", "s", 120)],
                      hidden=("cluster", "run"), empty="None so far", sort="Incident", pages=False)),
        ]),
    ], collapsed=True)  # fmt: skip


def _others() -> Section:
    return Section("Other values of the log", [
        Line(8, [
            (12, chart("Other losses", "Every other loss that the iteration line carries, by its printed name (load "
                       "balancing, z, multi-token). Each has its own meaning; a jump deserves a look.", "none",
                       Query(q.value("megatron_loss", RUN, "name"), "{{name}}"),
                       empty="The iteration line carries no other loss").decimals(3)),
            (12, chart("Values of your own patterns", "What the patterns of your configuration file read from the log.",
                       "none", Query(q.value("megatron_custom_value", RUN, "name"), "{{name}}"),
                       empty="No pattern of kind value is configured, or none matched")),
        ]),
    ], collapsed=True)  # fmt: skip


def details() -> list[Section]:
    """Rows that cost nothing until they are opened."""
    return [_memory(), _saving(), _configuration(), _data(), _incidents(), _others()]

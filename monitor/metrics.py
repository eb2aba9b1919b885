"""The catalogue: one row a metric.

Law: every metric is named here once; docs/metrics.md is generated from these rows. A row reads a `View` and gives
samples; no sample where the log printed nothing. Event times are timestamps, never ages; ratios, never percent.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from msgspec import Struct, field

from monitor.breakdown.account import Timed
from monitor.breakdown.profile import critical, spreads
from monitor.causes import Cause, causes, failure_of, lost_seconds
from monitor.detectors import memory_pressure, slowdown
from monitor.incidents import IncidentBook
from monitor.model.tables import rows_of
from monitor.run import derived
from monitor.run.job import OVER
from monitor.run.phases import PARTS, RUN_STATES
from monitor.run.state import RunState
from monitor.run.steps.pace import HISTOGRAM_BUCKETS
from monitor.snapshot import Histogram, Sample, clean_label

Kind = Literal["gauge", "counter", "histogram"]
_NO_LABELS: tuple[str, ...] = ()


class View(Struct, frozen=True):
    """What a row of a run may read. Used by the loop thread alone, which owns the state."""

    state: RunState
    book: IncidentBook
    run_state: str
    hang_deadline: float | None
    """Unix seconds."""
    peak_tflops: float | None
    over: bool = False
    """The daemon ends, and its runs with it: nothing of them fires any more."""
    actions: tuple[str, ...] = ()
    """What policies would do, do and did."""
    nodes: tuple[str, ...] = ()
    """Of the present launch, as far as they are told and are not too many to be series."""
    identity: Mapping[str, Any] = field(default_factory=dict)
    """Its job and its streams, and why they are believed to be (monitor/identity/)."""


class Metric(Struct, frozen=True):
    """One row. `read` gives samples, or one Histogram."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]
    read: Callable[[View], Iterable[Sample] | Histogram | None]


def _one(value: float | int | None) -> Iterable[Sample]:
    return () if value is None else (Sample(_NO_LABELS, float(value)),)


def _named(values: dict[str, Any]) -> Iterator[Sample]:
    for name, value in sorted(values.items()):
        if value is not None:
            yield Sample((clean_label(name),), float(value))


_INFO_LABELS = (
    "world_size", "tp", "pp", "dp", "mbs", "layers", "hidden", "heads", "seq_len", "dtype", "zero_stage", "dialect",
)  # fmt: skip


def _info(view: View) -> Iterator[Sample]:
    labels = view.state.launch.topology.labels()
    labels["dialect"] = view.state.launch.dialect or labels.get("dialect", "")
    yield Sample(tuple(clean_label(str(labels.get(name, ""))) for name in _INFO_LABELS), 1.0)


def _tflops(view: View) -> Iterator[Sample]:
    printed = derived.printed_tflops(view.state)
    if printed is not None:
        yield Sample(("log",), printed)
    computed = derived.computed_tflops(view.state)
    if computed is not None:
        yield Sample(("computed",), computed[1])


def _memory(view: View) -> Iterable[Sample]:
    kinds = ("allocated", "max_allocated", "reserved", "max_reserved")
    return _named({kind: getattr(view.state.launch.memory, kind) for kind in kinds})


def _durations(view: View) -> Histogram | None:
    seconds = view.state.seconds
    return _histogram(HISTOGRAM_BUCKETS, seconds.buckets, seconds.sum_seconds) if seconds.count else None


def _over_normal(view: View) -> Histogram | None:
    counts, total = slowdown.over_normal(view.state)
    return _histogram(slowdown.OVER_NORMAL, counts, total) if any(counts) else None


def _histogram(bounds: Sequence[float], counts: Sequence[int], values: float) -> Histogram:
    total, cumulative = 0, []
    for bound, count in zip((*bounds, float("inf")), counts, strict=True):
        total += count
        cumulative.append(("+Inf" if bound == float("inf") else repr(float(bound)), float(total)))
    return Histogram(tuple(cumulative), values)


def _incidents(view: View) -> Iterator[Sample]:
    now = {(one.incident, one.severity) for one in view.book.open.values()} if not view.over else set()
    fired = {(name, severity) for name, severity in view.state.fired}
    for name, severity in sorted(now | fired):
        yield Sample((name, severity), float((name, severity) in now))


def _incidents_told(view: View) -> Iterator[Sample]:
    told = {(one.incident, one.severity) for one in view.book.open.values() if not (one.quiet or view.over)}
    return (Sample(one.labels, float(one.labels in told)) for one in _incidents(view))


def _lost(view: View) -> Iterator[Sample]:
    for one in view.book.open.values() if not view.over else ():
        yield Sample((one.incident, one.severity), lost_seconds(one.evidence))


def _since(view: View) -> Iterator[Sample]:
    for incident in view.book.open.values() if not view.over else ():
        yield from _at((incident.incident, incident.severity), view.state.unix(incident.since))


def _ended(view: View) -> Iterator[Sample]:
    for kind, end in sorted(view.book.ended.items()):
        yield from _at((kind, end.severity), view.state.unix(end.at))


def _lasted(view: View) -> Iterator[Sample]:
    for kind, end in sorted(view.book.ended.items()):
        yield Sample((kind, end.severity), max(0.0, end.at - end.since))


def _at(labels: tuple[str, ...], instant: float | None) -> Iterator[Sample]:
    if instant is not None:
        yield Sample(labels, instant)


_LONGEST = 1000  # characters of a text that is told: whole sentences with what to do
_FAILURE_LABELS = ("failure", "rank", "node", "summary", "advice", "line")


def _incident_info(view: View) -> Iterator[Sample]:
    for cause in causes(view.book) if not view.over else ():
        yield Sample(tuple(clean_label(text, _LONGEST) for text in cause), 1.0)


def _failure_info(view: View) -> Iterator[Sample]:
    cause = failure_of(view.state)
    if cause is not None:
        yield Sample(tuple(clean_label(getattr(cause, name)) for name in _FAILURE_LABELS), 1.0)


_TIMERS = 30  # single timers of a run


def _part(view: View) -> Iterable[Sample]:
    state = view.state
    return [Sample((name,), float(name == state.launch.phase)) for name in PARTS] if state.launch.parts.told else ()


def _of_timers(read: Callable[[Timed], dict[str, float]]) -> Callable[[View], Iterable[Sample]]:
    """By category, of the timers shown last: sums of times that are printed to ten microseconds."""

    def samples(view: View) -> Iterable[Sample]:
        timed = view.state.launch.account.shown
        return () if timed is None else _named({name: round(value, 6) for name, value in read(timed).items()})

    return samples


def _timers(view: View) -> Iterator[Sample]:
    timed = view.state.launch.account.shown
    if timed is None:
        return
    longest = sorted(timed.timers.items(), key=lambda item: (-item[1][1], item[0]))[:_TIMERS]
    for name, (low, high) in sorted(longest):
        if timed.across == "range":
            yield Sample((clean_label(name), "min"), low)
        yield Sample((clean_label(name), "max"), high)


def _recent(name: str) -> Callable[[View], Iterable[Sample]]:
    def read(view: View) -> Iterable[Sample]:
        bounds = view.state.recent.bounds(name)
        return () if bounds is None else (Sample(("min",), bounds[0]), Sample(("max",), bounds[1]))

    return read


def _launch_blocking(view: View) -> Iterable[Sample]:
    value = view.state.launch.environment.get("CUDA_LAUNCH_BLOCKING")
    return _one({"1": 1.0, "0": 0.0}.get(value.strip()) if value is not None else None)


_JOB_LABELS = ("job_id", "job_state", "reason", "exit_code", "nodes", "restarts", "time_limit")


def _job(view: View) -> Iterator[Sample]:
    job = view.state.job
    if job is not None:
        code = "" if job.exit_code is None or job.state not in OVER else str(job.exit_code)
        limit = "" if job.time_limit is None else f"{job.time_limit:.0f}"
        texts = (job.array_id or job.id, job.state, job.reason, code, job.nodes, str(job.restarts), limit)
        yield Sample(tuple(clean_label(text) for text in texts), 1.0)


CATALOGUE: tuple[Metric, ...] = (
    Metric("megatron_run_info", "gauge", "Topology and model of the run, from its arguments dump; always 1", _INFO_LABELS, _info),
    Metric("megatron_job_info", "gauge", "The run's Slurm job as Slurm tells of it, time_limit in seconds; absent where none is known; always 1", _JOB_LABELS, _job),
    Metric("megatron_run_node_info", "gauge", "A node of the present launch, as the log or Slurm names it: to join with hardware's metrics. Absent where there are more than `max_run_nodes`; always 1", ("node",), lambda v: [Sample((clean_label(node),), 1.0) for node in v.nodes]),
    Metric("megatron_world_size", "gauge", "GPUs (ranks) of the run, as a number to weigh and to sum with", (), lambda v: _one(v.state.launch.topology.world_size)),
    Metric("megatron_run_state", "gauge", "1 for the state that the run is in, 0 for the others", ("state",),
           lambda v: [Sample((name,), float(name == v.run_state)) for name in RUN_STATES]),
    Metric("megatron_run_part", "gauge", "1 for the part of a step of reinforcement learning that the run is in, 0 for the others; absent where its log tells of none", ("part",), _part),
    Metric("megatron_iteration", "gauge", "Last iteration finished (log: `iteration N/M`)", (), lambda v: _one(v.state.launch.latest.iteration)),
    Metric("megatron_train_iterations", "gauge", "Planned iterations (log: the M of `iteration N/M`, `train_iters`)", (),
           lambda v: _one(v.state.launch.train_iterations)),
    Metric("megatron_iterations_total", "counter", "Iterations seen finishing, those computed again after a restart included", (),
           lambda v: _one(v.state.iterations_total)),
    Metric("megatron_consumed_samples", "gauge", "Samples consumed (log: `consumed samples`)", (), lambda v: _one(v.state.launch.latest.consumed_samples)),
    Metric("megatron_consumed_tokens", "gauge", "Tokens consumed (log: `consumed tokens`)", (), lambda v: _one(v.state.launch.latest.consumed_tokens)),
    Metric("megatron_iteration_seconds", "gauge", "Time of the last iteration (log: `elapsed time per iteration`), evaluation and saving taken out", (),
           lambda v: _one(v.state.launch.pure_seconds)),
    Metric("megatron_recent_iteration_seconds", "gauge", "Shortest and longest time per iteration of the last minute or two, which a scrape would miss", ("bound",), _recent("seconds")),
    Metric("megatron_iteration_duration_seconds", "histogram", "Distribution of the time per iteration, evaluation and saving taken out", (), _durations),
    Metric("megatron_iteration_part_seconds", "gauge", "Where the last iteration's time went, on the rank that the others wait for, by the log's timers (`time (ms)`, `across ranks`, `wall_clock_breakdown`); absent where it prints none", ("category",), _of_timers(critical)),
    Metric("megatron_iteration_part_spread_seconds", "gauge", "Difference between the ranks with the most and the least of it; absent where the log prints one rank's timers", ("category",), _of_timers(spreads)),
    Metric("megatron_timer_seconds", "gauge", "Each timer of the last iteration as printed, the least and the most over the ranks; the 30 longest", ("timer", "bound"), _timers),
    Metric("megatron_samples_per_second", "gauge", "Samples per second, recomputed from batch size and time per iteration", (),
           lambda v: _one(derived.samples_per_second(v.state))),
    Metric("megatron_tokens_per_second", "gauge", "Tokens per second over all GPUs, recomputed from batch size, sequence length and time", (),
           lambda v: _one(derived.tokens_per_second(v.state))),
    Metric("megatron_tflops_per_gpu", "gauge", "TFLOP/s per GPU: as printed (log) and by the same formula from the topology (computed)", ("source",), _tflops),
    Metric("megatron_mfu_ratio", "gauge", "Model FLOPs utilisation, 0 to 1: no recomputation counted", (),
           lambda v: _one(derived.utilisation(v.state, v.peak_tflops)[0])),
    Metric("megatron_hfu_ratio", "gauge", "Hardware FLOPs utilisation, 0 to 1: recomputed activations counted", (),
           lambda v: _one(derived.utilisation(v.state, v.peak_tflops)[1])),
    Metric("megatron_lm_loss", "gauge", "Training loss (log: `lm loss`); absent when the log left it out, as it does for NaN", (),
           lambda v: _one(v.state.launch.latest.lm_loss)),
    Metric("megatron_recent_lm_loss", "gauge", "Lowest and highest training loss of the last minute or two", ("bound",), _recent("lm_loss")),
    Metric("megatron_loss", "gauge", "Every other loss of the iteration line, by its printed name", ("name",), lambda v: _named(v.state.launch.latest.losses)),
    Metric("megatron_validation_loss", "gauge", "Last validation loss (log: `validation loss at iteration`)", ("dataset",),
           lambda v: _named({name: result.loss for name, result in v.state.launch.validations.items()})),
    Metric("megatron_grad_norm", "gauge", "Gradient norm (log: `grad norm`)", (), lambda v: _one(v.state.launch.latest.grad_norm)),
    Metric("megatron_recent_grad_norm", "gauge", "Lowest and highest gradient norm of the last minute or two", ("bound",), _recent("grad_norm")),
    Metric("megatron_learning_rate", "gauge", "Learning rate (log: `learning rate`)", (), lambda v: _one(v.state.launch.latest.learning_rate)),
    Metric("megatron_loss_scale", "gauge", "Loss scale of fp16 (log: `loss scale`, DeepSpeed's overflow lines)", (),
           lambda v: _one(v.state.launch.latest.loss_scale)),
    Metric("megatron_global_batch_size", "gauge", "Samples per iteration (log: `global batch size`)", (), lambda v: _one(derived.batch_size(v.state))),
    Metric("megatron_custom_value", "gauge", "Values of the configuration's own patterns", ("name",), lambda v: _named(v.state.launch.custom_values)),
    Metric("megatron_skipped_iterations_total", "counter", "Iterations skipped (log: `number of skipped iterations`)", (),
           lambda v: _one(v.state.skipped_iterations_total)),
    Metric("megatron_nan_iterations_total", "counter", "Iterations with NaN (log: `number of nan iterations`)", (),
           lambda v: _one(v.state.nan_iterations_total)),
    Metric("megatron_overflows_total", "counter", "Gradient overflows (log: DeepSpeed's `OVERFLOW!` lines)", (), lambda v: _one(v.state.overflows_total)),
    Metric("megatron_gpu_memory_bytes", "gauge", "GPU memory, largest over the ranks that print it (log: `memory (MB)`, `MA`, `MemAllocated`)", ("kind",), _memory),
    Metric("megatron_gpu_memory_capacity_bytes", "gauge", "Memory of one GPU, by its name in the log or by an out-of-memory line", (),
           lambda v: _one(memory_pressure.device_bytes(v.state))),
    Metric("megatron_gpu_seconds_total", "counter", "Time of all iterations times the GPUs that computed them, those computed again included", (),
           lambda v: _one(v.state.gpu_seconds or None)),
    Metric("megatron_last_progress_timestamp_seconds", "gauge", "When the last line that proves progress was written", (),
           lambda v: _one(v.state.unix(v.state.progress_at))),
    Metric("megatron_hang_deadline_timestamp_seconds", "gauge", "When silence becomes a hang; alert rules can compare it with time() even if the monitor has died", (),
           lambda v: _one(v.hang_deadline)),
    Metric("megatron_baseline_iteration_seconds", "gauge", "Learned normal time per iteration at the current batch size", (),
           lambda v: _one(v.state.launch.pace.baseline)),
    Metric("megatron_slowdown_ratio", "gauge", "Time of the last iteration over the learned normal, over that of before a slowdown as long as it stands; 1.05 is 5 % slower", (),
           lambda v: _one(slowdown.ratio(v.state))),
    Metric("megatron_iteration_over_normal_ratio", "histogram", "Distribution of the time per iteration over what was normal before it, over that of before a slowdown while one stands", (), _over_normal),
    Metric("megatron_incident", "gauge", "1 while the incident fires", ("incident", "severity"), _incidents),
    Metric("megatron_incident_told", "gauge", "1 while people are to hear of the incident: 0 where it is only shown, has not stood for long enough, or is kept back", ("incident", "severity"), _incidents_told),
    Metric("megatron_incident_lost_seconds", "gauge", "Work that was lost with the open incident, in seconds of training", ("incident", "severity"), _lost),
    Metric("megatron_incident_info", "gauge", "What is known of an open incident, as it was last told: where it is, what to do, the line that shows it; always 1", Cause._fields, _incident_info),
    Metric("megatron_incident_since_timestamp_seconds", "gauge", "Since when the open incident stands", ("incident", "severity"), _since),
    Metric("megatron_incident_end_timestamp_seconds", "gauge", "When the last incident of the kind that people were told of ended", ("incident", "severity"), _ended),
    Metric("megatron_incident_duration_seconds", "gauge", "How long that incident lasted", ("incident", "severity"), _lasted),
    Metric("megatron_incidents_total", "counter", "Incidents that have fired", ("incident",), lambda v: _named(v.book.counts)),
    Metric("megatron_failures_total", "counter", "Attempts that ended in a failure, by its cause", ("failure",), lambda v: _named(v.state.failures_total)),
    Metric("megatron_failure_info", "gauge", "What a crashed run died of, be it before the monitor saw it; always 1", _FAILURE_LABELS, _failure_info),
    Metric("megatron_restarts_total", "counter", "Launches after the first", (), lambda v: _one(v.state.restarts)),
    Metric("megatron_last_checkpoint_iteration", "gauge", "Iteration of the last checkpoint that was saved whole", (),
           lambda v: _one(v.state.past.checkpoints.last_iteration)),
    Metric("megatron_checkpoint_save_seconds", "gauge", "Time that the last save took", (), lambda v: _one(v.state.past.checkpoints.save_seconds)),
    Metric("megatron_at_risk_seconds", "gauge", "Training time that a crash now would lose", (), lambda v: _one(derived.at_risk_seconds(v.state))),
    Metric("megatron_lost_iterations_total", "counter", "Iterations computed again after restarts", (), lambda v: _one(v.state.lost_iterations_total)),
    Metric("megatron_lost_seconds_total", "counter", "Training time lost to restarts, by cause", ("cause",), lambda v: _named(v.state.lost_seconds_total)),
    Metric("megatron_effective_training_time_ratio", "gauge", "Productive time over wall time since the run's first line", (),
           lambda v: _one(derived.effective_ratio(v.state))),
    Metric("megatron_mean_time_between_failures_seconds", "gauge", "Productive time over unplanned ends; absent before the first", (),
           lambda v: _one(derived.mean_time_between_failures_seconds(v.state))),
    Metric("megatron_advised_save_interval_seconds", "gauge", "Time between saves that loses least (Young and Daly), from the save's time and the failures", (),
           lambda v: _one(derived.advised_save_interval(v.state))),
    Metric("megatron_eta_timestamp_seconds", "gauge", "Expected end at the run's real efficiency", (), lambda v: _one(derived.eta(v.state))),
    Metric("megatron_cuda_launch_blocking", "gauge", "CUDA_LAUNCH_BLOCKING where the log prints it; absent where it does not", (), _launch_blocking),
)  # fmt: skip


class MonitorMetric(NamedTuple):
    """A metric of the daemon itself, a row of own_metrics.csv; its samples are counted in MonitorCounts by name."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]


MONITOR_CATALOGUE: tuple[MonitorMetric, ...] = tuple(
    MonitorMetric(name, kind, text, tuple((labels or "").split()))
    for name, kind, labels, text in rows_of("monitor", "own_metrics.csv", tuple[str, Kind, str | None, str])
)


def samples_of(view: View) -> dict[str, tuple[Sample, ...] | Histogram]:
    """Every row's samples of one run; a row without any is left out."""
    out: dict[str, tuple[Sample, ...] | Histogram] = {}
    for metric in CATALOGUE:
        got = metric.read(view)
        if isinstance(got, Histogram):
            out[metric.name] = got
        elif got is not None:
            samples = tuple(got)
            if samples:
                out[metric.name] = samples
    return out

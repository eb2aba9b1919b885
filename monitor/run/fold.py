"""`fold` applies one event to the state of its run. Start here: `_HANDLERS` shows which function handles which event.

`at` is the best known time of writing: the time of reading if `live`, the file's last change for a backlog.
"""

from collections.abc import Callable
from typing import Any

from megatron_monitor.breakdown.account import has_step_timers
from megatron_monitor.model.flops import EFFECTIVE
from megatron_monitor.parsers import events
from megatron_monitor.parsers.engine.fields import whole
from megatron_monitor.parsers.events import Event, LogEvent
from megatron_monitor.parsers.timers import BETWEEN_STEPS, PART_OF, timer
from megatron_monitor.run import saves, setup
from megatron_monitor.run.attempts import mark_of, on_launcher_started, take_end, take_mark
from megatron_monitor.run.evidence import EVENTS, fold_evidence
from megatron_monitor.run.log_clock import log_clock
from megatron_monitor.run.nodes import note_collective, note_node, note_rank
from megatron_monitor.run.phases import ENDED, EVALUATION, PARTS, PROGRESS, STEP, Moved, Phase, drawn_as
from megatron_monitor.run.recording import AMENDING, record
from megatron_monitor.run.records import EventContext, MemoryPeaks, nothing, plus
from megatron_monitor.run.restarts import enter
from megatron_monitor.run.state import RunState
from megatron_monitor.run.steps.engine import fold_engine_step
from megatron_monitor.run.steps.loop import fold_iteration
from megatron_monitor.run.steps.pace import SampledValues
from megatron_monitor.run.steps.trainer import fold_trainer_log, fold_trainer_progress

_MORE = BETWEEN_STEPS | PART_OF.keys()
"""Timers that measure more than the parts of an iteration."""
_CAUSES: frozenset[type[Event]] = frozenset({events.FailureSeen, events.TracebackSeen})
_BOUNDS: frozenset[type[Event]] = _CAUSES | {
    events.ArgumentsDumped, events.MilestoneReached, events.TopologyLogged, events.TrainerSetting
}  # fmt: skip
"""Events that may be a mark of a set-up, or the cause of an end that belongs to the next attempt."""
_PEAKS = ("allocated", "max_allocated", "reserved", "max_reserved")
_NUMBERED: frozenset[type[Event]] = frozenset({events.IterationLogged, events.EngineStepLogged, events.TrainerLogged})


def fold(
    state: RunState, entry: LogEvent, source: str, at: float, live: bool, settle: Callable[[], None] = nothing
) -> None:
    """Apply one event. `source`: its file; the module's docstring explains `at` and `live`.

    `settle` is called before a step begins another attempt, and before another step source takes over.
    """
    event = entry.event
    kind = type(event)
    clock = _note_line(state, event, at)
    attempt, counted = state.attempt, state.iterations_total
    before, silent_work = attempt.phase, attempt.silent_work
    context = EventContext(source, at, live, clock, entry, settle)
    if kind in _BOUNDS:
        _take_bound(state, event, context)
    handler = _HANDLERS.get(kind)
    moved = handler is None or handler(state, event, context)
    if not isinstance(moved, bool) and moved != state.attempt.phase:
        enter(state, moved, at)
    now, phase = state.attempt, state.attempt.phase
    if phase == "crashed":
        _prove(state, live=live, new=before != "crashed")
    if kind in _NUMBERED:
        state.copies.note_step(event, source)
    stepped, entered = state.iterations_total != counted, phase != before and drawn_as(phase) != drawn_as(before)
    if stepped or entered or kind in AMENDING or (moved and kind is events.ValidationLogged):
        record(state, event, stepped, entered, clock, at, live)
    if stepped and kind is not events.IterationLogged:  # the loop's own lines are remembered
        state.copies.count(source, now.number)
    if moved and (kind in PROGRESS[before] or kind in PROGRESS[phase]):
        if live and now is attempt:  # a silence that a new attempt ended did not end in progress
            _note_silence(state, before, silent_work or before, event, at)
        _note_progress(state, kind, clock, at, live=live)
    if now.parts.reported:
        _follow_parts(state, before, event)


def _take_bound(state: RunState, event: Event, context: EventContext) -> None:
    """Begin an attempt if the event shows that."""
    if type(event) in _CAUSES:
        take_end(state, event, context)
    elif (mark := mark_of(event, context.source)) is not None:
        take_mark(state, mark, context)


def _follow_parts(state: RunState, before: Phase, event: Event) -> None:
    silence = state.attempt.parts.follow(before, state.attempt.phase, event)
    if silence > 0:
        state.learned.silences.learn(before, silence)


def _note_progress(state: RunState, kind: type[Event], clock: float | None, at: float, *, live: bool) -> None:
    """Record progress, with the line's stamp or the one of a line shortly before."""
    attempt = state.attempt
    state.live = state.live or live
    if state.progress_at is None or at > state.progress_at:
        state.progress_at = at
        state.coverage.note_progress(at)
    attempt.hung, state.coverage.unconfirmed = False, None
    if clock is not None:
        attempt.progress_clock = clock
    elif kind in STEP:
        stamped = attempt.stamped_at
        near = stamped is not None and state.iterations_total - stamped <= attempt.every
        attempt.progress_clock = state.log_clock_last if near else None


def _note_line(state: RunState, event: Event, at: float) -> float | None:
    """Record what every line shows: training, time, node. Return its stamp as seconds; None without a stamp."""
    if event.proves_training and (type(event) in STEP or not state.document):
        if state.attempt.evidence and state.attempt.foreign:
            state.attempt.forget()
            enter(state, "starting", at)
        state.proven = True
    if at > state.updated_at:
        state.updated_at = at
    if state.first_at is None:
        state.first_at = at
    if event.node is not None:
        note_node(state, event.node)
        if event.rank is not None:
            note_rank(state, event.rank, event.node)
    clock = log_clock(event.logged_at)
    if clock is not None:
        if state.log_clock_first is None:
            state.log_clock_first = clock
        state.log_clock_last = max(clock, state.log_clock_last or clock)
        state.attempt.stamped_at = state.iterations_total
    return clock


def _prove(state: RunState, *, live: bool, new: bool) -> None:
    """A crash proves a training, and a live crash a live one. An unconfirmed failure proves nothing: it may belong to
    another program of the job.
    """
    attempt = state.attempt
    if (state.proven and not (live and new)) or (state.document and not state.proven):
        return
    if not attempt.unconfirmed or (attempt.failure is not None and attempt.failure.optional):
        state.proven, state.live = True, state.live or live


def used(event: Event) -> bool:
    """Return True if `fold` or a rule uses the event. Line shapes whose events are not used are skipped.

    The answer depends on the event's type and names, never on its numbers.
    """
    if isinstance(event, events.TimersReported):
        return has_step_timers(event)
    return True


def _gap_phase(before: Phase, event: Event) -> Phase | None:
    """Return the phase for which the gap before this event is an example; None for no phase.

    The time from the last validation or a save to the next iteration belongs to neither phase. A line that announces an
    evaluation ends the phase before; a line of its progress or its result may be the first line of the evaluation.
    """
    kind = type(event)
    if isinstance(event, events.EvaluationProgressed) and not (event.done or event.finished):
        return before
    if kind in EVALUATION or (isinstance(event, events.TrainerLogged) and event.eval_loss is not None):
        return "evaluating"
    if kind in STEP:
        return before if before not in ("evaluating", "saving") else None
    return None if kind is events.StepInferred else before  # the inferred step is of a loop, not of the set-up


def _note_silence(state: RunState, before: Phase, kind: str, event: Event, at: float) -> None:
    """Learn from a live silence of that kind in the phase `before` that ended in progress.

    A silence that was reported as a hang only shows that it may come again.
    """
    since, silences, attempt = state.silent_since(at), state.learned.silences, state.attempt
    if since is None or not state.live or at <= (state.progress_at or 0.0):
        return
    if state.job is not None and state.suspended:
        return
    seconds = max(0.0, at - since)
    if attempt.hung or (silences.forgiven and silences.is_forgiven(kind, seconds)):
        silences.forgive(kind, seconds, at)
    if not attempt.hung:
        _learn(state, before, kind, event, seconds)


def _learn(state: RunState, before: Phase, kind: str, event: Event, seconds: float) -> None:
    """Learn a normal silence: of the unreported work in it, or of its phase."""
    attempt, phase = state.attempt, _gap_phase(before, event)
    if before in PARTS and attempt.parts.reported:
        attempt.parts.silence = max(attempt.parts.silence, seconds)
    elif phase is not None and phase not in ENDED:
        state.learned.silences.learn(kind if phase == before else phase, seconds)
        if kind == phase == attempt.phase == "training" and (expected := attempt.expected_gap):
            attempt.gap_ratios.add(seconds / expected)


# --- reports --------------------------------------------------------------------------------------------------------


def _on_memory(state: RunState, event: events.MemoryReported, _context: EventContext) -> bool:
    memory = state.attempt.memory
    if event.host_used_bytes is not None or event.host_used_ratio is not None:
        memory.host_used_ratio = event.host_used_ratio
    memory.device_bytes = event.device_bytes or memory.device_bytes
    reported = {name: value for name in _PEAKS if (value := getattr(event, f"{name}_bytes")) is not None}
    if not reported:
        return False
    report = f"{event.iteration}/{event.occasion}"
    if memory.report != report:
        state.attempt.memory = memory = MemoryPeaks(
            host_used_ratio=memory.host_used_ratio, device_bytes=memory.device_bytes, report=report
        )
    for name, value in reported.items():
        setattr(memory, name, max(value, getattr(memory, name) or value))
    return True


def _on_timers(state: RunState, event: events.TimersReported, context: EventContext) -> bool:
    state.attempt.timers.take(event, state.attempt.step_source == "iteration")
    if not PART_OF.keys().isdisjoint(event.timers):
        state.attempt.parts.note_printed(event)
    if event.speaker == "megatron" and not BETWEEN_STEPS.isdisjoint(event.timers):
        for name, (_, longest) in event.timers.items():
            if name in BETWEEN_STEPS and state.attempt.iterations:
                if not event.of_next:
                    state.attempt.step_timer.interrupted = True
                    state.attempt.step_timer.timer_seconds += longest
                if timer(name).category == "checkpoint":
                    saves.note_save(state, longest)
                    if not context.live:
                        state.learned.silences.learn("saving", longest)
    return False


def fold_timers(state: RunState, event: events.TimersReported, at: float) -> bool:
    """Fast path of `fold` for frequent lines: timers of an iteration's parts only. Their stamps and nodes are not used.

    Return False, without a change, if the timers measure more.
    """
    if not state.proven or state.first_at is None or not _MORE.isdisjoint(event.timers):
        return False
    if at > state.updated_at:
        state.updated_at = at
    state.attempt.timers.take(event, state.attempt.step_source == "iteration")
    return True


def _on_overflow(state: RunState, event: events.OverflowSkipped, _context: EventContext) -> bool:
    news = state.attempt.overflows.add_line(event, state.attempt.latest.iteration or 0, state.attempt.every)
    state.overflows_total = plus(state.overflows_total, news)
    scale = event.new_loss_scale if event.new_loss_scale is not None else event.loss_scale
    if scale is not None:
        state.attempt.latest.loss_scale = scale
    return news


def _on_scale_exhausted(state: RunState, _event: events.LossScaleExhausted, context: EventContext) -> bool:
    failure = events.FailureSeen(failure="python_exception", message="the loss scale is at its minimum")
    return fold_evidence(state, failure, context)


def _on_throughput(state: RunState, event: events.ThroughputReported, _context: EventContext) -> bool:
    latest, topology = state.attempt.latest, state.attempt.topology
    if event.tflops is not None:
        latest.tflops = event.tflops
    if (
        event.parameters_billions is not None
    ):  # Megatron-DeepSpeed's flops_calculator: a line after each iteration's line
        state.attempt.effective_tflops = event.tflops
        state.attempt.tflops_formula = EFFECTIVE
        if topology.parameters is None:
            topology.parameters = whole(event.parameters_billions * 1e9)
    if event.samples_per_second is not None and event.seconds_per_step is not None:
        # DeepSpeed-Chat's own line: a step of the whole loop; each engine reports a part of it
        if not state.attempt.engine.rates_of_loop:
            state.attempt.engine.rates_of_loop, state.attempt.engine.rates = True, SampledValues()
        latest.samples_per_second = event.samples_per_second
        state.attempt.engine.rates.add(event.samples_per_second)
    return False


def _on_part(state: RunState, event: events.PartBegan, _context: EventContext) -> Moved:
    """A part without its own line is a phase only if other parts have lines."""
    attempt = state.attempt
    if attempt.phase in ENDED or attempt.phase == "exiting" or (event.implied and not attempt.parts.reported):
        return False
    if event.part not in attempt.parts.reported:
        attempt.parts.reported.append(event.part)
    return event.part


def _on_guess(state: RunState, event: events.StepInferred, _context: EventContext) -> bool:
    """An inferred step of a loop without a format, before any other step: progress if its loss differs from the line
    before and the line is not a repetition. A status line repeats the last loss; ranks that print it in turn repeat
    their lines. Remaining risk: more than 64 such ranks, or ranks that also count seconds.
    """
    attempt, last = state.attempt, state.attempt.inferred[-1:]
    if attempt.step_source is not None or state.progress_at is None:
        return False  # without a set-up before, no progress is expected: such a log may end silently
    losses = str(event.losses)
    return attempt.is_new((str(event.counts), losses)) and bool(last) and losses != last[0][1]


def _on_document(state: RunState, _event: events.DocumentSeen, _context: EventContext) -> bool:
    state.document = True
    return False


def _on_summary(state: RunState, event: events.TrainerSummary, context: EventContext) -> bool:
    saves.end_save(state)
    state.attempt.summary_rate = event.samples_per_second or state.attempt.summary_rate
    return fold_evidence(state, event, context)


def _on_collective_status(state: RunState, event: events.CollectiveStatus, _context: EventContext) -> bool:
    note_collective(state, event)
    return False


_Handler = Callable[[RunState, Any, EventContext], Moved]
_HANDLERS: dict[type[Event], _Handler] = {
    events.IterationLogged: fold_iteration,
    events.EngineStepLogged: fold_engine_step,
    events.TrainerLogged: fold_trainer_log,
    events.TrainerProgressed: fold_trainer_progress,
    events.TrainerSetting: setup.on_trainer_setting,
    events.MilestoneReached: setup.on_milestone,
    events.LauncherStarted: on_launcher_started,
    events.ArgumentsDumped: setup.on_arguments,
    events.TopologyLogged: setup.on_setting,
    events.ModelSettingLogged: setup.on_setting,
    events.SizesReported: setup.on_setting,
    events.BatchSizeRampupPlanned: setup.on_setting,
    events.ParametersCounted: setup.on_setting,
    events.EnvironmentVariableSeen: setup.on_environment,
    events.SoftwareSeen: setup.on_environment,
    events.EvaluationProgressed: saves.on_evaluation,
    events.ValidationLogged: saves.on_validation,
    events.CheckpointSaveStarted: saves.on_save_started,
    events.CheckpointFileWritten: saves.on_save_file,
    events.CheckpointSaveScheduled: saves.on_save_scheduled,
    events.CheckpointSaved: saves.on_saved,
    events.CheckpointLoadStarted: saves.on_load,
    events.CheckpointLoaded: saves.on_load,
    events.CheckpointNotFound: saves.on_load,
    events.MemoryReported: _on_memory,
    events.TimersReported: _on_timers,
    events.OverflowSkipped: _on_overflow,
    events.ThroughputReported: _on_throughput,
    events.LossScaleExhausted: _on_scale_exhausted,
    events.CollectiveStatus: _on_collective_status,
    events.DocumentSeen: _on_document,
    events.PartBegan: _on_part,
    events.StepInferred: _on_guess,
    **dict.fromkeys(EVENTS, fold_evidence),
    events.TrainerSummary: _on_summary,
}

"""Separates several experiments in one file, for example of a sweep's script.

The arguments dump decides: an experiment begins with another `experiment_run_id`; without ids with another model; and
with another batch size, layout or save directory if the attempt before had finished and nothing of it is loaded.
Otherwise it is a restart of the same experiment. Lines before the arguments are held until the arguments come.
Rule: only the source's own lines decide, so that reading it again yields the same experiments with the same labels.
"""

from msgspec import Struct, field

from megatron_monitor.model.topology import sizes_from_arguments
from megatron_monitor.parsers import events
from megatron_monitor.parsers.events import Event, LogEvent
from megatron_monitor.run.attempts import state_of
from megatron_monitor.run.state import Attempt, RunState

HELD_SECONDS = 120.0
"""Seconds for which live lines wait for arguments: these came 30 to 50 s after the launcher's first line on two nodes.
Later, the lines count as a restart of the same run."""
_MOST_HELD = 4096
_IDS_KEPT = 1024
SETUP_EVENTS: frozenset[type[Event]] = frozenset(
    {events.TopologyLogged, events.EnvironmentVariableSeen, events.SoftwareSeen, events.ModelSettingLogged}
)
"""Events that an attempt may print before its arguments, besides milestones."""
BOUNDS = {kind.kind for kind in SETUP_EVENTS} | {events.MilestoneReached.kind, events.ArgumentsDumped.kind}
"""Kinds of events that `Experiments.take` must see; the others only while something is held."""
_ID = "experiment_run_id"
_MODEL = ("layers", "hidden_size", "ffn_hidden_size", "attention_heads", "experts")
_LAYOUT = (
    "world_size", "tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size", "expert_parallel_size",
    "micro_batch_size", "global_batch_size", "sequence_length", "dtype", "zero_stage", "activation_checkpointing",
    "learning_rate",
)  # fmt: skip
_NOTHING = ("", "None")


def plan_of(event: events.ArgumentsDumped) -> dict[str, str]:
    """Return the arguments that distinguish experiments, as far as they are printed."""
    values = event.values
    sizes = sizes_from_arguments(values)
    plan = {name: str(sizes[name]) for name in (*_MODEL, *_LAYOUT) if sizes.get(name) is not None}
    plan |= {name: values[name] for name in (_ID, "load", "save") if values.get(name, "") not in _NOTHING}
    return plan


def _is_another(state: RunState, plan: dict[str, str]) -> bool:
    """Return True if arguments with this `plan` begin another experiment than the run's last attempt."""
    known = state.plan
    if not known or not begun(state.attempt):
        return False
    if _ID in known and _ID in plan:
        return known[_ID] != plan[_ID]
    if _differ(known, plan, _MODEL):
        return True
    load = plan.get("load")  # the arguments may load a checkpoint of this run
    continued = load is not None and state.learned.checkpoints.saves > 0 and load == known.get("save", load)
    if not _over(state) or continued:
        return False
    return _differ(known, plan, _LAYOUT) or (state.iterations_total > 0 and _differ(known, plan, ("save",)))


def _differ(known: dict[str, str], plan: dict[str, str], names: tuple[str, ...]) -> bool:
    return any(known[name] != plan[name] for name in names if name in known and name in plan)


def begun(attempt: Attempt) -> bool:
    """Return True if the attempt is past its set-up, in which arguments may be printed repeatedly."""
    return state_of(attempt) != "set-up" or (attempt.number > 0 and "arguments" not in attempt.boundaries)


def _over(state: RunState) -> bool:
    """Return True if the last attempt finished, or had no iteration: then no work continues in another layout."""
    attempt = state.attempt
    if state.iterations_total == 0 or attempt.phase in ("finished", "exiting") or attempt.training_done:
        return True
    return attempt.iterations == 0 and state.after_finish


class Experiments(Struct, omit_defaults=True):
    """The experiment of a source's present lines, and the held lines, which may belong to the next one."""

    number: int = 1
    label: str = ""
    reported: bool = False
    """True: the source has arguments, so its own lines decide the experiment."""
    ids: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Experiment id -> (number, label): a sweep may return to an experiment."""

    held: list[tuple[LogEvent, float]] = field(default_factory=list)
    """(event, instant)."""

    def take(self, entry: LogEvent, at: float, state: RunState | None) -> list[tuple[LogEvent, float]]:
        """Take an event. Return the (event, instant) to fold now, into the run that `number` and `label` then name.

        `state`: the run that they name before.
        """
        event = entry.event
        if state is not None and _opens(event) and (self.held or begun(state.attempt)):
            self.held.append((entry, at))
            return [] if len(self.held) < _MOST_HELD else self.release()
        if isinstance(event, events.ArgumentsDumped):
            self._write(plan_of(event), state)
        elif self.held and _is_the_last_ones(event):
            return [(entry, at)]
        return [*self.release(), (entry, at)]

    def release(self) -> list[tuple[LogEvent, float]]:
        """Return and forget the held lines."""
        held, self.held = self.held, []
        return held

    def _write(self, plan: dict[str, str], state: RunState | None) -> None:
        own = plan.get(_ID)
        if state is not None and _is_another(state, plan):
            if own in self.ids:
                self.number, self.label = self.ids[own]
            else:
                self.number = 1 + max([self.number, *(number for number, _ in self.ids.values())])
                self.label = own or str(self.number)
        self.reported = True
        if own is not None and len(self.ids) < _IDS_KEPT:
            self.ids.setdefault(own, (self.number, self.label))


def _opens(event: Event) -> bool:
    """Return True if an attempt prints this before its arguments."""
    return type(event) in SETUP_EVENTS or (
        isinstance(event, events.MilestoneReached) and event.milestone != "training_done"
    )


def _is_the_last_ones(event: Event) -> bool:
    """Return True if the attempt before may still print this while the next one begins."""
    if isinstance(event, events.FailureSeen):
        return not event.fatal
    return isinstance(event, events.MemoryReported) or (
        isinstance(event, events.ProcessExited) and event.exit_code == 0
    )

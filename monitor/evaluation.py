"""Evaluates the rules for one run: events in, transitions of incidents out. The daemon and `replay` use the same code.

Time is an argument. A rule that sees each step returns whether its finding may have changed, so healthy iterations cost
small updates and few evaluations.

Live lines are folded at the instant of their delivery. Lines of a finished log (`TimedEvent`) have their own instants:
time passes between any two of them, and a silence counts only if the lines prove it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from megatron_monitor.config import Config
from megatron_monitor.detectors import RULES, crash, hang
from megatron_monitor.detectors.base import RANK, AttemptRule, Finding, Rule, RuleSettings
from megatron_monitor.incident_events import IncidentEvents
from megatron_monitor.incidents import IncidentBook, Transition, judge, over_at
from megatron_monitor.parsers import events
from megatron_monitor.parsers.events import Event, LogEvent, TimersReported, TimeShown
from megatron_monitor.run.evidence import confirm, settle
from megatron_monitor.run.fold import fold, fold_timers
from megatron_monitor.run.phases import ENDED
from megatron_monitor.run.restarts import is_known, retire
from megatron_monitor.run.state import RunState
from megatron_monitor.run.steps.step import STEP_EVENTS, Step, add_step
from megatron_monitor.source_clock import TimedEvent

_KEEP_BUFFER: frozenset[type[Event]] = frozenset(
    {
        events.IterationLogged, events.EngineStepLogged, events.TrainerLogged, events.TrainerProgressed,
        events.TimersReported, events.ThroughputReported, events.EvaluationProgressed, events.ValidationLogged,
        events.CustomProgressLogged, events.Malformed, events.LineDiscarded,
        events.PartBegan, events.GenerationMoved, events.StepInferred,
    }
)  # fmt: skip
"""Events that change nothing that is constant within `Rule.on_steps`, except by a restart."""

_LEAST_GAP = 1.0  # minimum seconds between two lines for a check of deadlines
_EPSILON = 1e-6
_EXPLAINED = 120.0  # maximum seconds between a dated line and the cause of an undated end between them
_OWN_TIME = 0.9  # share of a silence that the first iteration must have taken to explain it
_UNPLACED: frozenset[type[Event]] = frozenset({events.PartBegan, events.GenerationMoved})
"""Lines without a stamp between two steps: the step's time cannot be divided between them."""


@dataclass(slots=True)
class MonitoredRun:
    """A run's state, its incidents, and whether it is historical: ended or stale when opened, so never alerted."""

    state: RunState
    book: IncidentBook = field(default_factory=IncidentBook)
    historical: bool = False
    expired: bool = False
    """True: it ended longer ago than `run_retention`. It has no series and is not evaluated until it progresses."""
    clock: float = -math.inf
    """For a finished log: the instant up to which lines were folded or time has passed."""
    passed: float = math.nextafter(-math.inf, 0.0)
    """Instant up to which deadlines were evaluated, or the silence means nothing."""

    def pass_over(self, until: float, *, evaluated: bool = False) -> None:
        """Let time pass until an instant. `evaluated`: deadlines before it were evaluated, those at it were not."""
        self.clock = max(self.clock, until)
        self.passed = max(self.passed, math.nextafter(self.clock, 0.0) if evaluated else self.clock)


class Evaluator:
    """The rules with their settings. Has no state of runs."""

    def __init__(self, config: Config, *, repeats: bool = True) -> None:
        self._repeat_interval = config.repeat_interval if repeats else math.inf
        self.events = IncidentEvents()
        """The events of all evaluated runs."""
        self._hang: hang.HangSettings = config.detectors.hang
        self._rules: list[tuple[type[Rule], RuleSettings]] = [
            (rule, getattr(config.detectors, name)) for name, rule in RULES.items()
        ]
        self._of_steps: list[tuple[str, type[Any], bool, RuleSettings]] = [
            (rule.name, rule, issubclass(rule, AttemptRule), own)
            for rule, own in self._rules
            if rule.on_steps is not Rule.on_steps
        ]
        self._timed = [(rule, own) for rule, own in self._rules if rule.is_timed]
        self._timed_names = frozenset(rule.name for rule, _ in self._timed)
        self._listeners: dict[type[Event], list[tuple[type[Rule], RuleSettings]]] = {}
        for rule, own in self._rules:
            for kind in rule.listens:
                self._listeners.setdefault(kind, []).append((rule, own))

    def take(
        self, run: MonitoredRun, entries: Sequence[LogEvent], source: str, at: float, live: bool
    ) -> list[Transition]:
        """Fold events of a stream in order and pass them to the rules, at `at` or, for TimedEvents, at their own times.

        A live run is evaluated at once if a finding may have changed, so that an incident that begins and ends within
        one read is notified too. In a backlog the rules see many steps at a time.
        """
        state = run.state
        transitions: list[Transition] = []
        steps: list[Step] = []
        stage = state.restarts, state.mixed
        """The rules are evaluated when it changes: the end of an attempt is reported after the next one began."""

        def show() -> None:
            """Pass the collected steps to the rules before the next event changes their context."""
            if steps:
                self._update(state, steps)
                steps.clear()

        for entry in entries:
            event = entry.event
            kind = type(event)
            if type(entry) is TimedEvent:
                if not entry.dated and kind in _UNPLACED:
                    continue
                transitions += self.wait_for(run, entry)
                at = run.clock
                if kind is TimeShown:
                    continue
            if kind is TimersReported and fold_timers(state, event, at):  # type: ignore[arg-type]
                continue
            repeated = kind is events.ModelSettingLogged and is_known(state.attempt, event)
            if not (repeated or kind in _KEEP_BUFFER):
                show()
            step_source, phase = state.attempt.step_source, state.attempt.phase
            iterations, skipped = state.iterations_total, state.skipped_iterations_total
            fold(state, entry, source, at, live, show)
            if kind in STEP_EVENTS:
                add_step(steps, state, event, iterations, skipped, step_source)
            changed = kind in self._listeners and not repeated and self._report(state, event)
            if live and state.live and not run.historical:
                before, stage = stage, (state.restarts, state.mixed)
                changed |= stage != before or ("hang" in run.book.open and state.attempt.phase != phase)
                transitions += self._judge_after(run, steps, at, changed)
        show()
        return transitions

    def _judge_after(self, run: MonitoredRun, steps: list[Step], at: float, changed: bool) -> list[Transition]:
        """Evaluate the run if an event or a step may have changed a finding."""
        if steps:
            opened = run.book.open  # an open hang ends with the next step
            changed |= bool(opened) and steps[-1].counted and not self._timed_names.isdisjoint(opened)
            changed |= self._update(run.state, steps)
            steps.clear()
        return self.judge(run, at) if changed else []

    def _report(self, state: RunState, event: Event) -> bool:
        """Pass an event to its rules. Return True if a finding may have changed."""
        changed = False
        for rule, settings in self._listeners[type(event)]:
            changed |= rule.ready(state).on_event(state, event, settings)
        return changed

    def _update(self, state: RunState, steps: Sequence[Step]) -> bool:
        """Pass the steps to all rules. Return True if a finding may have changed."""
        changed, known, number, last = False, state.memory_of, state.attempt.number, steps[-1].iteration
        for name, rule, of_attempt, settings in self._of_steps:
            own: Any = known.get(name)
            if type(own) is not rule or (of_attempt and own.attempt != number):
                own = rule.ready(state)
            if last > own.idle_until and own.on_steps(state, steps, settings):
                changed = True
        return changed

    def judge(self, run: MonitoredRun, now: float) -> list[Transition]:
        """Evaluate every rule, update the incidents, and return the transitions.

        Rules are evaluated at the instant until which the run was observed, because later lines are unread.
        """
        coverage = run.state.coverage
        observed = now if coverage.until is None or coverage.partial else min(now, coverage.until)
        settle(run.state, observed, self._hang.first_of("exiting"))
        if run.state.attempt.phase == "crashed":
            due = crash.due(run.state)
            if due is not None and (observed >= due or not (run.state.live or run.state.attempt.unconfirmed)):
                confirm(run.state, observed)
        found = {} if now >= over_at(run.state) else self._findings(run, observed)
        transitions = judge(run.book, run.state, found, now, self._repeat_interval, self.events)
        hung = run.book.open.get("hang")
        run.state.attempt.hung = hung is not None and hung.severity == "critical"
        return transitions

    def quarantine(self, run: MonitoredRun, why: str, now: float) -> list[Transition]:
        """Report that the run cannot be evaluated any more, and end its other incidents."""
        found = {"source_lost": Finding("firing", "critical", why, {"reason": why})}
        return judge(run.book, run.state, found, now, self._repeat_interval, self.events)

    def retire(self, run: MonitoredRun, at: float) -> list[Transition]:
        """End a run because another experiment began in its log: report a crash, end its incidents."""
        state = run.state
        transitions = self.pass_until(run, at) if run.clock > -math.inf else []
        due = crash.due(state)
        if due is not None:
            confirm(state, due)
        starts_at = max(at, due or at)
        transitions += self.judge(run, starts_at) if state.live else []
        retire(state, at)
        run.historical = True
        return transitions + self.judge(run, starts_at)

    # --- the time of a finished log ---------------------------------------------------------------------------------

    def wait_for(self, run: MonitoredRun, placed: TimedEvent) -> list[Transition]:
        """Let time pass until the line's instant, which is then `run.clock`."""
        at = max(placed.at, run.clock)
        if at - run.clock <= _LEAST_GAP or at <= self.idle_until(run):
            run.clock = at
            return []
        if placed.proof == "proved" and not placed.duration:
            deadline = self.deadline(run, run.passed)
            if deadline is None or deadline >= at:
                run.pass_over(at, evaluated=True)
                return []
        state, transitions = run.state, list[Transition]()
        if _explains(placed, state):
            run.pass_over(at)
        elif state.attempt.phase == "crashed":
            reported = crash.due(state)
            if placed.proof == "unknown" or _failed_since(state, reported, at):
                # a restart, or a failure right before: the crash is reported first
                transitions = self.pass_until(run, min(at, (reported or run.clock) + 2 * _EPSILON))
                run.pass_over(at)
        elif self._leaves_open(run, placed):
            run.pass_over(at)
            if placed.dated and placed.proof in ("plausible", "unknown"):
                state.progress_at = at  # the last line without a time may have been written just now
        elif placed.proof == "plausible" and not (
            placed.dated or state.attempt.phase in ENDED or state.progress_at is None
        ):
            at = max(run.clock, state.progress_at + hang.lawful(state, type(placed.event), self._hang))
            run.pass_over(at)
        return transitions + self.pass_until(run, at)

    def _leaves_open(self, run: MonitoredRun, placed: TimedEvent) -> bool:
        """Return True if the silence before a line is not proven."""
        state = run.state
        if state.attempt.phase in ENDED or state.progress_at is None:
            return False
        if placed.proof == "plausible":
            return placed.at <= state.progress_at + hang.lawful(state, type(placed.event), self._hang)
        if placed.proof == "no_steps":
            return state.iterations_total == 0
        return placed.proof == "unknown" or 0 < placed.duration >= _OWN_TIME * (placed.at - state.progress_at)

    def pass_until(self, run: MonitoredRun, until: float) -> list[Transition]:
        """Let time pass without a line: evaluate each deadline at its instant, or at the last line if that is later."""
        transitions, after = list[Transition](), run.passed
        while (deadline := self.deadline(run, after)) is not None and deadline < until:
            after = deadline + _EPSILON
            run.clock = max(run.clock, after)
            transitions += self.judge(run, run.clock)
        run.pass_over(until, evaluated=True)
        return transitions

    def finish(self, run: MonitoredRun, until: float) -> list[Transition]:
        """End the log: let time pass until `until`, or until an unconfirmed crash is confirmed.

        The fate of a run that has not ended by then is unknown.
        """
        last, state = run.clock, run.state
        failure = crash.ended_by(state.attempt)
        if failure is not None and not failure.helper and state.attempt.unconfirmed:
            until = max(until, (crash.due(state) or 0.0) + 2 * _EPSILON)
        transitions = self.pass_until(run, until) + self.judge(run, max(run.clock, until))
        settle(state, run.clock, 0.0)  # a run that reported that it is done has finished
        run.clock = last
        return transitions

    def idle_until(self, run: MonitoredRun) -> float:
        """Return an instant before which there is no deadline: a cheap check before `deadline`.

        A run without a failure has only deadlines of hangs, and none comes before half the minimum timeout.
        """
        state = run.state
        if state.progress_at is None or state.attempt.phase == "crashed":
            return -math.inf
        due = run.book.ends_at(state)
        idle_until = state.progress_at + self._hang.minimum / 2
        return idle_until if due is None else min(idle_until, due)

    def deadline(self, run: MonitoredRun, now: float) -> float | None:
        """Return the next instant after `now` at which time alone may change a finding."""
        found = (rule.of(run.state).finding(run.state, now, settings) for rule, settings in self._timed)
        ahead = [one.next_check for one in found if one.next_check is not None]
        due = run.book.ends_at(run.state)
        if due is not None:
            ahead.append(max(due, now))
        return min(ahead, default=None)

    def _findings(self, run: MonitoredRun, now: float) -> dict[str, Finding]:
        if run.historical or run.expired or not run.state.proven:
            return {}
        state, found = run.state, {}
        for rule, settings in self._rules:
            if settings.enabled:
                one = rule.of(state).finding(state, now, settings)
                capped = RANK[one.severity] > RANK[settings.severity]
                found[rule.name] = replace(one, severity=settings.severity) if capped else one
        if crash.Crash.name in found:
            crash.Crash.of(state).note(state, found[crash.Crash.name])
        return found


def _explains(placed: TimedEvent, state: RunState) -> bool:
    """Return True if the line is the cause of an undated failure that followed from another one.

    A launcher's line about a signal was written just before the scheduler's line, not right after the last dated one.
    """
    failure, event = state.attempt.failure, placed.event
    if failure is None or failure.logged_at is not None or not failure.consequence:
        return False
    return isinstance(event, events.FailureSeen) and not event.consequence and placed.at - failure.at <= _EXPLAINED


def _failed_since(state: RunState, reported: float | None, at: float) -> bool:
    """Return True if an undated failure before the first step may have come right before `at`."""
    failure = state.attempt.failure
    undated = failure is not None and failure.logged_at is None and not state.attempt.iterations
    return undated and reported is not None and at > reported + _LEAST_GAP

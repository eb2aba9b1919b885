"""The rule `slowdown`: iterations take a few percent longer than before, and continue to.

The one slow node on record cost 5.6 % (docs/development/incident-record.md, "Slowdowns", S1), which a threshold of 10 %
would miss. Times are compared only at the same batch size and sequence length, because a ramp-up is planned. Evaluation
and saving are subtracted (step_seconds), and the first iterations of an attempt are skipped. Each level shift is one
incident: the new level is learned, a further shift is a further incident, and the return resolves it. After a restart
the new attempt is compared with the ones before.
"""

import math
from collections.abc import Sequence

from megatron_monitor.breakdown import saves
from megatron_monitor.breakdown.account import TimerLine
from megatron_monitor.breakdown.profile import ENGINE, Profile
from megatron_monitor.breakdown.window import explanation
from megatron_monitor.detectors.base import CLEAR, UNKNOWN, Finding
from megatron_monitor.detectors.slowdown.memory import SUM_LIMIT, Segment, Shift, SlowdownMemory, SlowdownSettings
from megatron_monitor.detectors.slowdown.messages import before_hang, ratio, slower, slower_saves
from megatron_monitor.detectors.slowdown.shifts import UNITS, watch
from megatron_monitor.parsers.events.setup import CLOCK
from megatron_monitor.run.nodes import nodes_of
from megatron_monitor.run.state import RunState
from megatron_monitor.run.steps.step import Step
from megatron_monitor.statistics import levels
from megatron_monitor.statistics.levels import Level
from megatron_monitor.statistics.median import deviation, median, median_high

__all__ = ["Segment", "Slowdown", "SlowdownSettings", "before_hang", "ratio"]
_WARM_UP = 3  # first iterations of an attempt that are skipped: compilation and caches make them up to 35 % slower
# Compared with earlier attempts: another allocation of nodes differs by more than iterations do.
_BETWEEN_ATTEMPTS = 0.04
_SUM_LIMIT = 1.5  # limit of the sums, in multiples of the decision limit
_TRACKS = 6  # remembered batch sizes of an attempt
_SEGMENTS = 40  # remembered attempts


def _layout_of(state: RunState, step: Step) -> str:
    """Return what must be equal in two attempts to compare them: model, layout over the GPUs, batch size, sequence
    length.
    """
    top = state.attempt.topology
    sizes = (
        top.layers, top.hidden_size, top.world_size,
        top.tensor_parallel_size, top.pipeline_parallel_size, top.micro_batch_size,
        step.batch_size or top.global_batch_size, step.sequence_length or top.sequence_length,
    )  # fmt: skip
    return "/".join("?" if size is None else str(size) for size in sizes)


def _begins_anew(state: RunState, step: Step) -> bool:
    """Return True if the attempt resumes nothing: a chain of trainings in one log without a line that distinguishes
    them.
    """
    first = state.attempt.first_iteration
    return state.after_finish or (first is not None and first <= step.interval)


class Slowdown(SlowdownMemory):
    """Compares the times of steps with the run's level."""

    def on_steps(self, state: RunState, steps: Sequence[Step], settings: SlowdownSettings) -> bool:
        """Process the steps' pure times. Return True if the finding may have changed."""
        attempt = state.attempt
        if self.attempt != attempt.number:
            if not any(step.counted for step in steps):
                return False
            self._begin(attempt.number)
        # a save ends a batch: these steps follow it
        saved = self.saves_seen != state.learned.checkpoints.saves
        changed = saved and self._compare_saves(state, steps[0].at, settings)
        usual = attempt.topology.global_batch_size, attempt.topology.sequence_length
        for step in steps:
            seconds, timed = self._seconds(step), step.timer_line
            if step.outside is not None:
                seconds = self.whole = step.outside[1]
                timed = timed or TimerLine(step.iteration, seconds, {ENGINE: (seconds - step.outside[0],) * 2})
            elif self.whole is not None:
                seconds = None  # more than steps lies between two lines
            if seconds is not None and self.steps > _WARM_UP:
                size = step.batch_size or usual[0], step.sequence_length or usual[1]
                if size != self.sizes:
                    self.sizes = size
                    changed |= self._change_key(f"{size[0]}/{size[1]}")
                    timed = None  # from a line of the previous size
                self.stretch = max(1, self.steps - self.timed_at)
                changed |= self._take(state, step, math.log(seconds), timed, settings)
                self.timed_at = self.steps
            elif timed is not None:
                self.window.add(timed)
            if self.shift is not None:
                changed |= self._explain(state, self.shift, timed)
        return changed

    def _begin(self, number: int) -> None:
        """Begin an attempt."""
        self.attempt, self.steps, self.tracks, self.key = number, 0, {}, ""
        self.timed_at, self.whole = 0, None
        self.sizes, self.reference = None, None
        self.window.restart()
        if self.shift is not None:
            self.shift.unsure = True

    def _compare_saves(self, state: RunState, at: float, settings: SlowdownSettings) -> bool:
        """Compare the last save with the ones before. Return True if the finding may have changed."""
        checkpoints, usual, before = state.learned.checkpoints, state.attempt.engine.gap.usual, self.slow_saves
        self.saves_seen = checkpoints.saves
        seconds = None if self.reference is None else math.exp(self.reference)
        if usual:  # DeepSpeed's own figures exclude the time between its steps
            seconds = median(usual)
        self.slow_saves = saves.updated(before, checkpoints.durations, seconds, at, settings.threshold)
        return self.slow_saves is not before

    def _begin_segment(self, state: RunState, track: Level, step: Step) -> None:
        """Compare an attempt with the ones before it, because its level is now known."""
        assert track.value is not None
        key, at, iteration = _layout_of(state, step), step.at, step.iteration
        segment = Segment(
            key, self.attempt, state.attempt.first_iteration or iteration, track.value, at,
            nodes_of(state)[:512], state.attempt.environment.get("CUDA_LAUNCH_BLOCKING"), self.window.usual(),
            state.attempt.environment.get(CLOCK),
        )  # fmt: skip
        previous = self._previous_segments(segment)
        self.segments.append(segment)
        del self.segments[:-_SEGMENTS]
        shift = self.shift
        if shift is not None and shift.unsure:
            shift.unsure = False
            if not previous or track.value - shift.base < (shift.level - shift.base) / 2:
                self.shift = None
            else:
                shift.level = track.value
        elif previous and not (key.strip("?/") == "" and _begins_anew(state, step)):
            self._compare(track, segment, previous, at)

    def _previous_segments(self, segment: Segment) -> list[Segment]:
        """Return the segments of earlier attempts that are comparable with this one."""
        return [
            known for known in self.segments
            if known.key == segment.key and known.attempt != segment.attempt and not known.differs_by_setting(segment)
        ]  # fmt: skip

    def _compare(self, track: Level, segment: Segment, previous: list[Segment], at: float) -> bool:
        """Return True if the attempt is slower than the ones before. If its noise hides that, more iterations decide:
        the error of its level falls with the root of their number.
        """
        assert track.value is not None
        known = [one.level for one in previous]
        usual = median_high(known)
        spread = deviation(known, usual) if len(known) >= 3 else 0.0
        limit = max(math.log1p(_BETWEEN_ATTEMPTS), 3 * spread, UNITS * (track.unit or 0.0))
        noise = 2 * track.scale * math.sqrt(levels.LEARN / min(track.seen, levels.WINDOW))
        slower, hidden = track.value - usual > max(limit, noise), track.value - usual > limit
        segment.undecided = hidden and not slower and track.seen < levels.WINDOW
        if slower:
            self.shift = Shift(segment.first_iteration, at, usual, track.value, "launch")
        return slower

    def _renew_segment(self, track: Level) -> None:
        """Update the attempt's best level, with which later attempts are compared: the level of a slow node is not a
        standard.
        """
        if self.segments and self.segments[-1].attempt == self.attempt and track.value is not None:
            segment = self.segments[-1]
            segment.level = min(segment.level, track.value)
            if segment.profile is None and self.shift is None:
                segment.profile = self.window.usual()  # timers are printed seldom

    def _other_attempts(self) -> Profile | None:
        """Return the profile of the last comparable attempt with timers."""
        here = self.segments[-1] if self.segments else None
        return next((segment.profile for segment in reversed(self.segments[:-1])
                     if here is not None and segment.key == here.key and segment.attempt != here.attempt
                     and segment.profile is not None), None)  # fmt: skip

    def _seconds(self, step: Step) -> float | None:
        """Return the time of a step once: DeepSpeed's engine prints it in the line after the one that counts it."""
        seconds = step.seconds
        if step.counted:
            self.steps += 1
            if seconds is None:
                self.untimed = step.iteration
        elif self.untimed != step.iteration:
            return None
        elif seconds is not None:
            self.untimed = None
        return seconds if seconds is not None and seconds > 0 else None

    def _explain(self, state: RunState, shift: Shift, timed: TimerLine | None) -> bool:
        """Name the cause of the added time if the log's timers show it. Return True if it differs from before."""
        if shift.unsure:
            return False
        if shift.cause is None:
            others = self._other_attempts() if shift.reason == "launch" else None
            shift.cause = explanation(others or self.window.before(shift.onset, drifted=shift.reason == "drift"))
        stages = state.attempt.topology.pipeline_parallel_size
        return shift.cause.update(self.window, shift.onset, timed is not None, stages)

    def _take(
        self, state: RunState, step: Step, time: float, timed: TimerLine | None, settings: SlowdownSettings
    ) -> bool:
        """Compare a step with the level of its batch size. `time` is a logarithm, `timed` its timers."""
        track = self.tracks.get(self.key)
        if track is None:
            track = self.tracks[self.key] = Level()
            while len(self.tracks) > _TRACKS:
                del self.tracks[next(iter(self.tracks))]
        known, changed = track.value is not None, False
        # during a shift each step may end it
        suspect = SUM_LIMIT if self.shift is None else 0.0
        look = track.add(time, step.iteration, _SUM_LIMIT * SUM_LIMIT, suspect, 4 * settings.threshold, self.stretch)
        if timed is not None:
            self.window.add(timed)
        if track.value is None or not look:
            return False  # nearly all steps of a healthy run end here
        if not known:
            self._begin_segment(state, track, step)
            changed = True  # launch_blocking.py compares it, too
        else:
            if track.seen % levels.MARK_EVERY == 0:
                self._renew_segment(track)
            segment = self.segments[-1] if self.segments else None
            if segment is not None and segment.undecided and segment.attempt == self.attempt and self.shift is None:
                changed = self._compare(track, segment, self._previous_segments(segment), step.at)
            changed |= watch(self, track, step, state.attempt.topology.sequence_grows, settings)
        self.reference = track.value
        return changed

    def _change_key(self, key: str) -> bool:
        """The batch size changed: earlier findings cannot be compared with later steps."""
        self.key = key
        self.reference = None
        self.window.restart()
        ended = self.shift is not None
        if self.shift is not None and not self.shift.unsure:
            self.shift = None
        return ended

    def evaluate(self, state: RunState, _now: float, settings: SlowdownSettings) -> Finding:
        """Fire while a slower level lasts."""
        if self.shift is not None:
            if self.shift.unsure:
                return UNKNOWN
            return slower(state, self, self.shift, settings)
        if self.slow_saves is not None:
            return slower_saves(state, self.slow_saves)
        return CLEAR

"""Computes the progress timeout of a run's present phase: learned from the run, or else a default."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from msgspec import Struct, field

from megatron_monitor.detectors.base import RuleSettings
from megatron_monitor.model.flops import computed_tflops
from megatron_monitor.parsers.events import Event
from megatron_monitor.parsers.programs import program_of
from megatron_monitor.run.phases import ENDED, EVALUATION, PARTS, SAVE, Phase
from megatron_monitor.run.silence import SILENT_EVALUATION, SILENT_RESULT, SILENT_SAVE
from megatron_monitor.run.state import RunState
from megatron_monitor.run.steps.pace import likely_interval
from megatron_monitor.scalars import Positive, Seconds
from megatron_monitor.statistics.median import median


class _Row(NamedTuple):
    """The timeout of a phase: `factor` times the longest silence of the run in this phase, at least `minimum` seconds;
    `first` seconds before any silence is known. None: the configured value.
    """

    first: float
    factor: float | None
    minimum: float | None
    source: str
    """What was measured, for the reason of the timeout."""


_TABLE: dict[Phase, _Row] = {
    # An index was built for 52 min without a line; NCCL's watchdog reports most hangs earlier. In a further attempt
    # other nodes may have to read and compile again what was cached.
    "starting": _Row(7200.0, 4.0, 600.0, "gap seen while starting"),
    "loading": _Row(7200.0, 4.0, 600.0, "gap seen while loading"),  # 2.3 TB from a slow file system
    # it compiles and allocates: 198 s were seen at 1.3 s an iteration, 2,234 s at 895
    "first_iteration": _Row(7200.0, 4.0, 600.0, "gap seen while first_iteration"),
    "training": _Row(
        0.0, None, None, "gap between two reports"
    ),  # by the pace; before the pace is known, as first_iteration
    "evaluating": _Row(1800.0, None, None, "evaluation step seen"),  # the number of its iterations may be unknown
    # All ranks write to a shared file system, so saves vary.
    "saving": _Row(1800.0, 4.0, None, "save step seen"),
    "exiting": _Row(600.0, 2.0, None, "gap seen while exiting"),  # final save and evaluation have phases of their own
    # Engines start, compile, capture graphs; an answer of 32,000 tokens takes 20 to 50 min. Rollouts have long tails.
    "rollout": _Row(7200.0, 3.0, None, "silence"),
    "reward": _Row(3600.0, 3.0, None, "silence"),  # a service that other jobs share, code that is run to its time limit
    "logprobs": _Row(3600.0, 3.0, None, "silence"),  # log probabilities and values: they compile
    "sync": _Row(3600.0, 3.0, None, "silence"),  # groups of processes are made, a large model is gathered and loaded
}
FIRST: Mapping[Phase, float] = MappingProxyType(
    {phase: row.first for phase, row in _TABLE.items() if phase != "training"}
)


class HangSettings(RuleSettings, frozen=True, kw_only=True):
    """Settings of the rule `hang`."""

    factor: Positive = 3.0
    """Timeout divided by the expected gap: iterations vary by less than 1 %, but hiccups of twice the gap occur."""
    minimum: Seconds = 60.0
    """Minimum timeout in seconds: a shorter silence of a fast run is not worth a page."""
    first: Mapping[Phase, Seconds] = field(default_factory=lambda: dict(FIRST))
    """Phase -> first timeout in seconds; other phases have their defaults."""

    def first_of(self, phase: str) -> float:
        """Return the first timeout of a phase; 0 if it has none."""
        return self.first.get(phase, FIRST.get(phase, 0.0))  # type: ignore[call-overload,no-any-return]


# Seconds until the result of an evaluation or a save that no line announces, before any is known: NCCL's watchdog ends
# a job by default after as long, and most evaluations and saves of such programs take less.
_UNANNOUNCED = 600.0
_FIRST_LATE = 1800.0  # seconds after which a run is shown as late, because first timeouts are long
# Additional seconds for a first line after several or an unknown number of iterations: 9,750 s was seen.
_FIRST_LINE = 7200.0
_ANY_INTERVAL = 200  # iterations from the first step, which is printed at any interval, to the next line
_HICCUP_FACTOR = 1.5  # times the longest of the last 50 gaps: usual hiccups are not a hang
# Times the longest silence of the last day that was reported as a hang and ended in progress: most are saves without a
# line, and saves vary (206 to 335 s in one run).
_ENDED_FACTOR = 2.0
# Maximum timeout learned from single silences, unless twice the first timeout of the phase is longer: where ranks wait
# for each other, NCCL's watchdog ends the job after 10 to 30 min, so a longer silence is not normal.
_LONGEST_SINGLE = 1800.0
# Minimum timeout of a part of a step, times the longest of the last 64 steps, because a late or missing line hides
# which part runs; times the part's longest duration if several of its lines have come.
_STEP_FACTOR = 1.5
_USUAL_TFLOPS = 40.0  # per GPU: V100s reached 30 to 50, newer GPUs more
_MIN_TFLOPS = 4.0  # small models on a few GPUs and slow networks: 1.7 was seen (97 s per iteration, a line per 100)
_CERTAIN = 2  # consecutive lines of one part that prove it: a late line comes alone
_MIN_SILENCES = 5  # observed silences of a part, before its maximum is known
_MAX_GAP = 7 * 86400.0  # maximum seconds of an expected gap: a larger printed number is not a duration
_WORK = {SILENT_SAVE: "saving", SILENT_EVALUATION: "evaluating", SILENT_RESULT: "evaluating"}
"""Kind of silence without a line about its phase -> the phase."""


class Timeout(Struct, frozen=True):
    """A progress timeout: seconds, the expected gap, and the reason."""

    seconds: float
    expected: float | None
    reason: str
    late: float | None = None
    """Seconds until the run is late, if less than half of the timeout."""

    @property
    def late_after(self) -> float:
        """Half the timeout, but at least twice the expected gap: one slow iteration is not late."""
        half = self.seconds / 2 if self.late is None else min(self.late, self.seconds / 2)
        return min(self.seconds, max(half, 2 * (self.expected or 0.0)))


def progress_timeout(state: RunState, settings: HangSettings) -> Timeout:
    """Return the progress timeout of the run's present phase: what the phase usually needs.

    The timeout is at least a silence that was reported as a hang and ended in progress.
    """
    return _Phase(state, settings).timeout()


def lawful(state: RunState, kind: type[Event], settings: HangSettings) -> float:
    """Return the seconds that may have passed before an event without a time: the timeout of the present phase, and at
    least the first timeout of the phase that the event ends, because silences of other lines prove nothing.
    """
    phase = "evaluating" if kind in EVALUATION else "saving" if kind in SAVE else state.attempt.phase
    return max(progress_timeout(state, settings).seconds, settings.first_of(phase))


def _longest(*timeouts: Timeout | None) -> Timeout:
    """Return the longest of the given timeouts, the first one of equals."""
    return max(filter(None, timeouts), key=lambda one: one.seconds)


class _Phase:
    """Computes the timeout of a run's present phase from its past."""

    def __init__(self, state: RunState, settings: HangSettings) -> None:
        self.state, self.settings, self.attempt = state, settings, state.attempt
        self.silences, self.predicted = state.learned.silences, state.attempt.pace.predicted()
        self.interval = state.attempt.log_interval or state.attempt.topology.log_interval or state.learned.log_interval
        """Iterations per line: of this attempt, as printed, or of the attempt before."""
        self.only_dicts = (
            state.attempt.step_source == "trainer"
            and state.attempt.trainer.total is None
            and not self.state.learned.checkpoints.saves
        )
        """True: the loop prints dicts of values, and no save was reported."""
        self.generates_in_parts = bool(state.attempt.parts.reported or state.attempt.parts.printed)
        died = state.ends and not any(end.iterations for end in state.ends)
        self.began_before = state.attempt.number > 0 and not died
        """True: an earlier attempt has reached its steps, so the duration of the set-up is known."""

    def timeout(self) -> Timeout:
        """Return the timeout within its bounds, and at least a silence that was reported as a hang and ended."""
        allowed, attempt = self.usual(), self.attempt
        if allowed.expected is not None and allowed.seconds > (longest := max(_MAX_GAP, self.settings.minimum)):
            allowed = Timeout(longest, None, "the longest that is learned")
        kinds = [attempt.phase] if attempt.silent_work is None else [attempt.phase, attempt.silent_work]
        most = max(map(self.most, kinds))
        ended = self.silences.longest_forgiven(kinds, most, self.state.progress_at or 0.0)
        if ended is None:
            return allowed
        reason = f"a silence of {ended:.4g} s was reported as a hang before, and ended"
        return _longest(allowed, Timeout(min(most, _ENDED_FACTOR * ended), allowed.expected, reason))

    def usual(self) -> Timeout:
        """Return the timeout by what the phase took, or may take."""
        phase = self.attempt.phase
        if phase in PARTS and self.attempt.parts.reported:
            return self.part()
        by_phase = {"training": self.at_work, "evaluating": self.evaluation, "saving": self.saving}
        return by_phase.get(phase, self.set_up)()

    # --- rows of the table ---

    def first(self, phase: str, expected: float | None = None, reason: str = "") -> Timeout:
        """Return the first timeout of a phase."""
        seconds = self.settings.first_of("first_iteration" if phase == "training" else phase)
        return Timeout(
            max(self.settings.minimum, seconds), expected, reason or f"first default for {phase}", _FIRST_LATE
        )

    def most(self, kind: str) -> float:
        """Return the maximum timeout that is learned from single silences."""
        phase = _WORK.get(kind, kind)
        return max(_LONGEST_SINGLE, 2 * self.settings.first_of(phase))

    def learned(self, kind: str, source: str = "") -> Timeout | None:
        """Return the timeout by the last silences of the kind; None without any. An outlier counts up to a bound."""
        seen, row = self.silences.values(kind), _TABLE[_WORK.get(kind, kind)]  # type: ignore[index]
        if not seen:
            return None
        factor, minimum = row.factor or self.settings.factor, row.minimum or 0.0
        if minimum and not self.began_before:
            factor, minimum = 2.0, 0.0  # its own first silences, in addition to the first timeout
        longest, most = max(seen), max(self.most(kind), factor * median(seen))
        seconds = max(self.settings.minimum, minimum, min(factor * longest, most))
        return Timeout(seconds, longest, f"{factor:g} x the longest {source or row.source}")

    # --- the start-up, and the end ---

    def set_up(self) -> Timeout:
        """Return the timeout of a set-up phase or of the end; longer if the first line comes late."""
        attempt, late = self.attempt, self.later_line()
        phase = "exiting" if attempt.phase in ENDED else attempt.phase
        allowed = self.learned(phase)
        if allowed is None or phase == "exiting" or not self.began_before:
            allowed = _longest(self.first(phase), allowed)
        base = (_TABLE["starting"].minimum or 0.0) if self.began_before else self.settings.first_of("first_iteration")
        if not late or base + late <= allowed.seconds:
            return allowed
        reason = f"the first line comes after {self.interval or 'an unknown number of'} iterations"
        shown = _FIRST_LATE + (late / 2 if self.interval else 0.0)
        return Timeout(base + late, None, reason, None if attempt.number else shown)

    def later_line(self) -> float:
        """Return an upper bound of the seconds from the first iteration to the first line; 0 if each has a line.

        Programs that do not report the begin of the training (DeepSpeed alone, HF Trainer) are in the set-up then.
        """
        attempt, every = self.attempt, self.interval
        step_source = attempt.step_source or self.state.learned.step_source
        silent = attempt.phase == "starting" and step_source in ("engine", "trainer")
        if every == 1 or not (silent or attempt.phase == "first_iteration"):
            return 0.0
        before = self.state.last_baseline
        if before is not None:
            return self.settings.factor * ((every or 1) - 1) * float(before)
        if every is None:
            return _FIRST_LINE / 2
        top = attempt.topology  # without a known pace: the model's work at a low rate
        at_one = computed_tflops(top, 1.0, top.global_batch_size, top.sequence_length, attempt.format)
        if at_one is None:
            return _FIRST_LINE
        work = (every - 1) * at_one[1]
        return max(work / _USUAL_TFLOPS, min(work / _MIN_TFLOPS, _FIRST_LINE))

    # --- between two lines of the loop ---

    def training(self) -> Timeout:
        """Return the timeout by the predicted pace."""
        attempt, settings, predicted = self.attempt, self.settings, self.predicted
        if predicted is None and attempt.log_interval is not None:
            predicted = attempt.step_timer.stamps.most  # no interval was long enough for the pace yet
        if predicted is None:
            return self.second_line()
        gap = predicted * (self.interval or 1)
        # Lines that always come later than their printed times show: for a part of a step, or one step of a hundred.
        expected = gap * max(1.0, attempt.gap_ratios.usual or 1.0)
        hiccup = (attempt.gap_ratios.longest or 0.0) * gap
        return _longest(
            Timeout(settings.factor * expected, expected, f"{settings.factor:g} x {expected:.4g} s expected"),
            Timeout(
                min(_HICCUP_FACTOR * hiccup, self.most("training")), expected,
                f"{_HICCUP_FACTOR:g} x the longest gap of the last 50",
            ),
            self.with_rollout(expected) if attempt.trainer.generates else None,
            self.unannounced(expected) if self.only_dicts else None,
            Timeout(settings.minimum, expected, "the minimum"),
        )  # fmt: skip

    def with_rollout(self, expected: float) -> Timeout:
        """Return the timeout of steps with a rollout: a few steps do not show the maximum."""
        window, factor = self.attempt.pace.window, _TABLE["rollout"].factor or 1.0
        if len(window) < _MIN_SILENCES:
            return self.first("evaluating", expected, "first default for steps that generate")
        return Timeout(factor * max(window), expected, f"{factor:g} x the longest step, which includes a rollout")

    def second_line(self) -> Timeout:
        """Return the timeout with at most one known line, which is an outlier: 5 x, as NVRx before it has learned."""
        attempt, known, minimum = self.attempt, self.interval, self.settings.minimum
        first, trainer = attempt.first_iteration_seconds, attempt.step_source == "trainer"
        if first is None:
            if trainer and len(self.silences.values("training")) >= _MIN_SILENCES:  # only dicts: no line has the step
                evaluating = self.first("evaluating")
                trained, evaluated = self.learned("training") or evaluating, self.learned("evaluating") or evaluating
                return _longest(trained, evaluated, self.unannounced(None) if self.only_dicts else None)
            return self.first("training", None, "no iteration time known yet")
        if known is not None:
            return Timeout(max(minimum, 5 * first * known), first * known, "5 x the first iteration")
        if attempt.first_iteration == 1 and trainer:  # printed independently of `logging_steps`
            seconds = max(minimum, self.settings.first_of("first_iteration"), 5 * first)
            return Timeout(seconds, None, "only one line is known, so the iterations between two lines are unknown")
        number = attempt.first_iteration or 0  # programs report multiples of their interval, and the first step as well
        guess = likely_interval(number) if number > 1 else _ANY_INTERVAL
        expected = first * guess
        # A wrong guess must not hide a hang for half a day.
        most = max(2 * _FIRST_LATE, 5 * first, 1.5 * expected if number > 1 else 0.0)
        reason = f"5 x the first iteration, if a line is written every {guess}"
        return Timeout(max(minimum, min(5 * expected, most)), expected, reason)

    def at_work(self) -> Timeout:
        """Return the timeout of training in which an evaluation or a save may run without a line."""
        training, kind = self.training(), self.attempt.silent_work
        if kind is None:
            return training
        work, saving = _WORK[kind], kind == SILENT_SAVE
        if kind == SILENT_RESULT:
            known = self.learned(kind), self.learned("evaluating")
            return _longest(training, *known, self.unannounced(training.expected))
        silent = program_of(self.attempt.format).silent
        asked = saving or not (silent or self.attempt.step_source == "trainer")
        guess = "after a step, which no line would report" if silent else "at the end of an epoch"
        where = f"after a step at which the arguments request to {'save' if saving else 'evaluate'}" if asked else guess
        learned, first = self.learned(kind, f"gap seen {where}"), None
        if not asked or (learned is None and saving):  # it is unknown after which steps it evaluates
            first = self.first(work, training.expected, f"first default for {work}, {where}")
        return _longest(training, learned, first)

    def unannounced(self, expected: float | None) -> Timeout:
        """Return the timeout of an evaluation or a save that no line announces."""
        return Timeout(_UNANNOUNCED, expected, "first default for an evaluation or a save, which no line announces")

    # --- evaluation, saving, parts of a step ---

    def evaluation(self) -> Timeout:
        """Return the timeout between two lines of an evaluation, or until the next iteration."""
        attempt, learned = self.attempt, self.learned("evaluating")
        allowed = learned or self.first_evaluation()
        if learned is None and attempt.evaluation_due and not attempt.validations:
            # the arguments request an evaluation; only the next lines show whether there is data for it
            training = self.training()
            reason = f"an iteration ({training.reason}) and {allowed.reason}"
            return Timeout(training.seconds + allowed.seconds, training.expected, reason)
        if (attempt.evaluation_sets is None and attempt.validations_since) or attempt.step_source == "trainer":
            # The last set is unknown, and an iteration follows it: HF Trainer prints a result at the end.
            return _longest(allowed, self.training())
        return _longest(allowed, self.stretched() if self.generates_in_parts else None)  # it generates as a step does

    def first_evaluation(self) -> Timeout:
        """Return the first timeout of an evaluation. A forward pass takes at most as long as an iteration."""
        settings, iters = self.settings, self.attempt.topology.eval_iters
        if self.predicted is not None and iters:
            expected = self.predicted * iters
            seconds = max(settings.minimum, settings.factor * expected)
            return Timeout(seconds, expected, f"{settings.factor:g} x {iters} evaluation iterations")
        first = self.first("evaluating")
        if self.generates_in_parts or not self.attempt.iterations:
            # in reinforcement learning it is a rollout; before the first step its engines start
            return _longest(first, self.first("rollout", reason=first.reason))
        return first

    def saving(self) -> Timeout:
        """Return the timeout of a save. Without a printed end, the next line may be the loop's next step.

        The files of a trainer's first save teach nothing, because the largest may come last.
        """
        attempt, learned = self.attempt, self.learned("saving")
        if learned is None or (attempt.step_source == "trainer" and not self.state.learned.checkpoints.saves):
            return self.first("saving")
        ends = program_of(attempt.format).reports_saves or self.predicted is None
        return learned if ends else _longest(learned, self.training())

    def part(self) -> Timeout:
        """Return the timeout of a part of an RL step by the run's past."""
        attempt, first = self.attempt, not self.attempt.iterations
        expected, what = self.part_before()
        factor, least = _TABLE["rollout"].factor or 1.0, self.settings.minimum
        default = self.first(attempt.phase, expected)
        if expected is None or (first and not attempt.number and factor * expected < default.seconds):
            return default
        if first:  # in a further attempt engines start and kernels compile again
            row = _TABLE["starting"]
            factor, least = row.factor or 1.0, max(least, row.minimum or 0.0)
        usual = Timeout(factor * expected, expected, f"{factor:g} x {what}")
        return _longest(usual, Timeout(least, expected, "the minimum"), None if first else self.stretched(expected))

    def part_before(self) -> tuple[float | None, str]:
        """Return (longest silence of this part, how it is known).

        It is observed, or, with few observations, from printed seconds of the part and of the parts that the log does
        not distinguish from it.
        """
        phase = self.attempt.phase
        longest, followed = self.silences.longest(phase), len(self.silences.values(phase))
        if followed < _MIN_SILENCES:
            printed = self.attempt.parts.printed_with(phase)
            if printed is not None and printed > (longest or 0.0):
                return printed, f"what {phase} took at most"
        return longest, f"the longest silence of the last {followed} in {phase}"

    def stretched(self, expected: float | None = None) -> Timeout:
        """Return the timeout by the longest step, or by this part if it is certain which part runs.

        The longest step is measured or printed, or else the sum of the observed parts.
        """
        attempt, factor, which = self.attempt, _STEP_FACTOR, "step"
        printed, window = attempt.parts.printed.get(attempt.phase), attempt.pace.window
        if printed is not None and attempt.parts.lines >= _CERTAIN:
            longest, which = max(printed.values), attempt.phase
        else:
            longest = (
                max(window) if window else sum(self.silences.longest(part) or 0.0 for part in attempt.parts.reported)
            )
        return Timeout(factor * longest, expected, f"{factor:g} x the longest {which}")

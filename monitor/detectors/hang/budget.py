"""How long a run may show no progress in its present phase: learned where it has a past, else a stated default."""

from collections.abc import Sequence

from msgspec import Struct

from megatron_monitor.model.flops import computed_tflops
from megatron_monitor.parsers.dialects import dialect_of
from megatron_monitor.parsers.events import Event
from megatron_monitor.run.phases import EVALUATION, PARTS, SAVE
from megatron_monitor.run.silence import SILENT_EVALUATION, SILENT_SAVE
from megatron_monitor.run.state import RunState
from megatron_monitor.run.steps.pace import likely_interval
from megatron_monitor.statistics.median import median
from megatron_monitor.units import Seconds


class HangSettings(Struct, frozen=True):
    """Thresholds, each with its reason."""

    factor: float = 3.0
    """Budget over the expected gap: steady iterations vary by under 1 %, hiccups of twice the gap happen."""
    minimum: Seconds = 60.0
    """No budget is shorter: a page for a minute's silence of a fast run would be noise."""
    starting: Seconds = 7200.0
    """Set-up without a past: an index was built for 52 min without a word. Of most hangs there NCCL's own watchdog
    tells earlier, after 10 to 30 min."""
    loading: Seconds = 7200.0
    """Loading a checkpoint without a past: 2.3 TB from a slow file system."""
    first_iteration: Seconds = 7200.0
    """The first iteration compiles and allocates; 160 s was seen at 134 s per iteration, 198 s at 1.3 s, and 2,234 s
    where the next one took 895."""
    first_late: Seconds = 1800.0
    """Of these three: from here on the run is shown as late."""
    first_line: Seconds = 7200.0
    """More for a first line that stands for several iterations, or nobody knows how many: one each 9,750 s was seen."""
    startup_factor: float = 4.0
    """Budget of set-up, loading and the first iteration over the longest gap that earlier launches showed there."""
    startup_minimum: Seconds = 600.0
    """... but no less: kernels compiled in the last launch and cached may have to be compiled again."""
    evaluating: Seconds = 1800.0
    """The first evaluation where the number of its iterations is not known."""
    saving: Seconds = 1800.0
    """The first save: it may be the first time the file system is written to by all ranks."""
    saving_factor: float = 4.0
    """Saves vary more than iterations, the file system is shared (docs/incident-record.md, "Budgets of silence")."""
    hiccup_factor: float = 1.5
    """Over the longest gap of the last 50: hiccups that were always there are no hang."""
    ended_factor: float = 2.0
    """Over the longest silence of the last day that was called a hang and ended in progress: most are saves of which
    no line tells, and saves vary; 206 to 335 s were seen in one run."""
    longest: Seconds = 1800.0
    """What was learned from single silences makes no budget longer than this, or than twice the first default of its
    phase: where ranks wait for each other NCCL's watchdog ends the job after 10 to 30 min, so that a longer silence is
    no habit. The usual gap of a run may be longer; its budget is a factor over it all the same."""
    buffering_factor: float = 2.0
    """Over the longest silence that a launcher's buffer explained: IDEFICS saw bursts 10 to 20 minutes apart."""
    exiting: Seconds = 600.0
    """After the last iteration: final save and evaluation have phases of their own, the rest is tidying up."""
    rollout: Seconds = 7200.0
    """The first rollout: engines start, compile and capture graphs; an answer of 32,000 tokens takes 20 to 50 min."""
    reward: Seconds = 3600.0
    """The first scoring: a model or a service that other jobs share, code that is run to its time limit."""
    logprobs: Seconds = 3600.0
    """The first log probabilities and values: they compile."""
    sync: Seconds = 3600.0
    """The first weights handed over: groups of processes are made, a large model is gathered and loaded."""
    part_factor: float = 3.0
    """Budget of a part of a step (reinforcement learning) over the longest of the last 50: rollouts have long tails."""
    step_factor: float = 1.5
    """... but no less than this over the longest step of the last 64: where a line came late, or none did, the phase is
    another part, and the next line is a step away. Of a part of which several lines have come, over that part's longest
    time: one answer may be as long as a whole rollout was."""


_USUAL_TFLOPS = 40.0  # per GPU: V100s reached 30 to 50 in the record, whatever is newer more
_LEAST_TFLOPS = 4.0  # small models on a few GPUs, and slow networks: 1.7 was seen (97 s an iteration, a line each 100)
_CERTAIN = 2  # lines of one part after another: a late one comes alone
_FEW = 5  # parts of a step that were followed: fewer do not show how long they may take
_LONGEST = 7 * 86400.0  # seconds: an expectation beyond it is of a number that is no time; 1e300 would be for ever
_WORK = {SILENT_SAVE: "saving", SILENT_EVALUATION: "evaluating"}
"""Kinds of silence in which no line tells of the phase -> the phase."""


class Budget(Struct, frozen=True):
    """Seconds of silence that a phase may take, the gap expected, and where the figure comes from."""

    seconds: float
    expected: float | None
    reason: str
    late: float | None = None
    """When it is late, if that is not half of it: a first default waits long before anybody is called."""

    @property
    def late_after(self) -> float:
        """Half the budget, but never before twice the expected gap: one slow iteration is not late."""
        half = self.seconds / 2 if self.late is None else min(self.late, self.seconds / 2)
        return min(self.seconds, max(half, 2 * (self.expected or 0.0)))


def budget(state: RunState, settings: HangSettings) -> Budget:
    """How long the run may show no progress in its present phase: what the phase usually needs, but no less than a
    silence that was called a hang here and ended.
    """
    launch = state.launch
    allowed = _usual(state, settings)
    if allowed.expected is not None and allowed.seconds > (longest := max(_LONGEST, settings.minimum)):
        allowed = Budget(longest, None, "the longest that is learned")
    kinds = [launch.phase] if launch.silent_work is None else [launch.phase, launch.silent_work]
    most = max(_most(kind, settings) for kind in kinds)
    ended = state.past.silences.longest_forgiven(kinds, most, state.progress_at or 0.0)
    if ended is None or (seconds := min(most, settings.ended_factor * ended)) <= allowed.seconds:
        return allowed
    return Budget(seconds, allowed.expected, f"a silence of {ended:.4g} s was called a hang before, and ended")


def lawful(state: RunState, kind: type[Event], settings: HangSettings) -> float:
    """Seconds that may have passed before an event of which no line says when it was: the budget of the present phase,
    but no less than the first default of what the event ends. What was learned from other lines proves nothing here.
    """
    phase = "evaluating" if kind in EVALUATION else "saving" if kind in SAVE else state.launch.phase
    return max(budget(state, settings).seconds, float(getattr(settings, phase, 0.0)))


def _usual(state: RunState, settings: HangSettings) -> Budget:
    """By what the phase took, or may take."""
    launch = state.launch
    if launch.phase in PARTS and launch.parts.told:
        return _part(state, settings)
    if launch.phase == "training":
        return _silently_at_work(state, settings, _training(state, settings))
    if launch.phase == "evaluating":
        return _evaluation(state, settings)
    if launch.phase == "saving":
        return _saving(state, settings)
    return _set_up(state, settings)


def _saving(state: RunState, settings: HangSettings) -> Budget:
    """A save. Of a program that prints no end of it its last word may be heard already, and the loop at its next step.
    The files of a trainer's first one teach nothing: the largest may be yet to come.
    """
    learned = _learned(state, settings, "saving", settings.saving_factor, "save step seen")
    if learned is None or (state.launch.driver == "trainer" and not state.past.checkpoints.saves):
        return Budget(max(settings.minimum, settings.saving), None, "first default for saving")
    if dialect_of(state.launch.dialect).reports_saves or state.launch.pace.predicted() is None:
        return learned
    return _longer(learned, _training(state, settings))


def _most(kind: str, settings: HangSettings) -> float:
    """The longest budget that single silences may teach."""
    return max(settings.longest, 2 * float(getattr(settings, _WORK.get(kind, kind), 0.0)))


def _learned(state: RunState, settings: HangSettings, kind: str, factor: float, what: str) -> Budget | None:
    """`factor` over the longest of the last silences of the kind, if any; one that stands alone counts to a bound."""
    seen = state.past.silences.values(kind)
    if not seen:
        return None
    longest, most = max(seen), max(_most(kind, settings), factor * median(seen))
    return Budget(max(settings.minimum, min(factor * longest, most)), longest, f"{factor:g} x the longest {what}")


def _longer(one: Budget, other: Budget) -> Budget:
    return one if one.seconds >= other.seconds else other


def _part(state: RunState, settings: HangSettings) -> Budget:
    """Of a part of a step, by the run's own past."""
    phase, first = state.launch.phase, not state.launch.iterations
    expected, what = _part_before(state)
    default = settings.first_iteration if phase == "training" else float(getattr(settings, phase))
    if expected is None or (first and not state.launch.number and settings.part_factor * expected < default):
        return Budget(max(settings.minimum, default), expected, f"first default for {phase}", settings.first_late)
    factor, least = settings.part_factor, settings.minimum
    if first:  # of a further launch: engines start and kernels compile anew
        factor, least = settings.startup_factor, max(settings.minimum, settings.startup_minimum)
    else:
        stretched = _stretched(state, settings, expected)
        if stretched.seconds > max(factor * expected, least):
            return stretched
    if factor * expected < least:
        return Budget(least, expected, "the minimum")
    return Budget(factor * expected, expected, f"{factor:g} x {what}")


def _part_before(state: RunState) -> tuple[float | None, str]:
    """How long this part was silent at most, and how that is known: while it was followed, and while that was seldom,
    by the seconds that the steps print of it and of what no line tells apart from it.
    """
    launch, silences = state.launch, state.past.silences
    longest, followed = silences.longest(launch.phase), len(silences.values(launch.phase))
    if followed < _FEW:
        printed = launch.parts.printed_with(launch.phase)
        if printed is not None and printed > (longest or 0.0):
            return printed, f"what {launch.phase} took at most"
    return longest, f"the longest silence of the last {followed} in {launch.phase}"


def _stretched(state: RunState, settings: HangSettings, expected: float | None = None) -> Budget:
    """By what may go on without a line although nothing is wrong: the longest step, or this part where it is certain
    that it is this one. As measured or printed, else as the parts that were followed add up; 0 while nothing is known.
    """
    launch, which = state.launch, "step"
    printed, window = launch.parts.printed.get(launch.phase), launch.pace.window
    if printed is not None and launch.parts.lines >= _CERTAIN:
        longest, which = max(printed.values), launch.phase
    else:
        longest = max(window) if window else sum(state.past.silences.longest(part) or 0.0 for part in launch.parts.told)
    return Budget(settings.step_factor * longest, expected, f"{settings.step_factor:g} x the longest {which}")


def _set_up(state: RunState, settings: HangSettings) -> Budget:
    """A phase of the start-up, or the end; longer where the first line comes late."""
    number = state.launch.number
    allowed, late = _started(state, settings), _later_line(state, settings)
    base = settings.startup_minimum if _began_before(state) else settings.first_iteration
    if not late or base + late <= allowed.seconds:
        return allowed
    every = _interval(state)
    reason = f"the first line comes after {every or 'an unknown number of'} iterations"
    shown = settings.first_late + (late / 2 if every else 0.0)
    return Budget(base + late, None, reason, None if number else shown)


def _began_before(state: RunState) -> bool:
    """Whether a launch before has shown how long it takes to begin: those that died sooner have not."""
    died = state.ends and not any(end.iterations for end in state.ends)
    return state.launch.number > 0 and not died


def _started(state: RunState, settings: HangSettings) -> Budget:
    """A phase of the start-up, or the end, by its own past."""
    phase, ends = state.launch.phase, state.launch.phase == "exiting"
    default = max(settings.minimum, getattr(settings, phase, settings.exiting))
    what = f"gap seen while {phase}"
    again = _began_before(state) and not ends
    learned = _learned(state, settings, phase, settings.startup_factor if again else 2.0, what)
    if learned is not None and again:
        # launches before have shown how long it takes; other nodes may have to compile and to read anew
        least = Budget(max(settings.minimum, settings.startup_minimum), learned.expected, learned.reason)
        return _longer(learned, least)
    if learned is not None and learned.seconds > default:
        return learned
    return Budget(default, None, f"first default for {phase}", None if ends else settings.first_late)


def _interval(state: RunState) -> int | None:
    """Iterations that a line stands for: of this launch, as the log says, or of the launch before; None if unknown."""
    launch = state.launch
    return launch.log_interval or launch.topology.log_interval or state.past.log_interval


def _later_line(state: RunState, settings: HangSettings) -> float:
    """How much later than its first iteration a launch writes its first line, generously: 0 where each has a line.

    Programs that do not say when the training begins (DeepSpeed alone, HF Trainer) are still starting up then.
    """
    silent = state.launch.phase == "starting" and (state.launch.driver or state.past.driver) in ("engine", "trainer")
    every = _interval(state)
    if every == 1 or not (silent or state.launch.phase == "first_iteration"):
        return 0.0
    before = state.last_baseline
    if before is not None:
        return settings.factor * ((every or 1) - 1) * float(before)
    if every is None:
        return settings.first_line / 2
    top = state.launch.topology  # no launch has shown its pace: what the model takes at a rate that is low
    at_one = computed_tflops(top, 1.0, top.global_batch_size, top.sequence_length, state.launch.dialect)
    if at_one is None:
        return settings.first_line
    work = (every - 1) * at_one[1]
    return max(work / _USUAL_TFLOPS, min(work / _LEAST_TFLOPS, settings.first_line))


def _training(state: RunState, settings: HangSettings) -> Budget:
    """Between two lines of the loop, as its pace predicts."""
    launch, predicted = state.launch, state.launch.pace.predicted()
    if predicted is None and launch.log_interval is not None:
        predicted = launch.watch.stamps.most  # no stretch was long enough yet to tell the pace
    if predicted is None:
        return _second_line(state, settings)
    gap = predicted * (_interval(state) or 1)
    # Lines that always come later than the times in them tell: those of part of a step, of one step in a hundred.
    expected = gap * max(1.0, launch.gap_ratios.usual or 1.0)
    worst, held = launch.gap_ratios.longest, state.past.silences.held
    allowed = Budget(settings.factor * expected, expected, f"{settings.factor:g} x {expected:.4g} s expected")
    if worst is not None and (seconds := settings.hiccup_factor * worst * gap) > allowed.seconds:
        seconds = max(allowed.seconds, min(seconds, _most("training", settings)))
        allowed = Budget(seconds, expected, f"{settings.hiccup_factor:g} x the longest gap of the last 50")
    if held is not None and settings.buffering_factor * held > allowed.seconds:
        reason = f"the launcher holds lines back for up to {held:.4g} s"
        allowed = Budget(settings.buffering_factor * held, expected, reason)
    if launch.trainer.generates:
        allowed = _longer(allowed, _with_rollout(launch.pace.window, expected, settings))
    return _longer(allowed, Budget(settings.minimum, expected, "the minimum"))


def _with_rollout(window: Sequence[float], expected: float, settings: HangSettings) -> Budget:
    """Of steps that hold a rollout, which has a long tail: a few do not show how long the next one may take."""
    if len(window) < _FEW:
        return Budget(settings.evaluating, expected, "first default for steps that generate")
    seconds = settings.part_factor * max(window)
    return Budget(seconds, expected, f"{settings.part_factor:g} x the longest step, which holds a rollout")


def _second_line(state: RunState, settings: HangSettings) -> Budget:
    """One line at most is known, and the first is an outlier: 5 x is what NVRx allows before it has learned."""
    launch, known = state.launch, _interval(state)
    first = launch.first_iteration_seconds
    if first is None and launch.driver == "trainer" and len(state.past.silences.values("training")) >= _FEW:
        return _unnumbered(state, settings)
    if first is None:
        seconds = max(settings.minimum, settings.first_iteration)
        return Budget(seconds, None, "no iteration time known yet", settings.first_late)
    if known is not None:
        return Budget(max(settings.minimum, 5 * first * known), first * known, "5 x the first iteration")
    if launch.first_iteration == 1 and launch.driver == "trainer":  # reported whatever `logging_steps` says
        allowed = max(settings.minimum, settings.first_iteration, 5 * first)
        return Budget(allowed, None, "one line is known, not yet how many iterations lie between two")
    guess = likely_interval(launch.first_iteration or 1)  # programs report multiples of their interval
    expected = first * guess
    # A guess that is too large must not hide a hang for half a day.
    most = max(2 * settings.first_late, 1.5 * expected, 5 * first)
    seconds = max(settings.minimum, min(5 * expected, most))
    return Budget(seconds, expected, f"5 x the first iteration, if a line is written every {guess}")


def _unnumbered(state: RunState, settings: HangSettings) -> Budget:
    """Dicts of HF Trainer without a bar or heading: no line tells the step, and its evaluations are silent."""
    reports = _learned(state, settings, "training", settings.factor, "gap between two reports")
    evaluations = _learned(state, settings, "evaluating", settings.factor, "evaluation seen")
    first = Budget(max(settings.minimum, settings.evaluating), None, "first default for evaluating")
    return _longer(reports or first, evaluations or first)


def _silently_at_work(state: RunState, settings: HangSettings, training: Budget) -> Budget:
    """The budget of training where an evaluation or a save may be going on of which no line tells: no data for it, a
    fork, another rank's log.
    """
    kind = state.launch.silent_work
    if kind is None:
        return training
    saving = kind == SILENT_SAVE
    silent = dialect_of(state.launch.dialect).silent
    asked = saving or not (silent or state.launch.driver == "trainer")
    guess = "behind a step, of which no line would tell" if silent else "at the end of an epoch"
    where = f"where the arguments ask to {'save' if saving else 'evaluate'}" if asked else guess
    factor = settings.saving_factor if saving else settings.factor
    allowed = _learned(state, settings, kind, factor, f"gap seen {where}")
    if not asked or (allowed is None and saving):  # nobody knows which of them is one at which it evaluates
        first = Budget(getattr(settings, _WORK[kind]), training.expected, f"first default for {_WORK[kind]}, {where}")
        allowed = first if allowed is None else _longer(allowed, first)
    return training if allowed is None else _longer(training, allowed)


def _evaluation(state: RunState, settings: HangSettings) -> Budget:
    """Between two signs of an evaluation, and of the iteration that may come instead."""
    launch = state.launch
    learned = _learned(state, settings, "evaluating", settings.factor, "evaluation step seen")
    allowed = learned or _first_evaluation(state, settings)
    if learned is None and launch.evaluation_due and not launch.validations:
        # the arguments ask for an evaluation; whether there is any data for it only the next lines tell
        training = _training(state, settings)
        reason = f"an iteration ({training.reason}) and {allowed.reason}"
        return Budget(training.seconds + allowed.seconds, training.expected, reason)
    first = launch.evaluation_sets is None and launch.validations_since
    if first or launch.driver == "trainer":
        # Which set is the last is unknown, and an iteration comes after it: HF Trainer prints a result at its end.
        return _longer(allowed, _training(state, settings))
    if launch.parts.told or launch.parts.printed:  # it generates as a step does
        return _longer(allowed, _stretched(state, settings))
    return allowed


def _first_evaluation(state: RunState, settings: HangSettings) -> Budget:
    predicted, iters = state.launch.pace.predicted(), state.launch.topology.eval_iters
    if predicted is not None and iters:
        # An evaluation iteration is a forward pass: a training iteration bounds it from above.
        expected = predicted * iters
        seconds = max(settings.minimum, settings.factor * expected)
        return Budget(seconds, expected, f"{settings.factor:g} x {iters} evaluation iterations")
    default, late = settings.evaluating, None
    if state.launch.parts.told or state.launch.parts.printed or not state.launch.iterations:
        # of reinforcement learning it is a rollout; before the first step of a launch its engines start
        default, late = max(default, settings.rollout), settings.first_late
    return Budget(max(settings.minimum, default), None, "first default for evaluating", late)

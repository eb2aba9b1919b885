"""How long a run may show no progress in its present phase: learned where it has a past, else a stated default."""

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
    return _Phase(state, settings).budget()


def lawful(state: RunState, kind: type[Event], settings: HangSettings) -> float:
    """Seconds that may have passed before an event of which no line says when it was: the budget of the present phase,
    but no less than the first default of what the event ends. What was learned from other lines proves nothing here.
    """
    phase = "evaluating" if kind in EVALUATION else "saving" if kind in SAVE else state.launch.phase
    return max(budget(state, settings).seconds, float(getattr(settings, phase, 0.0)))


def _longest(*budgets: Budget | None) -> Budget:
    """The longest of those that apply, the first one of equals."""
    return max(filter(None, budgets), key=lambda one: one.seconds)


class _Phase:
    """The present phase of a run, from whose past its budget is worked out."""

    def __init__(self, state: RunState, settings: HangSettings) -> None:
        self.state, self.settings, self.launch = state, settings, state.launch
        self.silences, self.predicted = state.past.silences, state.launch.pace.predicted()
        self.interval = state.launch.log_interval or state.launch.topology.log_interval or state.past.log_interval
        """Iterations that a line stands for: of this launch, as the log says, or of the launch before."""
        self.generates_in_parts = bool(state.launch.parts.told or state.launch.parts.printed)
        died = state.ends and not any(end.iterations for end in state.ends)
        self.began_before = state.launch.number > 0 and not died
        """A launch before has shown how long it takes to begin: those that died sooner have not."""

    def budget(self) -> Budget:
        """What the phase takes, within bounds, and no less than what was called a hang and ended."""
        allowed, settings, launch = self.usual(), self.settings, self.launch
        if allowed.expected is not None and allowed.seconds > (longest := max(_LONGEST, settings.minimum)):
            allowed = Budget(longest, None, "the longest that is learned")
        kinds = [launch.phase] if launch.silent_work is None else [launch.phase, launch.silent_work]
        most = max(map(self.most, kinds))
        ended = self.silences.longest_forgiven(kinds, most, self.state.progress_at or 0.0)
        if ended is None:
            return allowed
        reason = f"a silence of {ended:.4g} s was called a hang before, and ended"
        return _longest(allowed, Budget(min(most, settings.ended_factor * ended), allowed.expected, reason))

    def usual(self) -> Budget:
        """By what the phase took, or may take."""
        phase = self.launch.phase
        if phase in PARTS and self.launch.parts.told:
            return self.part()
        by_phase = {"training": self.at_work, "evaluating": self.evaluation, "saving": self.saving}
        return by_phase.get(phase, self.set_up)()

    def default(
        self, name: str, seconds: float | None = None, expected: float | None = None, late: float | None = None
    ) -> Budget:
        """A first default, where there is no past."""
        seconds = getattr(self.settings, name) if seconds is None else seconds
        return Budget(max(self.settings.minimum, seconds), expected, f"first default for {name}", late)

    def most(self, kind: str) -> float:
        """The longest budget that single silences may teach."""
        return max(self.settings.longest, 2 * float(getattr(self.settings, _WORK.get(kind, kind), 0.0)))

    def learned(self, kind: str, factor: float, what: str) -> Budget | None:
        """`factor` over the longest of the last silences of the kind; one that stands alone counts to a bound."""
        seen = self.silences.values(kind)
        if not seen:
            return None
        longest, most = max(seen), max(self.most(kind), factor * median(seen))
        seconds = max(self.settings.minimum, min(factor * longest, most))
        return Budget(seconds, longest, f"{factor:g} x the longest {what}")

    # --- the start-up, and the end ---

    def set_up(self) -> Budget:
        """A phase of the start-up, or the end; longer where the first line comes late."""
        allowed, late, settings = self.started(), self.later_line(), self.settings
        base = settings.startup_minimum if self.began_before else settings.first_iteration
        if not late or base + late <= allowed.seconds:
            return allowed
        reason = f"the first line comes after {self.interval or 'an unknown number of'} iterations"
        shown = settings.first_late + (late / 2 if self.interval else 0.0)
        return Budget(base + late, None, reason, None if self.launch.number else shown)

    def started(self) -> Budget:
        """A phase of the start-up, or the end, by its own past."""
        phase, settings, ends = self.launch.phase, self.settings, self.launch.phase == "exiting"
        again = self.began_before and not ends
        learned = self.learned(phase, settings.startup_factor if again else 2.0, f"gap seen while {phase}")
        if learned is not None and again:
            # launches before have shown how long it takes; other nodes may have to compile and to read anew
            return _longest(learned, Budget(settings.startup_minimum, learned.expected, learned.reason))
        seconds = getattr(settings, phase, settings.exiting)
        default = self.default(phase, seconds, late=None if ends else settings.first_late)
        return _longest(default, learned)

    def later_line(self) -> float:
        """How much later than its first iteration a launch writes its first line, generously: 0 where each has a line.

        Programs that do not say when the training begins (DeepSpeed alone, HF Trainer) are still starting up then.
        """
        launch, settings, every = self.launch, self.settings, self.interval
        driver = launch.driver or self.state.past.driver
        silent = launch.phase == "starting" and driver in ("engine", "trainer")
        if every == 1 or not (silent or launch.phase == "first_iteration"):
            return 0.0
        before = self.state.last_baseline
        if before is not None:
            return settings.factor * ((every or 1) - 1) * float(before)
        if every is None:
            return settings.first_line / 2
        top = launch.topology  # no launch has shown its pace: what the model takes at a rate that is low
        at_one = computed_tflops(top, 1.0, top.global_batch_size, top.sequence_length, launch.dialect)
        if at_one is None:
            return settings.first_line
        work = (every - 1) * at_one[1]
        return max(work / _USUAL_TFLOPS, min(work / _LEAST_TFLOPS, settings.first_line))

    # --- between two lines of the loop ---

    def training(self) -> Budget:
        """As the pace predicts."""
        launch, settings, predicted = self.launch, self.settings, self.predicted
        if predicted is None and launch.log_interval is not None:
            predicted = launch.watch.stamps.most  # no stretch was long enough yet to tell the pace
        if predicted is None:
            return self.second_line()
        gap = predicted * (self.interval or 1)
        # Lines that always come later than the times in them tell: those of part of a step, of one step in a hundred.
        expected = gap * max(1.0, launch.gap_ratios.usual or 1.0)
        hiccup, held = (launch.gap_ratios.longest or 0.0) * gap, self.silences.held or 0.0
        return _longest(
            Budget(settings.factor * expected, expected, f"{settings.factor:g} x {expected:.4g} s expected"),
            Budget(
                min(settings.hiccup_factor * hiccup, self.most("training")), expected,
                f"{settings.hiccup_factor:g} x the longest gap of the last 50",
            ),
            Budget(settings.buffering_factor * held, expected, f"the launcher holds lines back for up to {held:.4g} s"),
            self.with_rollout(expected) if launch.trainer.generates else None,
            Budget(settings.minimum, expected, "the minimum"),
        )  # fmt: skip

    def with_rollout(self, expected: float) -> Budget:
        """Of steps that hold a rollout, which has a long tail: a few do not show how long the next one may take."""
        window, factor = self.launch.pace.window, self.settings.part_factor
        if len(window) < _FEW:
            return Budget(self.settings.evaluating, expected, "first default for steps that generate")
        reason = f"{factor:g} x the longest step, which holds a rollout"
        return Budget(factor * max(window), expected, reason)

    def second_line(self) -> Budget:
        """One line at most is known, and the first is an outlier: 5 x is what NVRx allows before it has learned."""
        launch, known, settings = self.launch, self.interval, self.settings
        first, minimum, trainer = launch.first_iteration_seconds, settings.minimum, launch.driver == "trainer"
        if first is None and trainer and len(self.silences.values("training")) >= _FEW:
            return self.unnumbered()
        if first is None:
            seconds = max(minimum, settings.first_iteration)
            return Budget(seconds, None, "no iteration time known yet", settings.first_late)
        if known is not None:
            return Budget(max(minimum, 5 * first * known), first * known, "5 x the first iteration")
        if launch.first_iteration == 1 and trainer:  # reported whatever `logging_steps` says
            seconds = max(minimum, settings.first_iteration, 5 * first)
            return Budget(seconds, None, "one line is known, not yet how many iterations lie between two")
        guess = likely_interval(launch.first_iteration or 1)  # programs report multiples of their interval
        expected = first * guess
        # A guess that is too large must not hide a hang for half a day.
        most = max(2 * settings.first_late, 1.5 * expected, 5 * first)
        reason = f"5 x the first iteration, if a line is written every {guess}"
        return Budget(max(minimum, min(5 * expected, most)), expected, reason)

    def unnumbered(self) -> Budget:
        """Dicts of HF Trainer without a bar or heading: no line tells the step, and its evaluations are silent."""
        factor, first = self.settings.factor, self.default("evaluating")
        reports = self.learned("training", factor, "gap between two reports")
        evaluations = self.learned("evaluating", factor, "evaluation seen")
        return _longest(reports or first, evaluations or first)

    def at_work(self) -> Budget:
        """Of training where an evaluation or a save may be going on of which no line tells: no data for it, a fork,
        another rank's log.
        """
        training, kind, settings = self.training(), self.launch.silent_work, self.settings
        if kind is None:
            return training
        work, saving = _WORK[kind], kind == SILENT_SAVE
        silent = dialect_of(self.launch.dialect).silent
        asked = saving or not (silent or self.launch.driver == "trainer")
        guess = "behind a step, of which no line would tell" if silent else "at the end of an epoch"
        where = f"where the arguments ask to {'save' if saving else 'evaluate'}" if asked else guess
        learned = self.learned(kind, settings.saving_factor if saving else settings.factor, f"gap seen {where}")
        first = None
        if not asked or (learned is None and saving):  # nobody knows which of them is one at which it evaluates
            first = Budget(getattr(settings, work), training.expected, f"first default for {work}, {where}")
        return _longest(training, learned, first)

    # --- evaluation, saving, parts of a step ---

    def evaluation(self) -> Budget:
        """Between two signs of an evaluation, and of the iteration that may come instead."""
        launch, factor = self.launch, self.settings.factor
        learned = self.learned("evaluating", factor, "evaluation step seen")
        allowed = learned or self.first_evaluation()
        if learned is None and launch.evaluation_due and not launch.validations:
            # the arguments ask for an evaluation; whether there is any data for it only the next lines tell
            training = self.training()
            reason = f"an iteration ({training.reason}) and {allowed.reason}"
            return Budget(training.seconds + allowed.seconds, training.expected, reason)
        if (launch.evaluation_sets is None and launch.validations_since) or launch.driver == "trainer":
            # Which set is the last is unknown, and an iteration comes after it: HF Trainer prints a result at its end.
            return _longest(allowed, self.training())
        return _longest(allowed, self.stretched() if self.generates_in_parts else None)  # it generates as a step does

    def first_evaluation(self) -> Budget:
        """An evaluation iteration is a forward pass: a training iteration bounds it from above."""
        settings, iters = self.settings, self.launch.topology.eval_iters
        if self.predicted is not None and iters:
            expected = self.predicted * iters
            seconds = max(settings.minimum, settings.factor * expected)
            return Budget(seconds, expected, f"{settings.factor:g} x {iters} evaluation iterations")
        if self.generates_in_parts or not self.launch.iterations:
            # of reinforcement learning it is a rollout; before the first step of a launch its engines start
            seconds = max(settings.evaluating, settings.rollout)
            return self.default("evaluating", seconds, late=settings.first_late)
        return self.default("evaluating")

    def saving(self) -> Budget:
        """A save. Of a program that prints no end of it its last word may be heard already, and the loop at its next
        step. The files of a trainer's first one teach nothing: the largest may be yet to come.
        """
        launch = self.launch
        learned = self.learned("saving", self.settings.saving_factor, "save step seen")
        if learned is None or (launch.driver == "trainer" and not self.state.past.checkpoints.saves):
            return self.default("saving")
        ends = dialect_of(launch.dialect).reports_saves or self.predicted is None
        return learned if ends else _longest(learned, self.training())

    def part(self) -> Budget:
        """Of a part of a step (reinforcement learning), by the run's own past."""
        launch, settings, first = self.launch, self.settings, not self.launch.iterations
        expected, what = self.part_before()
        factor, least = settings.part_factor, settings.minimum
        default = settings.first_iteration if launch.phase == "training" else float(getattr(settings, launch.phase))
        if expected is None or (first and not launch.number and factor * expected < default):
            return self.default(launch.phase, default, expected, settings.first_late)
        if first:  # of a further launch: engines start and kernels compile anew
            factor, least = settings.startup_factor, max(least, settings.startup_minimum)
        usual = Budget(factor * expected, expected, f"{factor:g} x {what}")
        return _longest(usual, Budget(least, expected, "the minimum"), None if first else self.stretched(expected))

    def part_before(self) -> tuple[float | None, str]:
        """How long this part was silent at most, and how that is known: while it was followed, and while that was
        seldom, by the seconds that the steps print of it and of what no line tells apart from it.
        """
        phase = self.launch.phase
        longest, followed = self.silences.longest(phase), len(self.silences.values(phase))
        if followed < _FEW:
            printed = self.launch.parts.printed_with(phase)
            if printed is not None and printed > (longest or 0.0):
                return printed, f"what {phase} took at most"
        return longest, f"the longest silence of the last {followed} in {phase}"

    def stretched(self, expected: float | None = None) -> Budget:
        """By what may go on without a line although nothing is wrong: the longest step, or this part where it is
        certain that it is this one. As measured or printed, else as the parts that were followed add up.
        """
        launch, factor, which = self.launch, self.settings.step_factor, "step"
        printed, window = launch.parts.printed.get(launch.phase), launch.pace.window
        if printed is not None and launch.parts.lines >= _CERTAIN:
            longest, which = max(printed.values), launch.phase
        else:
            longest = max(window) if window else sum(self.silences.longest(part) or 0.0 for part in launch.parts.told)
        return Budget(factor * longest, expected, f"{factor:g} x the longest {which}")

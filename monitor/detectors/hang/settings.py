"""The thresholds of the hang detector: what is allowed where nothing is known, and how far beyond what is."""

from msgspec import Struct

from monitor.units import Seconds


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
    """More for a first line that stands for several iterations, or for nobody knows how many: a line every 9,750 s was
    seen."""
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

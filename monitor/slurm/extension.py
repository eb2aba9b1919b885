"""Asks Slurm about the jobs of a core's runs, and adds to a run what only Slurm knows about the end of an attempt."""

from megatron_monitor.config import Config
from megatron_monitor.core import Core
from megatron_monitor.core.extension import Extension, Runtime
from megatron_monitor.core.runs import Run
from megatron_monitor.run.job import proofs
from megatron_monitor.slurm import JobAnswered, JobQuestion
from megatron_monitor.slurm.client import SlurmClient
from megatron_monitor.slurm.jobs import Jobs, asked_of
from megatron_monitor.system.clock import Clock


class SlurmJobs(Extension):
    """Has no saved state: after a restart Slurm is asked again."""

    def __init__(self, core: Core, clock: Clock) -> None:
        self._core, self._clock = core, clock
        self._jobs = Jobs(core.config.slurm)
        self._client = SlurmClient(clock)

    def configure(self, config: Config) -> None:
        """Use new settings. Answers to old questions are dropped."""
        self._client.stop()
        self._jobs, self._client = Jobs(config.slurm), SlurmClient(self._clock)

    def look(self, now: float) -> None:
        """Process answers, then ask what is due."""
        for answers in self._client.answers():
            for answer in answers:
                self.answered(answer, now)
        if self._client.available and (questions := self.questions(now)):
            self._client.ask(questions)

    def questions(self, now: float) -> list[JobQuestion]:
        """Return the questions that are due."""
        return self._jobs.questions(self._core.runs, self._core.sources, now)

    def answered(self, message: JobAnswered, now: float) -> None:
        """Process an answer of Slurm."""
        core = self._core
        run = core.runs.get(message.question.run)
        if run is not None:
            core.counts.add("slurm_calls_total", self._jobs.take(run, message, core.sources, now))
            core.request(run)

    def before_judgement(self, run: Run, now: float) -> None:
        """Add to the run how its attempt ended, if the log does not show it."""
        asked = asked_of(run)
        if now < asked.ends_at:
            return
        asked.ends_at = float("inf")
        if asked.ends != run.state.attempt.number:
            return  # another attempt has begun meanwhile
        core = self._core
        core.of_run(run, lambda: core.judge.take(run, proofs(run.state), "slurm", now, True))
        core.request(run)

    def stop(self) -> None:
        """Stop. A running call ends by itself."""
        self._client.stop()


def for_core(core: Core, runtime: Runtime) -> SlurmJobs:
    """Return the extension of a core. Its client's thread starts with the first question."""
    return SlurmJobs(core, runtime.clock)

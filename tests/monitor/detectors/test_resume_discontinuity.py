"""Resume discontinuity: what a message names, and how much of the past is kept. When it fires, the corpus shows."""

import pytest

from megatron_monitor.detectors.base import RuleSettings
from megatron_monitor.detectors.resume_discontinuity import ResumeDiscontinuity
from megatron_monitor.run.state import Attempt, RunState
from megatron_monitor.run.steps.step import Step
from tests.monitor.playing import given, play


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a learning rate that starts from scratch", "learning rate"),
        ("consumed samples that do not go on", "consumed samples"),
        ("a batch size that does not go on", "batch size 1024"),
        ("from scratch beside a checkpoint is told", "checkpoint of iteration 60"),
    ],
)
def test_what_does_not_go_on_is_named(name: str, words: str) -> None:
    """The counter, the size or the checkpoint."""
    assert words in play(given("resumes", name)).firing("resume_discontinuity").summary


def test_the_past_is_thin_and_true() -> None:
    """A hundred thousand lines fit in a thousand."""
    rule, state = ResumeDiscontinuity(), RunState("run", attempt=Attempt(step_source="iteration"))
    steps = (Step(iteration=n, at=0.0, counted=True, learning_rate=1e-4 * n) for n in range(1, 100_001))
    rule.on_steps(state, list(steps), RuleSettings())
    assert len(rule.lines) <= 1024

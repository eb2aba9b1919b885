"""The formats that come with the program: each file's samples give what they say."""

import pytest

from megatron_monitor.parsers.declared.schema import Format, built_in
from tests.parsers.iteration_lines import read

EXPRESSIONS = [(spec.rule, spec) for log_format in built_in() for spec in log_format.lines if spec.regex]
SAMPLES = [sample.line for log_format in built_in() for sample in log_format.samples]


@pytest.mark.parametrize("log_format", built_in(), ids=lambda log_format: log_format.name)
def test_samples(log_format: Format) -> None:
    """By the rules of all formats, in their order: nobody else takes the line."""
    from megatron_monitor.parsers.registry import RULES
    from megatron_monitor.parsers.samples import differences  # all rules, which main() makes

    assert list(log_format.problems()) == []
    assert [problem for spec in log_format.lines for problem in spec.problems()] == []
    assert list(differences(log_format, RULES)) == []


def test_steps_of_olmo_core_keep_their_order() -> None:
    """Each step has a heading, each fifth one values: a step without values is told before the next one."""
    heading = (
        "2026-01-01 00:00:{0:02d}.000\thost:0\tolmo_core.train.callbacks.console_logger:64\tINFO\t[step={0}/20,epoch=1"
    )
    values = ",eta=5m]\n    train/CE loss=2.5\n    optim/total grad norm=0.5\n"
    found = read("".join(heading.format(step) + (values if step % 5 == 0 else "]\n") for step in range(1, 17)))
    assert [event.iteration for event in found[:15]] == list(range(1, 16))
    assert [event.iteration for event in found if event.lm_loss == 2.5] == [5, 10, 15]

"""The formats that come with the program: each file's samples give what they say."""

import pytest

from megatron_monitor.parsers.declared.schema import Dialect, built_in

EXPRESSIONS = [(spec.rule, spec) for dialect in built_in() for spec in dialect.lines if spec.regex]
SAMPLES = [sample.line for dialect in built_in() for sample in dialect.samples]


@pytest.mark.parametrize("dialect", built_in(), ids=lambda dialect: dialect.name)
def test_samples(dialect: Dialect) -> None:
    """By the rules of all formats, in their order: nobody else takes the line."""
    from megatron_monitor.parsers.registry import RULES
    from megatron_monitor.parsers.samples import differences  # all rules, which main() makes

    assert list(dialect.problems()) == []
    assert [problem for spec in dialect.lines for problem in spec.problems()] == []
    assert list(differences(dialect, RULES)) == []

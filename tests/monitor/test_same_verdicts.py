"""Which incidents begin, grow worse and end in every simulated fault and in every real log, and where.

Held as text in tests/golden/verdicts.json: one line a transition. A change that means to change some:
`pytest FILE --golden`, and review the difference.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatron_monitor.config import default_config
from megatron_monitor.incidents import Transition
from megatron_monitor.judgement import Judge, Judged
from megatron_monitor.parsers.reader import SourceReader
from megatron_monitor.replay import replay
from megatron_monitor.run.state import RunState
from megatron_monitor.simulate import DIALECTS, FAULTS, Fault, Scenario, timeline
from tests.conftest import REAL_LOGS, real_logs

OF_ROLLOUTS = {"hang_rollout", "slow_rollout"}
"""Faults that Megatron's trainings cannot have: test_trainer_scenarios.py plays them."""
GOLDEN = Path(__file__).parents[1] / "golden" / "verdicts.json"


def _line(transition: Transition) -> str:
    """Severity in capitals where a person would be notified."""
    severity = transition.severity if transition.quiet else transition.severity.upper()
    onset = "" if transition.onset_iteration is None else f", since {transition.onset_iteration}"
    return f"{transition.iteration or 'start'}: {transition.incident} {transition.status} {severity}{onset}"


def _found(text: bytes) -> list[str]:
    """Transitions as the log is replayed, then what fires after it was read as a backlog that nobody watched."""
    judge, reader = Judge(default_config(), repeats=False), SourceReader()
    entries = [*reader.feed(text), *reader.flush()]
    lines = [_line(item) for _, item in replay(judge, "run", {"a.log": entries}) if item is not None]
    read = Judged(RunState(name="run"))
    judge.take(read, entries, "a.log", 1000.0, False)
    read.state.live = True
    return [*lines, *(f"backlog: {item.incident} {item.severity}" for item in judge.judge(read, 1001.0))]


def _simulated() -> Iterator[tuple[str, bytes]]:
    dialects = sorted(DIALECTS)
    for index, kind in enumerate(sorted(FAULTS.keys() - OF_ROLLOUTS)):
        for fp16, dialect in ((False, "bigscience"), (True, dialects[index % len(dialects)])):
            scenario = Scenario(dialect=dialect, fp16=fp16, seed=index, eval_interval=150 if index % 2 else 0)
            texts = timeline(_struck(scenario, kind))
            yield f"{kind} {dialect}{' fp16' * fp16}", b"".join(emission.text.encode() for emission in texts)


def _struck(scenario: Scenario, kind: str) -> Scenario:
    return type(scenario)(
        dialect=scenario.dialect, fp16=scenario.fp16, seed=scenario.seed, eval_interval=scenario.eval_interval,
        iterations=420, faults=(Fault(kind, 250, factor=1.1),),
    )  # fmt: skip


def _real() -> Iterator[tuple[str, bytes]]:
    for path in real_logs():
        yield str(path.relative_to(REAL_LOGS)), path.read_bytes()


def _compare(name: str, logs: Iterator[tuple[str, bytes]], golden: bool) -> None:
    found = {title: lines for title, text in logs if (lines := _found(text))}
    known = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if golden:
        GOLDEN.write_text(json.dumps({**known, name: found}, indent=1, sort_keys=True) + "\n")
        return
    assert found == known[name]


def test_simulated_faults(request: pytest.FixtureRequest) -> None:
    """Each fault in two dialects, with and without a loss scale."""
    _compare("simulated", _simulated(), request.config.getoption("--golden"))


@pytest.mark.real_logs
def test_real_logs(request: pytest.FixtureRequest) -> None:
    """Each file of the real logs by itself."""
    _compare("real", _real(), request.config.getoption("--golden"))

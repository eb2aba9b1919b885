"""What `replay --json` says of every simulated fault and every real log stays as it was written down, to six digits.

For changes that must change no verdict (speed above all). A change that is meant to: `pytest FILE --golden`, and look
at which names differ.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monitor.config import default_config
from monitor.judgement import Judge, Judged
from monitor.replay import replay
from monitor.run.state import RunState
from monitor.simulate import DIALECTS, FAULTS, Fault, Scenario, timeline
from parsers.events import LogEvent
from parsers.reader import SourceReader
from tests.conftest import REAL_LOGS

GOLDEN = Path(__file__).parents[1] / "golden" / "verdicts.json"


def _rounded(value: Any) -> Any:
    """Floats to six digits: the last one is the machine's."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


def _events(chunks: Iterable[bytes]) -> Iterator[LogEvent]:
    reader = SourceReader()
    for chunk in chunks:
        yield from reader.feed(chunk)
    yield from reader.flush()


def _digest(text: bytes) -> str:
    """Of what is told as the log is replayed, and of what the detectors find after a backlog that nobody watched."""
    judge = Judge(default_config(), repeats=False)
    said: list[Any] = []
    for player, transition in replay(judge, "run", {"a.log": _events([text])}):
        said.append(transition.to_json() if transition is not None else player.summary())
    read = Judged(RunState(name="run"))
    for entry in _events([text]):
        judge.take(read, [entry], "a.log", 1000.0, False)
    read.state.live = True
    said += [transition.to_json() for transition in judge.judge(read, 1001.0)]
    return hashlib.sha256(json.dumps(_rounded(said), sort_keys=True).encode()).hexdigest()[:16]


def _simulated() -> Iterator[tuple[str, bytes]]:
    dialects = sorted(DIALECTS)
    for index, kind in enumerate(sorted(FAULTS)):
        for fp16, dialect in ((False, "bigscience"), (True, dialects[index % len(dialects)])):
            scenario = Scenario(dialect=dialect, fp16=fp16, seed=index, eval_interval=150 if index % 2 else 0)
            texts = timeline(_struck(scenario, kind))
            yield f"{kind} {dialect}", b"".join(emission.text.encode() for emission in texts)


def _struck(scenario: Scenario, kind: str) -> Scenario:
    return type(scenario)(
        dialect=scenario.dialect, fp16=scenario.fp16, seed=scenario.seed, eval_interval=scenario.eval_interval,
        iterations=420, faults=(Fault(kind, 250, factor=1.1),),
    )  # fmt: skip


def _real() -> Iterator[tuple[str, bytes]]:
    for path in sorted(REAL_LOGS.rglob("*")):
        if path.suffix in (".log", ".out", ".err"):
            yield str(path.relative_to(REAL_LOGS)), path.read_bytes()


def _compare(name: str, logs: Iterator[tuple[str, bytes]], golden: bool) -> None:
    found = {title: _digest(text) for title, text in logs}
    known = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if golden:
        GOLDEN.write_text(json.dumps({**known, name: found}, indent=1, sort_keys=True) + "\n")
        return
    assert {title: digest for title, digest in found.items() if known[name].get(title) != digest} == {}
    assert found.keys() == known[name].keys()


def test_simulated_faults(request: pytest.FixtureRequest) -> None:
    """Each fault in two dialects, with and without a loss scale."""
    _compare("simulated", _simulated(), request.config.getoption("--golden"))


@pytest.mark.parametrize("kind", ["hang_evaluation", "hang_saving", "hang_starting", "crash_oom", "crash_without_exit"])
def test_no_deadline_comes_in_a_calm(kind: str) -> None:
    """A replay does not ask for deadlines before `calm_until`: none may lie there, in any phase, failed or not."""
    judge = Judge(default_config(), repeats=False)
    run = Judged(RunState(name="run", live=True))
    texts = [emission.text.encode() for emission in timeline(_struck(Scenario(eval_interval=50), kind))]
    calm = 0
    for at, entry in enumerate(_events(texts)):
        judge.take(run, [entry], "a.log", float(at), True)
        deadline = judge.deadline(run, float(at))
        assert deadline is None or deadline >= judge.calm_until(run)
        calm += judge.calm_until(run) > at
    assert calm


@pytest.mark.real_logs
def test_real_logs(request: pytest.FixtureRequest) -> None:
    """Each file of the real logs by itself."""
    _compare("real", _real(), request.config.getoption("--golden"))

"""A replay whose judge goes ahead and is taken back tells what one tells that judges each event by itself."""

import pytest

from megatron_monitor import replay as replays
from megatron_monitor.config import Config
from megatron_monitor.incidents import Transition
from megatron_monitor.judgement import Judge
from megatron_monitor.parsers.reader import SourceReader
from megatron_monitor.replay import replay
from megatron_monitor.simulate import Fault, Scenario, timeline


def _told(text: str, monkeypatch: pytest.MonkeyPatch, few: int) -> tuple[list[Transition], dict[str, object]]:
    monkeypatch.setattr(replays, "_FEW", few)
    monkeypatch.setattr(replays, "_MOST", 4 * few)
    reader = SourceReader()
    entries = [*reader.feed(text.encode()), *reader.flush()]
    played = list(replay(Judge(Config(), repeats=False), "run", {"log": entries}, after=7200.0))
    return [told for _, told in played if told is not None], played[-1][0].summary()


@pytest.mark.parametrize("dialect", ["bigscience", "gpt-neox"])
@pytest.mark.parametrize(
    "kind", ["slowdown_recovered", "loss_spike", "nan_loss", "overflow_storm", "crash_and_restart", "crash_oom"]
)
def test_nothing_is_told_otherwise(kind: str, dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever number of events the judge goes ahead by, transitions and the summary are those of one by one."""
    scenario = Scenario(iterations=300, dialect=dialect, faults=(Fault(kind, 150),))
    text = "".join(emission.text for emission in timeline(scenario))
    one_by_one = _told(text, monkeypatch, 10**9)
    assert one_by_one[0]
    for few in (1, 50):
        assert _told(text, monkeypatch, few) == one_by_one

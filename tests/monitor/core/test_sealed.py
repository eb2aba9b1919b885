"""What is sealed of a chart is saved once, as a part of its own, and goes with the charts that name it."""

from pathlib import Path

from megatron_monitor.charts.history import BUCKETS
from megatron_monitor.config import load
from megatron_monitor.core import Core
from megatron_monitor.core.saved import Saved, of_parts
from megatron_monitor.parsers.events import IterationLogged, LogEvent
from megatron_monitor.run.fold import fold
from megatron_monitor.serve.past import history_json
from tests.plain import Disk

GOLDEN = Path(__file__).parents[2] / "golden" / "state"


def begun() -> Core:
    """Two runs, which print the same."""
    core = Core(load("", ["runs=[{paths: [/l/*.log]}]"]))
    for name in ("one", "two"):
        core.runs.begin(name, 7.0).state.proven = True
    return core


def train(core: Core, first: int, last: int) -> None:
    """So many iterations of each run."""
    for name, run in core.runs.items():
        for number in range(first, last + 1):
            event = IterationLogged(iteration=number, seconds_per_iteration=2.0, lm_loss=1 / number)
            fold(run.state, LogEvent(number, "r", event, "line"), "a", float(number), True)
        core.touch(name)


def pieces(parts: dict[str, bytes | None] | dict[str, bytes]) -> dict[str, bytes | None]:
    """Of these parts, what is sealed."""
    return {name: value for name, value in parts.items() if name.startswith("\0charts\0")}


def shown(saved: Saved | Core) -> list[object]:
    """The charts of the runs."""
    return [history_json(run.state.history) for _, run in sorted(saved.runs.items())]


def test_what_is_sealed_is_saved_once() -> None:
    """A save after some more steps holds none of the charts' past; a restart finds all of it."""
    core, disk = begun(), Disk()
    train(core, 1, 300)
    disk.save(core, 300.0)
    assert pieces(disk.parts)
    train(core, 301, 310)
    parts = core.parts(310.0)
    assert not pieces(parts)
    assert len(parts["one"] or b"") < 20_000
    disk.parts |= {name: part for name, part in parts.items() if part}
    assert shown(disk.saved()) == shown(core)


def test_what_was_sealed_goes_when_buckets_merge_and_with_its_run() -> None:
    """Also over a restart; what the other run of the same content needs stays."""
    core, disk = begun(), Disk()
    train(core, 1, BUCKETS - 10)
    disk.save(core, 1000.0)
    before = pieces(disk.parts)
    again = Core(load("", ["runs=[{paths: [/l/*.log]}]"]))
    again.restore(disk.saved())
    for name in ("one", "two"):
        again.runs.claim(again.saved, name, name)
    train(again, BUCKETS - 9, BUCKETS + 100)
    disk.save(again, 1200.0)
    after = pieces(disk.parts)
    assert after
    assert before.keys().isdisjoint(after)
    assert shown(disk.saved()) == shown(again)
    again.runs.drop(again.runs["one"])
    again.touch("one")
    disk.save(again, 1300.0)
    assert pieces(disk.parts).keys() == {name for name in after if "\0two\0" in name}
    assert shown(disk.saved()) == shown(again)


def test_a_log_of_which_a_piece_is_missing_is_read_again() -> None:
    """No run without its past is taken for a whole one."""
    core, disk = begun(), Disk()
    train(core, 1, 200)
    disk.save(core, 200.0)
    lost = next(iter(pieces(disk.parts)))[-32:]
    problems: list[str] = []
    saved = of_parts({name: part for name, part in disk.parts.items() if not name.endswith(lost)}, problems)
    assert saved is not None
    assert not saved.runs
    assert len(problems) == 2
    assert "a piece of its charts is missing" in problems[0]

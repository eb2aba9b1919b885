"""The incidents of a run that had ended before it was watched are found while its log is read."""

import json
from pathlib import Path

import pytest

from megatron_monitor.core import Core
from megatron_monitor.follow.messages import CaughtUp
from megatron_monitor.serve.page import render_run
from megatron_monitor.simulate import Fault, Scenario
from tests.commands import command, log_of
from tests.monitor.core.test_core import NOW, core_for, data, opened

HOUR = 3600.0
SLOW = Scenario(
    format="megatron-lm", iterations=500, faults=(Fault("slowdown_recovered", 200, factor=1.06, length=60),)
)  # fmt: skip
CHUNK = 50_000


def shown(core: Core, *texts: bytes, age: float = HOUR) -> list[tuple[str, str, str, int | None]]:
    """What the API tells of a run whose files, last written `age` seconds ago, are read now."""
    paths = ["/l/a.out", "/l/a.err"][: len(texts)]
    for path in paths:
        core.handle(opened(path, NOW - age), NOW)
    for path, text in zip(paths, texts, strict=True):
        for at in range(0, len(text), CHUNK):
            core.handle(data(path, text[at : at + CHUNK], at, mtime=NOW - age), NOW)
        core.handle(CaughtUp(path, NOW), NOW)
    core.tick(NOW + 1)
    run = next(run for run in core.snapshot(NOW + 1).runs if run.run == "a")
    return [
        (item["time"][:19], item["incident"], item["status"], item.get("iteration")) for item in run.page["history"]
    ]


def test_an_old_log_has_the_incidents_that_replay_finds(tmp_path: Path) -> None:
    """With their times; none is open, and nobody is notified."""
    log, core = log_of(tmp_path / "a.log", SLOW), core_for()
    records = map(json.loads, command("replay", "--json", log).stdout.splitlines())
    said = [(r["time"][:19], r["incident"], r["status"], r["iteration"]) for r in records if "incident" in r]
    assert [item[1:3] for item in said] == [("slowdown", "firing"), ("slowdown", "resolved")]
    assert shown(core, log.read_bytes()) == said
    (run,) = core.snapshot(NOW + 1).runs
    assert (run.page["state"], run.page["incidents"], run.page["watched"]) == ("finished", [], False)
    assert core.tick(NOW + 2) == []
    assert "iterations take " in render_run(run, NOW, "../")


@pytest.mark.parametrize(("end", "how"), [("", "the run finished"), ("crash_killed", "the run ended: killed")])
def test_what_was_open_ends_with_the_run(tmp_path: Path, end: str, how: str) -> None:
    """A slowdown up to the last step of a run that had ended has an end in the history."""
    faults = (Fault("slowdown", 200, factor=1.2), *((Fault(end, 480),) if end else ()))
    log = log_of(tmp_path / "a.log", Scenario(format="megatron-lm", iterations=500, faults=faults)).read_bytes()
    core = core_for()
    slowdowns = [status for _, incident, status, _ in shown(core, log) if incident == "slowdown"]
    assert slowdowns[-1] == "resolved"
    (run,) = core.snapshot(NOW + 1).runs
    assert any(how in item["summary"] for item in run.page["history"])


def test_what_cannot_be_known_is_not_shown(tmp_path: Path) -> None:
    """Of a run that may be live, because reading takes twice as long, and of one whose files must be merged."""
    log = log_of(tmp_path / "a.log", SLOW).read_bytes()
    assert shown(core_for(), log, age=1.0) == []
    told = shown(core_for(), log, b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    assert "slowdown" not in [incident for _, incident, _, _ in told]


def test_a_failure_there_does_not_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run has its figures, and no past."""
    log, core = log_of(tmp_path / "a.log", SLOW).read_bytes(), core_for()
    monkeypatch.setattr(core.evaluator_of_backlog, "take", lambda *_: 1 / 0)
    assert shown(core, log) == []
    assert core.snapshot(NOW + 1).runs[0].page["iteration"] == 500

"""Runs that are over stay on the page after their series have left, until their files vanish."""

from html import unescape

from megatron_monitor.breakdown.messages import advice_for
from megatron_monitor.charts.history import SERIES, History
from megatron_monitor.core import Core
from megatron_monitor.core.ended import MOST, EndedRuns
from megatron_monitor.follow.messages import CaughtUp, Opened, Scanned
from megatron_monitor.serve.fleet import worst_first
from megatron_monitor.serve.page import render_run
from megatron_monitor.serve.past import history_json
from megatron_monitor.snapshot import RunSnapshot, Snapshot
from tests.monitor.core.test_core import NOW, core_for, data, line, opened
from tests.plain import decode, encode

HOUR = 3600.0
OOM = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
LATER = NOW + HOUR + 60


def dead(core: Core, name: str, last: bytes = b"") -> None:
    """A log that ended so before it was first seen, and is read to its end."""
    path = f"/l/{name}.log"
    for message in (
        opened(path, NOW - HOUR),
        data(path, b"".join(map(line, range(1, 301))) + last, mtime=NOW - HOUR),
        CaughtUp(path, NOW),
    ):
        core.handle(message, NOW)
    core.tick(NOW + 1)


def test_a_dead_run_is_on_the_page_after_its_series_have_left() -> None:
    """With its state, its cause, its charts; over a restart; until its file is gone or it moves."""
    core = core_for()
    dead(core, "a", OOM)
    dead(core, "silent")  # nobody knows what became of it
    core.tick(LATER)
    shown = core.snapshot(LATER)
    assert shown.runs == ()
    first, silent = shown.ended
    assert (first.page["state"], silent.page["state"]) == ("crashed", "lost")
    assert first.page["failure"].startswith("cuda_oom")
    assert first.samples == {}
    (end,) = first.page["history"]
    assert (end["incident"], end["severity"], end["iteration"]) == ("crash", "critical", 300)
    text = unescape(render_run(first, LATER, "../"))
    assert "read after the run had ended" in text
    assert "How it ended" in text
    assert f"<b>Do:</b> {advice_for('crash', 'cuda_oom')}" in text
    assert "How it ended" not in render_run(silent, LATER, "../")
    steps = history_json(first.history)["steps"]
    assert len(steps["iteration"]) <= 128
    assert (steps["first_iteration"][0], steps["iteration"][-1]) == (1, 300)

    again = core_for()
    positions = again.restore(decode(encode(core.save(LATER)), type(core.save(LATER))))
    assert [run.run for run in again.snapshot(LATER).ended] == ["a", "silent"]
    assert history_json(again.snapshot(LATER).ended[0].history)["steps"] == steps
    for path in ("/l/a.log", "/l/silent.log"):
        place = positions[path]
        again.handle(Opened(path, path, place, place.offset, NOW, True, offset=place.offset), LATER)
        again.handle(CaughtUp(path, LATER), LATER)
    again.handle(data("/l/a.log", line(301), offset=positions["/l/a.log"].offset, mtime=LATER, at=LATER), LATER)
    moved = again.snapshot(LATER)
    assert ([run.run for run in moved.runs], [run.run for run in moved.ended]) == (["a"], ["silent"])
    again.handle(Scanned("/", LATER, forgotten=("/l/silent.log",)), LATER)
    assert again.snapshot(LATER).ended == ()


def test_they_are_few_and_their_incidents_end() -> None:
    """The last MOST that left; after a day nothing of them is open any more."""
    ended = EndedRuns()
    incident = {"run": "0", "incident": "crash", "severity": "critical", "since": NOW}
    history = History()
    for iteration in range(1, 301):
        history.add_step((iteration, None, 0, *([1.0] * len(SERIES))))
    for number in range(MOST + 5):
        page = {"run": str(number), "sources": ["/l"], "incidents": [incident], "state": "crashed"}
        ended.keep(RunSnapshot(str(number), {}, page, history))
    shown = ended.show((), [{"/l"}], NOW + HOUR)
    assert {int(run.run) for run in shown} == set(range(5, MOST + 5))
    assert all(run.page["incidents"] for run in shown)
    assert sum(len(run.history.steps) for run in shown) < 20 * 128 + (MOST - 20) * 32
    assert len(encode(ended.by_name)) < 3e6
    assert not any(run.page["incidents"] for run in ended.show((), [{"/l"}], NOW + 25 * HOUR))


def test_the_worst_stand_first() -> None:
    """What needs a person now; what died today; what is warned of; what runs; what is long over, the last first."""

    def run(name: str, state: str, severity: str = "", hours: float = 0.0) -> RunSnapshot:
        incidents = [{"severity": severity}] if severity else []
        page = {"run": name, "state": state, "incidents": incidents, "progress_at": NOW - hours * HOUR}
        return RunSnapshot(name, {}, page)

    runs = [
        run("a", "training"), run("b", "finished", hours=3), run("c", "lost", hours=30), run("d", "crashed", hours=4),
        run("e", "training", "warning"), run("f", "hung", "critical"), run("g", "saving", "info"),
        run("h", "finished", hours=2), run("i", "crashed", hours=3), run("j", "crashed", "critical", 5),
    ]  # fmt: skip
    got = worst_first(Snapshot(NOW, tuple(runs[:5]), ended=tuple(runs[5:])).all_runs, NOW)
    assert "".join(run.run for run in got) == "fj" + "id" + "e" + "ag" + "hbc"

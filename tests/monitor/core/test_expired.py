"""A run that ended longer ago than run_retention has no series, but is on the page. Its next attempt continues it."""

from html import unescape

from megatron_monitor.breakdown.messages import advice_for
from megatron_monitor.core import Core
from megatron_monitor.follow.content import Content
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


def test_an_expired_run_stays_on_the_page() -> None:
    """With its state, its cause and its charts; over a restart; until its file is gone or it progresses."""
    core = core_for()
    dead(core, "a", OOM)
    dead(core, "silent")  # nobody knows what became of it
    core.changed = False
    core.touched.clear()
    core.tick(LATER)
    assert core.changed
    assert core.touched == {"a", "silent"}  # otherwise a killed monitor reports the crash again
    shown = core.snapshot(LATER)
    assert shown.runs == ()
    first, silent = shown.ended
    assert (first.page["state"], silent.page["state"]) == ("crashed", "lost")
    assert first.page["failure"].startswith("cuda_oom")
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
    for path in ("/l/a.log", "/l/silent.log"):
        place = positions[path]
        again.handle(Opened(path, path, Content(offset=place.offset, proved=place), place.offset, NOW, True), LATER)
        again.handle(CaughtUp(path, LATER), LATER)
    assert [run.run for run in again.snapshot(LATER).ended] == ["a", "silent"]
    assert history_json(again.snapshot(LATER).ended[0].history)["steps"] == steps
    again.handle(data("/l/a.log", line(301), offset=positions["/l/a.log"].offset, mtime=LATER, at=LATER), LATER)
    again.tick(LATER + 1)
    moved = again.snapshot(LATER + 1)
    assert ([run.run for run in moved.runs], [run.run for run in moved.ended]) == (["a"], ["silent"])
    again.handle(Scanned("/", LATER, forgotten=("/l/silent.log",)), LATER)
    assert again.snapshot(LATER).ended == ()


def test_the_next_job_of_a_chain_continues_an_expired_run() -> None:
    """A job may wait in the queue for hours: its restart, its lost work and a hang of its set-up count all the same."""
    core, path = core_for(), "/l/a.log"
    core.handle(opened(path, NOW), NOW)
    core.handle(CaughtUp(path, NOW), NOW)
    text = b"".join(map(line, range(1, 301))) + OOM
    core.handle(data(path, text, mtime=NOW, at=NOW), NOW)
    told = [item for second in range(0, 3 * 3600, 10) for item in core.tick(NOW + second)]
    assert {item.incident: item.status for item in told} == {"crash": "resolved", "crash_without_exit": "resolved"}
    later = NOW + 3 * HOUR
    assert core.snapshot(later).runs == ()

    begin = (
        b"using world size: 8, data-parallel-size: 8, tensor-model-parallel size: 1, pipeline-model-parallel size: 1\n"
    )
    core.handle(data(path, begin, offset=len(text), mtime=later, at=later), later)
    told = [item for second in range(0, 3 * 3600, 10) for item in core.tick(later + second)]
    assert [(item.incident, item.status) for item in told if item.severity == "critical"][:1] == [("hang", "firing")]
    later += 3 * HOUR
    steps = b"".join(map(line, range(251, 261)))
    core.handle(data(path, steps, offset=len(text) + len(begin), mtime=later, at=later), later)
    core.tick(later + 1)
    state = core.runs["a"].state
    assert (state.restarts, state.lost_iterations_total, state.iterations_total) == (1, 50, 310)
    assert [run.run for run in core.snapshot(later + 1).runs] == ["a"]


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


def test_a_killed_monitor_knows_the_environment_that_it_had_read() -> None:
    """No step had come yet, so nothing had proved a training."""
    core, path, setup = core_for(), "/l/a.log", b"export CUDA_LAUNCH_BLOCKING=1\n"
    core.handle(opened(path, NOW), NOW)
    core.handle(data(path, setup), NOW)
    again = core_for()
    place = again.restore(decode(encode(core.save(NOW)), type(core.save(NOW))))[path]
    assert place.offset == len(setup)
    again.handle(Opened(path, path, Content(offset=place.offset, proved=place), place.offset, NOW, True), NOW)
    again.handle(data(path, line(1), offset=place.offset), NOW)
    assert again.runs["a"].state.attempt.environment == {"CUDA_LAUNCH_BLOCKING": "1"}

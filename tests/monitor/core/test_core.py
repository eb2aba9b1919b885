"""The core between follower and pages: backlog, history, siblings, loss, expiry, resume. Time is an argument."""

import math
from collections.abc import Iterable

import msgspec
import pytest

from megatron_monitor.config import Config, Watch
from megatron_monitor.core import Core
from megatron_monitor.core.sources import unmatched
from megatron_monitor.evaluation import Evaluator, MonitoredRun
from megatron_monitor.follow.content import Content
from megatron_monitor.follow.messages import CaughtUp, Data, Gone, Opened, Readable, Restarted, Unreadable
from megatron_monitor.incidents import Transition
from megatron_monitor.receiver.labels import followed
from megatron_monitor.scalars import LONGEST_SECONDS
from megatron_monitor.snapshot import FIGURES, NOTHING, HistogramSample, MetricSample, ViewRequest
from tests.lines import line as iteration_line
from tests.plain import decode, encode

NOW = 1_700_000_000.0


def line(number: int, total: int = 1000, seconds: float = 10.0) -> bytes:
    """An iteration line."""
    return iteration_line(number, total, seconds).encode()


def core_for(*paths: str, judge: Evaluator | None = None) -> Core:
    """A core that follows these paths."""
    return Core(msgspec.structs.replace(Config(), runs=(Watch(paths=paths or ("/l/*",)),)), judge=judge)


def opened(path: str, mtime: float = NOW) -> Opened:
    """A file is found."""
    return Opened(path, path, None, 0, mtime, False)


def data(path: str, text: bytes, offset: int = 0, mtime: float = NOW, at: float = NOW) -> Data:
    """Bytes of it."""
    return Data(path, offset, text, mtime, at, 0)


def read(core: Core, path: str, text: bytes, mtime: float = NOW) -> None:
    """A file is found, and read to its end."""
    for message in (opened(path, mtime), data(path, text, mtime=mtime), CaughtUp(path, NOW)):
        core.handle(message, NOW)


def state_of(core: Core, now: float) -> dict[str, str]:
    """Run -> state, as shown."""
    return {run.run: str(run.page["state"]) for run in core.snapshot(now).runs}


def test_a_half_read_run_is_not_shown() -> None:
    """While the backlog is read nothing is served and nobody is told; then it is all there."""
    core = core_for()
    core.handle(opened("/l/a.log"), NOW)
    core.handle(data("/l/a.log", line(1) + line(2)), NOW)
    assert core.snapshot(NOW).runs == ()
    assert not core.snapshot(NOW).ready
    core.handle(CaughtUp("/l/a.log", NOW), NOW)
    assert state_of(core, NOW) == {"a": "training"}
    assert core.snapshot(NOW).ready


def test_a_stale_log_is_archived() -> None:
    """Last written a day ago: shown as lost, no incident, not even a late one; until it moves."""
    core = core_for()
    old = NOW - 86400
    read(core, "/l/a.log", line(1) + line(2), old)
    assert core.tick(NOW) == []
    assert state_of(core, NOW) == {"a": "lost"}
    core.handle(data("/l/a.log", line(3), offset=len(line(1)) * 2, at=NOW + 5), NOW + 5)
    assert state_of(core, NOW + 5) == {"a": "training"}
    assert [item.incident for item in core.tick(NOW + 5 + 600)] == ["hang"]


def test_a_stale_log_that_dies_before_our_eyes() -> None:
    """Its crash is told, though it had not moved: what wrote it lived."""
    core = core_for()
    reported = line(1) + line(2)
    read(core, "/l/a.log", reported, NOW - 86400)
    words = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\nKilled\n"
    core.handle(data("/l/a.log", words, offset=len(reported), at=NOW + 5), NOW + 5)
    assert [item.incident for at in (6, 60) for item in core.tick(NOW + at)] == ["crash"]
    assert state_of(core, NOW + 60) == {"a": "crashed"}


def test_a_bar_that_another_program_ends_is_no_progress() -> None:
    """The training died without a word behind its bar. What is written days later ends the bar's line: the hang that
    was told stands until a step comes, and is told once.
    """
    core, offset, reported = core_for(judge=Evaluator(Config(), repeats=False)), 0, list[Transition]()
    bars = [f"\r {n:2d}%|#   | {n}/100 [{n // 6:02d}:{n % 6}0<59:00, 10.00s/it]".encode() for n in range(31)]
    heading = b"***** Running training *****\n  Total optimization steps = 100\n"
    later = [(NOW + 260_000, b"Loading the model\n"), (NOW + 261_000, b"It is loaded\n")]
    for at, text in [(NOW, heading), *((NOW + 10 * n, text) for n, text in enumerate(bars)), *later]:
        if at == NOW and not offset:
            read(core, "/l/a.log", text)
        else:
            core.handle(data("/l/a.log", text, offset=offset, at=at), at)
        offset += len(text)
        reported += [item for after in range(1, 10) for item in core.tick(at + after) if not item.display_only]
        if text == bars[-1]:
            reported += [
                item for after in range(20, 600, 20) for item in core.tick(at + after) if not item.display_only
            ]
            assert core.runs["a"].state.attempt.last_iteration == 30
    reported += [
        item for after in range(20, 600, 20) for item in core.tick(NOW + 261_000 + after) if not item.display_only
    ]
    assert [(item.incident, item.status) for item in reported] == [("hang", "firing")]


def stepped(numbers: Iterable[int], day: str) -> bytes:
    """Iterations without stamps of their own, each behind a stamped line, as DeepSpeed prints them."""
    stamped = "[{}] [INFO] [logging.py:96:log_dist] [Rank 0] step={}, skipped=0, lr=[0.0001], mom=[[0.9, 0.95]]\n"
    return b"".join(stamped.format(f"{day} 08:38:{n % 60:02},469", n).encode() + undated(n) for n in numbers)


def undated(number: int) -> bytes:
    """An iteration's line as gpt-neox prints it."""
    loss = f"lm_loss: {2.0 + 1 / number:.6E} | loss scale: 65536.0 |"
    times = " elapsed time per iteration (ms): 1000.0 | learning rate: 2.000E-04 |"
    return f" samples/sec: 77.689 | iteration {number:8d}/  320000 |{times} {loss}\n".encode()


@pytest.mark.parametrize("split", [False, True])
def test_a_copy_of_an_old_log_is_archived_by_its_stamps(split: bool) -> None:
    """The file is new, its lines are not: nobody is told of its silence, or of the end that its other file holds,
    though that one has no stamps and is read first. It lives once it moves.
    """
    core = core_for()
    setup = b"INFO:root:NeoXArgs.calculate_derived() Total number of GPUs determined to be: 16\n"
    end = b"error: Detected 1 oom-kill event(s) in StepId=77.0.\n"
    lines = stepped(range(1, 6), "2013-01-07")
    if split:
        read(core, "/l/slurm-77.err", setup)
    read(core, "/l/slurm-77.out", lines)
    if split:
        core.handle(data("/l/slurm-77.err", end, offset=len(setup)), NOW)
    reported = [item for at in (1, 60, 10_000) for item in core.tick(NOW + at)]
    assert reported == []
    assert set(state_of(core, NOW + 10_000).values()) <= {"lost", "crashed"}
    moved = stepped([6], "2023-11-14")
    core.handle(data("/l/slurm-77.out", moved, offset=len(lines), at=NOW + 10_001), NOW + 10_001)
    assert "training" in state_of(core, NOW + 10_001).values()


@pytest.mark.parametrize(
    "setup_events", [b"", b"[2013-01-07 08:38:30,469] [INFO] [real_accelerator.py:161:get_accelerator] cuda\n"]
)
def test_a_live_log_whose_steps_have_no_stamps_is_watched(setup_events: bytes) -> None:
    """Also one that was launched long ago: the stamps of its set-up are no steps'."""
    core = core_for()
    read(core, "/l/a.log", setup_events + undated(1) + undated(2) + undated(3))
    assert state_of(core, NOW) == {"a": "training"}
    assert [item.incident for item in core.tick(NOW + 8000) if not item.display_only] == ["hang"]


def test_a_file_without_training_makes_no_run() -> None:
    """No series for a log that is no training log."""
    core = core_for()
    read(core, "/l/a.log", b"hello\n" * 10)
    assert core.snapshot(NOW).runs == ()


def test_an_unreadable_source_is_lost_and_comes_back() -> None:
    """The hang of a run that cannot be observed is unknown; its loss is an incident; the others go on."""
    core = core_for()
    for path in ("/l/a.log", "/l/b.log"):
        read(core, path, line(1) + line(2) + line(3))
    core.tick(NOW)
    core.handle(Unreadable("/l/a.log", 5, "EIO: Input/output error", NOW + 1), NOW + 1)
    reported = core.tick(NOW + 1000)
    assert {(item.run, item.incident) for item in reported if not item.display_only} == {
        ("a", "source_lost"),
        ("b", "hang"),
    }
    assert state_of(core, NOW + 1000)["a"] == "lost"
    core.handle(Readable("/l/a.log", NOW + 1001), NOW + 1001)
    assert ("a", "source_lost", "resolved") in [(i.run, i.incident, i.status) for i in core.tick(NOW + 1001)]


def test_rotation_ends_the_last_line_and_truncation_does_not() -> None:
    """A rotated file's last line without an end counts; what a truncation cut is gone."""
    for reason, expected in (("rotated", 2), ("truncated", 1)):
        core = core_for()
        core.handle(opened("/l/a.log"), NOW)
        core.handle(data("/l/a.log", line(1) + line(2).rstrip(b"\n")), NOW)
        core.handle(Restarted("/l/a.log", reason, "inode"), NOW)  # type: ignore[arg-type]
        assert core.runs["a"].state.attempt.latest.iteration == expected


def test_a_deleted_log_of_a_live_run_is_lost() -> None:
    """A log that vanishes under a training can no longer be judged."""
    core = core_for()
    for message in (
        opened("/l/a.log"),
        CaughtUp("/l/a.log", NOW),
        data("/l/a.log", line(1) + line(2)),
        Gone("/l/a.log", NOW),
    ):
        core.handle(message, NOW)
    assert "source_lost" in {item.incident for item in core.tick(NOW + 1)}


def test_a_restart_of_the_daemon_goes_on() -> None:
    """Resumed at the saved offset: totals, progress and incidents are those before, nothing is told twice."""
    core = core_for()
    text = line(1) + line(2) + line(3)
    for message in (opened("/l/a.log"), CaughtUp("/l/a.log", NOW), data("/l/a.log", text + line(4)[:20])):
        core.handle(message, NOW)
    assert len(core.tick(NOW + 600)) == 1
    saved = decode(encode(core.save(NOW + 600)), type(core.save(NOW)))
    again = core_for()
    positions = again.restore(saved)
    position = positions["/l/a.log"]
    assert position.start == len(text)
    again.handle(
        Opened("/l/a.log", "/l/a.log", Content(offset=position.start, proved=position), 500, NOW, True), NOW + 700
    )
    again.handle(data("/l/a.log", line(4), offset=position.start, mtime=NOW + 650, at=NOW + 700), NOW + 700)
    again.handle(CaughtUp("/l/a.log", NOW + 700), NOW + 700)
    reported = [(item.incident, item.status) for item in again.tick(NOW + 700) if not item.display_only]
    assert reported == [("hang", "resolved")]  # it moved at 650, and is late again by now, which nobody is told
    (run,) = again.snapshot(NOW + 700).runs
    assert run.samples["megatron_iterations_total"] == (MetricSample((), 4.0),)
    assert run.samples["megatron_incidents_total"] == (MetricSample(("hang",), 1.0),)
    durations = run.samples["megatron_iteration_duration_seconds"]
    assert isinstance(durations, HistogramSample)
    assert durations.buckets[-1][1] == 3.0


def test_a_log_that_is_named_by_hand_is_shown_however_long_ago_it_ended() -> None:
    """Another monitor, with a short retention, has read it before."""
    core, path = core_for(), "/l/a.log"
    read(core, path, line(1) + b"[exiting program at iteration 1] datetime: 2026-01-01 00:00:00 \n")
    core.tick(NOW + core.config.run_retention + 1)
    later = NOW + core.config.run_retention + 2
    again = Core(msgspec.structs.replace(core.config, run_retention=LONGEST_SECONDS))
    place = again.restore(decode(encode(core.save(later)), type(core.save(later))))[path]
    again.handle(Opened(path, path, Content(offset=place.offset, proved=place), place.offset, NOW, True), later)
    again.handle(CaughtUp(path, later), later)
    again.tick(later)
    assert state_of(again, later) == {"a": "finished"}


class NotingJudge(Evaluator):
    """`seen`: (run, time) of each judgement."""

    def __init__(self) -> None:
        super().__init__(Config())
        self.seen: list[tuple[str, float]] = []

    def judge(self, run: MonitoredRun, now: float) -> list[Transition]:
        """Judge as always."""
        self.seen.append((run.state.name, now))
        return super().judge(run, now)


def live(core: Core, path: str, count: int) -> int:
    """A run that is read to its end; gives the bytes."""
    text = b"".join(line(number, seconds=1.0) for number in range(1, count + 1))
    read(core, path, text)
    core.tick(NOW)
    return len(text)


def test_a_calm_run_is_judged_every_fifteen_seconds() -> None:
    """Its iterations ask for nothing, as in a replay; any other line, and a deadline, is judged at once."""
    judge = NotingJudge()
    core, seen = core_for(judge=judge), judge.seen
    at = live(core, "/l/a.log", 20)
    seen.clear()
    for second in range(1, 46):
        now = NOW + second
        text = line(20 + second, seconds=1.0)
        core.handle(data("/l/a.log", text, offset=at, mtime=now, at=now), now)
        at += len(text)
        for tenth in range(10):
            core.tick(now + tenth / 10)
    assert [round(now - NOW) for _, now in seen] == [15, 30, 45]
    seen.clear()
    text = b"[exiting program at iteration 65] datetime: 2026-01-01 00:00:00 \n"
    core.handle(data("/l/a.log", text, offset=at, mtime=NOW + 45.95, at=NOW + 45.95), NOW + 45.95)
    core.tick(NOW + 45.95)
    assert seen == [("a", NOW + 45.95)]


def test_a_scrape_makes_no_pages() -> None:
    """Its samples are new, page and charts wait for who looks at them: then they are new too, and made once."""
    core = core_for()
    at = live(core, "/l/a.log", 3)
    (before,) = core.snapshot(NOW).runs
    text = line(4, seconds=1.0)
    core.handle(data("/l/a.log", text, offset=at, mtime=NOW + 1, at=NOW + 1), NOW + 1)
    (scraped,) = core.snapshot(NOW + 1, FIGURES).runs
    assert scraped.samples["megatron_iteration"] != before.samples["megatron_iteration"]
    assert scraped.page is before.page
    assert scraped.history is before.history
    assert core.snapshot(NOW + 1, FIGURES).runs == (scraped,)
    (seen,) = core.snapshot(NOW + 1).runs
    assert seen.samples == scraped.samples
    assert (before.page["iteration"], seen.page["iteration"]) == (3, 4)
    assert len(seen.history.steps) == len(before.history.steps) + 1
    assert core.snapshot(NOW + 2).runs[0] is seen
    assert core.snapshot(NOW + 2, FIGURES).runs[0] is seen


def test_who_asks_for_one_run_makes_none_of_the_others() -> None:
    """Incidents are always new; samples of runs without any wait for a scrape, however many runs there are."""
    core = core_for()
    ends = {name: live(core, name, 3) for name in ("/l/a.log", "/l/b.log", "/l/c.log")}
    before = core.snapshot(NOW).runs
    for name, text in (
        ("/l/a.log", line(4, seconds=1.0)),
        ("/l/b.log", line(4, seconds=1.0)),
        ("/l/c.log", line(4, seconds=1.0).replace(b"2.996000E+00", b"nan")),
    ):
        core.handle(data(name, text, offset=ends[name], mtime=NOW + 1, at=NOW + 1), NOW + 1)
    core.tick(NOW + 1)
    snapshot = core.snapshot(NOW + 1, NOTHING)
    assert [one["run"] for one in snapshot.incidents] == ["c"]
    assert snapshot.runs[:2] == before[:2]
    asked = core.snapshot(NOW + 1, ViewRequest(samples=False, pages=False, whole=frozenset({"b"}))).runs
    assert asked[0] is before[0]
    assert [run.page["iteration"] for run in asked] == [3, 4, 4]
    scraped = core.snapshot(NOW + 1, FIGURES).runs
    assert [run.samples["megatron_iteration"][0].value for run in scraped] == [4, 4, 4]  # type: ignore[union-attr]


def test_what_a_log_may_not_tell_again_is_to_be_saved_soon() -> None:
    """A rotation, a truncation, a deletion; not a line."""
    for message in (Restarted("/l/a.log", "rotated", "inode"), Gone("/l/a.log", NOW)):  # type: ignore[arg-type]
        core = core_for()
        live(core, "/l/a.log", 3)
        assert not core.save_soon
        core.handle(message, NOW)
        assert core.save_soon


def test_patterns_that_find_nothing() -> None:
    """Files, patterns and directories by which none of the followed files was found."""
    config = Config(runs=(Watch(paths=("/l/*.out", "/m/a.log", "/d", "/x/**/*.log")),))
    assert unmatched(config, ["/l/x.out", "/d/sub/y.log"]) == ["/m/a.log", "/x/**/*.log"]
    assert unmatched(config, ["/l/x.out", "/m/a.log", "/d/y.log", "/x/y/z.log"]) == []
    pushed = followed(Config(runs=(Watch(paths=("/spool/x.log", "/spools/*")),)), "/spool")
    assert unmatched(pushed, []) == ["/spools/*"]


CRASH = (
    b'Traceback (most recent call last):\n  File "/t.py", line 1, in <module>\n    main()\nRuntimeError: CUDA error\n'
)


def test_what_a_dropped_run_leaves_open_ends() -> None:
    """A crash that nobody restarts stands until the run is dropped; then who was told of it hears that, too."""
    core = core_for()
    read(core, "/l/a.log", line(1) + line(2))
    core.handle(data("/l/a.log", CRASH, len(line(1) + line(2))), NOW)
    (crash,) = core.tick(NOW + 60)
    assert (crash.incident, crash.status) == ("crash", "firing")
    assert core.tick(NOW + core.config.run_retention) == []
    (end,) = core.tick(NOW + core.config.run_retention + 1)
    assert (end.incident, end.status, end.event) == ("crash", "resolved", crash.event)
    assert core.snapshot(NOW + core.config.run_retention + 1).runs == ()


def test_a_run_of_which_nothing_is_expected_has_no_deadline() -> None:
    """+Inf, and not no series, which would be an older deadline that stands: it has finished, or the monitor stops."""

    def deadline(core: Core) -> float:
        (run,) = core.snapshot(NOW).runs
        found = run.samples["megatron_hang_deadline_timestamp_seconds"]
        assert isinstance(found, tuple)
        return found[0].value

    core = core_for()
    read(core, "/l/a.log", line(1) + line(2))
    assert NOW < deadline(core) < NOW + 1e6
    core.stop_runs(NOW, over=False)
    assert deadline(core) == math.inf
    ended = core_for()
    read(ended, "/l/a.log", line(1) + line(2) + CRASH)
    ended.tick(NOW + 10)
    assert deadline(ended) == math.inf


def test_a_file_that_is_gone_before_it_was_caught_up_is_read() -> None:
    """Its run does not wait for it, and a restart does not read it again under another name."""
    core, text = core_for(), line(1) + line(2)
    core.handle(Opened("/l/a.log", "/l/a.log", None, 0, NOW, False), NOW)
    core.handle(data("/l/a.log", text), NOW)
    core.handle(Gone("/l/a.log", NOW), NOW)
    assert core.sources.ready
    assert core.save(NOW).sources["/l/a.log"].position.start == len(text)

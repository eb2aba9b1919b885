"""Patterns and directories: which files are followed, under which name, and what is left out."""

import os

import pytest

from megatron_monitor.follow.discovery import Walk, plan
from megatron_monitor.follow.messages import Opened, Scanned
from megatron_monitor.follow.mounts import Mounts
from megatron_monitor.follow.os_layer import Entry, OsLayer
from megatron_monitor.follow.patterns import PathPattern, WatchedPath, absolute


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("/logs/main.log", "/logs/main.log", True),
        ("/logs/*.log", "/logs/a.log", True),
        ("/logs/*.log", "/logs/deep/a.log", False),
        ("/logs/**/*.log", "/logs/a.log", True),
        ("/logs/**/*.log", "/logs/a/b/c/d/e/f.log", True),
        ("/logs/**", "/logs/a/b", True),
        ("/logs/**/**/x", "/logs/x", True),
        ("/logs/run?/[0-9]*.out", "/logs/run7/12.out", True),
        ("/logs/run?/[0-9]*.out", "/logs/run77/12.out", False),
        ("/logs/*", "/logs/.hidden", False),
        ("/logs/.*", "/logs/.hidden", True),
        ("/logs/**/*.log", "/logs/.git/a.log", False),
        ("/logs/[", "/logs/[", True),
    ],
)
def test_patterns(pattern, path, matches):
    """Each part matches one name, ** any depth, and hidden names only what asks for them."""
    assert bool(PathPattern.parse(pattern).matches(path)) is matches


def test_paths_are_made_absolute(monkeypatch, tmp_path):
    """~ and relative paths name the same source from anywhere."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert absolute("~/a.log") == absolute("./b/../a.log") == f"{tmp_path}/a.log"


def sources(rig):
    """The names of what was opened, relative to nothing."""
    return sorted(os.path.basename(message.source) for message in rig.messages if isinstance(message, Opened))


def test_new_files_by_pattern_and_a_directory_that_appears_later(make_rig, tmp_path):
    """A pattern follows files and directories that are made after the start, five levels deep."""
    rig = make_rig(tmp_path / "logs/**/*.log")
    rig.poll()
    assert sources(rig) == []
    deep = tmp_path / "logs/1/2/3/4"
    deep.mkdir(parents=True)
    (deep / "a.log").write_text("a\n")
    (deep / "a.txt").write_text("a\n")
    rig.poll(10.0, all_files=False)
    assert sources(rig) == ["a.log"]


def test_literal_path_appears_later(make_rig, tmp_path):
    """A path that was given is looked for although nothing is there, and read whatever it is called."""
    rig = make_rig(tmp_path / "x" / "late.bin")
    rig.settle(2)
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "late.bin").write_bytes(b"\x01\x02\x03\n")
    rig.settle(2)
    assert sources(rig) == ["late.bin"]


def test_directory_is_its_tree_of_logs(make_rig, tmp_path):
    """Of a directory everything below is followed that may be a log: no checkpoints, programs or hidden directories."""
    for name in ("a.log", "b.out", "sub/c", "sub/rank0.err", "slurm-1.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text\n")
    for name in ("x.pt", "x.safetensors", "x.idx", "x.npy", "x.gz", "main.py", "config.json", ".nfs0001", ".hidden"):
        (tmp_path / name).write_text("text\n")
    for name in (".snapshot", ".git", "__pycache__"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.log").write_text("text\n")
    (tmp_path / "events.out.tfevents.1").write_text("text\n")
    (tmp_path / "loop").symlink_to(tmp_path)
    rig = make_rig(tmp_path)
    rig.poll()
    assert sources(rig) == ["a.log", "b.out", "c", "rank0.err", "slurm-1.txt"]


def test_binary_content_is_left_alone(make_rig, tmp_path):
    """A checkpoint without a telling name is not read as a log, one that was given by name is."""
    (tmp_path / "shard").write_bytes(bytes(range(256)) * 64)
    (tmp_path / "old").write_bytes(b"\x1f\x8b" + b"a" * 100)
    (tmp_path / "hole").write_bytes(bytes(100) + b"text after a hole\n")
    (tmp_path / "bars").write_bytes("\x1b[2K\r 10%|███▌   | 1/10\x1b[A\n".encode())
    rig = make_rig(tmp_path / "*")
    rig.settle(2)
    assert sources(rig) == ["bars", "hole"]
    rig.settle(12)
    assert sources(rig) == ["bars", "hole"]
    literal = make_rig(tmp_path / "shard")
    literal.poll()
    assert sources(literal) == ["shard"]


def test_excludes(make_rig, tmp_path):
    """A name or a path pattern leaves files and whole directories out."""
    for name in ("a.log", "debug.log", "old/b.log", "new/c.log", "new/d.log"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x\n")
    rig = make_rig(WatchedPath(f"{tmp_path}/**/*.log", exclude=("debug*", "old", f"{tmp_path}/*/d.log")))
    rig.poll()
    assert sources(rig) == ["a.log", "c.log"]


def test_large_directory_does_not_stop_the_tailing(make_rig, append, kinds, tmp_path):
    """A walk over many entries is cut into slices between which the files are read."""
    (tmp_path / "many").mkdir()
    for number in range(3000):
        (tmp_path / "many" / f"{number}.txt").touch()
    log = tmp_path / "a.log"
    log.write_text("x\n")
    rig = make_rig(log, tmp_path / "many/*.log", entries_per_slice=100)
    passes = 0
    seen = []
    while not any(isinstance(message, Scanned) for message in seen):
        append(log, b"y\n")
        rig.clock.advance(0.5)
        new = list(rig.reader.poll(rig.clock, all_files=passes == 0))
        assert {"Data"} <= set(kinds(new))
        seen += new
        passes += 1
    assert passes >= 30


def test_forgotten_after_a_day(make_rig, tmp_path):
    """Dated names that come and go do not add up; names that were given are kept."""
    (tmp_path / "1.log").write_text("x\n")
    (tmp_path / "given").write_text("x\n")
    rig = make_rig(tmp_path / "*.log", tmp_path / "given")
    rig.settle(2)
    (tmp_path / "1.log").unlink()
    (tmp_path / "given").unlink()
    rig.settle(5)
    rig.clock.advance(86_400.0)
    rig.settle(12)
    assert list(rig.reader.sources) == [str(tmp_path / "given")]


def test_wake_up_for_an_unknown_path_starts_a_walk(make_rig, tmp_path):
    """A new file is found when it is named, not ten seconds later, yet at most one walk a second is made."""
    rig = make_rig(tmp_path / "*.log")
    rig.poll()
    (tmp_path / "new.log").write_text("x\n")
    path = str(tmp_path / "new.log")
    rig.clock.advance(0.1)
    assert list(rig.reader.poll(rig.clock, {path})) == []
    rig.clock.advance(1.0)
    assert any(isinstance(message, Opened) for message in rig.reader.poll(rig.clock))


def test_a_path_that_is_no_log_hastens_one_walk(make_rig, tmp_path):
    """What else is written beside the logs, each second perhaps, is looked for once."""
    rig = make_rig(tmp_path / "*.log")
    rig.poll()
    walks = 0
    for _ in range(5):
        rig.clock.advance(1.5)
        reported = list(rig.reader.poll(rig.clock, {str(tmp_path / "events.out.tfevents.1")}))
        walks += any(isinstance(message, Scanned) for message in reported)
    assert walks == 1


def test_a_long_walk_is_not_repeated_at_once(make_rig, tmp_path):
    """A tree that takes two seconds is walked every hundred seconds."""
    rig = make_rig(tmp_path / "*.log")
    slow = rig.os.scandir

    def scandir(path):
        rig.clock.advance(1.9)
        return slow(path)

    rig.os.scandir = scandir
    rig.poll()
    rig.os.calls.clear()
    for _ in range(180):
        rig.poll(1.0, all_files=False)
    assert 1 <= rig.os.calls["scandir"] <= 2


def test_a_tree_deeper_than_the_stack():
    """Depth costs time, no failure: everything else is found as before."""

    class Deep(OsLayer):
        def scandir(self, path):
            yield Entry("a.log", "file", 1)
            if path.count("/") < 2000:
                yield Entry("d", "directory", 1)

    (jobs,) = plan([WatchedPath("/logs/**/*.log")], Mounts([]), lambda path: path).values()
    walk = Walk(Deep(), jobs, frozenset(), os.stat)
    assert sum(step is not None for step in walk.run()) == 2000

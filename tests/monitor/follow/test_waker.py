"""What ends a reader's wait, and which paths it is given then."""

from __future__ import annotations

import errno
import os
import threading

import inotify_simple
import pytest

from monitor.follow.waker import Waker

SECONDS = 10  # that no test needs


@pytest.fixture
def waker(tmp_path):
    """It watches the directory."""
    waker = Waker()
    waker.watch([str(tmp_path)])
    yield waker
    waker.close()


@pytest.mark.parametrize("call", ["__init__", "add_watch"])
def test_no_inotify_left(monkeypatch, tmp_path, call):
    """No instance or watch left: a note, no exception, nothing watched, and who calls is heard."""

    def fail(self, *args):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(inotify_simple.INotify, call, fail)
    waker = Waker()
    waker.watch([str(tmp_path)])
    assert not waker.watching
    assert "inotify instance limit" in waker.note
    waker.wake()
    waker.wait(SECONDS, SECONDS)
    assert waker.take() == (set(), True)
    waker.close()


def test_more_directories_than_are_watched(waker, tmp_path, monkeypatch):
    """The others are polled, and a note says so."""
    monkeypatch.setattr("monitor.follow.waker._MOST_DIRECTORIES", 2)
    for name in "abc":
        (tmp_path / name).mkdir()
    waker.watch([str(tmp_path / name) for name in "abc"])
    assert waker.note == "only 2 directories are watched"
    (tmp_path / "b" / "x").write_text("x")
    assert waker.take() == ({str(tmp_path / "b" / "x")}, False)


def test_a_descriptor_that_fails(waker, tmp_path):
    """A failure to read is noted, and watching begins anew at the next walk."""
    directory = os.open(tmp_path, os.O_RDONLY)  # which nobody can read from
    os.dup2(directory, waker._inotify.fileno())
    os.close(directory)
    waker.take()
    assert not waker.watching
    assert waker.note.startswith("watching failed")
    waker.watch([str(tmp_path)])
    assert waker.watching
    (tmp_path / "x").write_text("x")
    waker.wait(SECONDS)
    assert waker.take() == ({str(tmp_path / "x")}, False)


def test_two_names_of_a_directory(waker, tmp_path):
    """A link to a watched directory: both names are given, and one of them may go."""
    (tmp_path / "d").mkdir()
    (tmp_path / "link").symlink_to("d")
    names = [str(tmp_path / "d"), str(tmp_path / "link")]
    waker.watch(names)
    (tmp_path / "d" / "x").write_text("x")
    assert waker.take()[0] == {f"{name}/x" for name in names}
    waker.watch(names[1:])
    (tmp_path / "d" / "y").write_text("y")
    assert waker.take()[0] == {f"{names[1]}/y"}


def test_a_directory_made_anew(waker, tmp_path):
    """A directory that was removed and made again is watched again."""
    directory = tmp_path / "d"
    directory.mkdir()
    waker.watch([str(directory), str(tmp_path / "absent")])
    directory.rmdir()
    (tmp_path / "keep the inode").mkdir()
    directory.mkdir()
    waker.watch([str(directory)])
    waker.take()
    (directory / "x").write_text("x")
    assert waker.take()[0] == {str(directory / "x")}


def test_an_overflow_means_anything(waker, monkeypatch):
    """The kernel lost events: every file is looked at."""
    lost = inotify_simple.Event(-1, inotify_simple.flags.Q_OVERFLOW, 0, "")
    monkeypatch.setattr(inotify_simple.INotify, "read", lambda self, timeout: [lost])
    assert waker.take() == (set(), True)


def test_too_many_names(waker, tmp_path, monkeypatch):
    """Beyond a bound every file is looked at instead of each name being kept."""
    monkeypatch.setattr("monitor.follow.waker._MOST_PATHS", 10)
    for number in range(11):
        (tmp_path / str(number)).touch()
    assert waker.take() == (set(), True)
    assert waker.take() == (set(), False)


def test_events_add_up_and_a_call_does_not_wait(waker, tmp_path):
    """`coalesce_seconds` holds events back, never a call."""
    (tmp_path / "x").write_text("x")
    caller = threading.Timer(0.05, waker.wake)
    caller.start()
    waker.wait(SECONDS, coalesce_seconds=SECONDS)
    assert waker.take() == ({str(tmp_path / "x")}, True)
    caller.join()


def test_an_interrupted_wait(waker, tmp_path):
    """It ends whether events add up or not, and nothing is said to have changed but what inotify names."""
    (tmp_path / "x").write_text("x")
    waker.interrupt()
    waker.interrupt()
    waker.wait(SECONDS, coalesce_seconds=SECONDS)
    assert waker.take() == ({str(tmp_path / "x")}, False)
    waker.wait(0.0)
    assert waker.take() == (set(), False)


def test_a_call_after_the_end(waker):
    """Other threads may not know yet."""
    waker.close()
    waker.wake()
    waker.interrupt()

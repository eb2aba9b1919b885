"""Which directories watchdog's own observer watches, and that its failures end in polling."""

import errno
import os
import queue
import threading
from pathlib import Path

import pytest

from megatron_monitor.follow import directory_watches
from megatron_monitor.follow.directory_watches import DirectoryWatches

SECONDS = 10  # that no test needs


class Told:
    """Watches, and the paths that they name."""

    def __init__(self):
        self.paths = queue.Queue()
        self.watches = DirectoryWatches(self.paths.put)

    def watch(self, *directories, now=0.0, moved=None):
        """Directories in which something moved just now, unless `moved` says when."""
        at = now if moved is None else moved
        self.watches.watch({str(one): at for one in directories}, now)

    def __call__(self, path):
        """Is this the path that was named last?"""
        found = self.paths.get(timeout=SECONDS)
        while not self.paths.empty():
            found = self.paths.get()
        return found == str(path)

    @property
    def directories(self):
        """Those that are watched."""
        return set(self.watches._watched)


@pytest.fixture
def told(monkeypatch):
    """An observer that is stopped at the end, and waited for however slow the machine is."""
    monkeypatch.setattr(directory_watches, "_ANSWER_SECONDS", SECONDS)
    told = Told()
    yield told
    told.watches.close()


@pytest.fixture
def directories(tmp_path):
    """Makes so many."""

    def make(count):
        found = [tmp_path / f"{number:03d}" for number in range(count)]
        for one in found:
            one.mkdir()
        return [str(one) for one in found]

    return make


def touch(directory, name):
    """A new file there."""
    (Path(directory) / name).touch()


def test_512_directories_the_newest_first(told, directories):
    """Of 520 in which logs move those that moved last are watched, and a note says that the others are polled."""
    some = directories(520)
    now = 10_000.0
    moved = {one: now - number * 5.0 for number, one in enumerate(some)}
    told.watches.watch(moved, now)
    assert told.directories == set(some[:512])
    assert told.watches.note == "only 512 directories are watched"
    assert told.watches.working
    touch(some[511], "x")
    assert told(f"{some[511]}/x")
    told.watches.watch(moved | {some[519]: now + 601.0}, now + 601.0)  # it moves, and takes the place of the oldest
    assert told.directories == {*some[:511], some[519]}


def test_places_do_not_change_hands_at_each_walk(told, directories, monkeypatch):
    """Among directories that all move the ones that are watched stay."""
    monkeypatch.setattr(directory_watches, "_MOST_DIRECTORIES", 2)
    told.watches = DirectoryWatches(told.paths.put)
    some = directories(4)
    told.watches.watch({some[3]: 609.0, some[2]: 608.0}, 610.0)
    told.watches.watch({one: 1190.0 - number for number, one in enumerate(some)}, 1191.0)
    assert told.directories == set(some[2:])


def test_where_nothing_moved_for_an_hour(told, directories):
    """It is watched no more, until something moves there again."""
    (one,) = directories(1)
    told.watch(one, now=0.0)
    told.watch(one, now=3600.0, moved=0.0)
    assert told.directories == {one}
    told.watch(one, now=3601.0, moved=0.0)
    assert told.directories == set()
    assert not told.watches.working
    assert told.watches.note == ""
    touch(one, "x")
    told.watch(one, now=3611.0)
    touch(one, "y")
    assert told(f"{one}/y")


def test_where_too_much_happens(told, directories, monkeypatch):
    """The busiest directories are left to polling for a while, as many as events cost too much."""
    monkeypatch.setattr(directory_watches, "_EVENTS_PER_SECOND", 10.0)
    quiet, busy = directories(2)
    told.watch(quiet, busy, now=0.0)
    told.watches._events.update({quiet: 20, busy: 90})
    told.watch(quiet, busy, now=9.0)
    assert told.directories == {quiet, busy}  # too early to say
    told.watch(quiet, busy, now=10.0)
    assert told.directories == {quiet}
    assert told.watches.working
    assert told.watches.note == ""
    told.watches._events.update({quiet: 100})
    told.watch(quiet, busy, now=20.0)
    assert told.directories == {quiet}
    told.watches._events.update({quiet: 101})
    told.watch(quiet, busy, now=30.0)
    assert told.directories == set()
    assert told.watches.working  # where it is quiet it would be told
    told.watch(quiet, busy, now=309.0)
    assert told.directories == set()
    told.watch(quiet, busy, now=330.0)
    assert told.directories == {quiet, busy}


def test_a_directory_that_is_removed_and_made_anew(told, tmp_path):
    """It is watched as what it is now, be its number another or the same; so is a link to another, and one renamed."""
    directory = tmp_path / "d"
    directory.mkdir()
    told.watch(directory, tmp_path / "absent", now=0.0)
    assert told.directories == {str(directory)}
    (emitter,) = told.watches._observer.emitters
    directory.rmdir()
    emitter.join(SECONDS)
    told.watch(directory, now=10.0)
    assert told.directories == set()
    for now in (20.0, 30.0):
        directory.mkdir()
        told.watch(directory, now=now)
        (directory / "x").touch()
        assert told(directory / "x")
        directory.rename(tmp_path / f"old{now}")
    directory.symlink_to("old20.0")
    told.watch(directory, now=40.0)
    directory.unlink()
    directory.symlink_to("old30.0")
    told.watch(directory, now=50.0)
    (tmp_path / "old30.0" / "y").touch()
    assert told(directory / "y")


def test_a_directory_made_anew_between_two_walks(told, tmp_path):
    """Though its number is the same: what watched the old one has ended."""
    directory = tmp_path / "d"
    directory.mkdir()
    told.watch(directory, now=0.0)
    identity = directory.stat().st_ino
    (emitter,) = told.watches._observer.emitters
    directory.rmdir()
    emitter.join(SECONDS)
    directory.mkdir()
    watch, (device, _) = told.watches._watched[str(directory)]
    told.watches._watched[str(directory)] = watch, (device, directory.stat().st_ino)  # whatever this file system does
    told.watch(directory, now=10.0)
    (directory / "x").touch()
    assert told(directory / "x"), identity


def test_two_names_of_a_directory(told, tmp_path):
    """A link to a watched directory: both names are given, and one of them may go."""
    (tmp_path / "d").mkdir()
    (tmp_path / "link").symlink_to("d")
    told.watch(tmp_path / "d", tmp_path / "link")
    (tmp_path / "d" / "x").touch()
    assert {told.paths.get(timeout=SECONDS) for _ in range(2)} == {f"{tmp_path}/d/x", f"{tmp_path}/link/x"}
    told.watch(tmp_path / "link", now=10.0)
    (tmp_path / "d" / "y").touch()
    assert told(tmp_path / "link" / "y")


def test_what_is_no_directory_or_must_not_be_listed(told, tmp_path, monkeypatch):
    """A file where a directory was, or one of another user: polled, without a word."""
    (tmp_path / "file").touch()
    (tmp_path / "other").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("other"))
    told.watch(tmp_path / "file", tmp_path / "other", tmp_path)
    assert told.directories == {str(tmp_path)}
    assert told.watches.note == ""


def limited(monkeypatch, number, allowed):
    """The kernel refuses what goes beyond `allowed` watches."""
    schedule = directory_watches.Observer.schedule
    asked = []

    def refuse(self, handler, path, **options):
        asked.append(path)
        if len(asked) > allowed:
            raise OSError(number, "inotify watch limit reached")
        return schedule(self, handler, path, **options)

    monkeypatch.setattr(directory_watches.Observer, "schedule", refuse)
    return asked


def test_no_watch_left(told, directories, monkeypatch):
    """Those that could be watched are, a note names the limit, and it is tried again after the next walk."""
    some = directories(5)
    asked = limited(monkeypatch, errno.ENOSPC, 2)
    told.watch(*some)
    assert told.directories == set(some[:2])
    assert told.watches.note == f"{some[2]} cannot be watched: [Errno 28] inotify watch limit reached"
    assert asked == some[:3]  # nobody asks 512 times for what is not there
    asked.clear()
    told.watch(*some, now=10.0)
    assert told.directories == set(some[:4])


def test_one_that_cannot_be_watched(told, directories, monkeypatch):
    """It does not hold up the others."""
    some = directories(3)
    limited(monkeypatch, errno.EINVAL, 1)
    told.watch(*some)
    assert told.directories == {some[0]}
    assert some[2] in told.watches.note


def test_no_observer(told, directories, monkeypatch):
    """No instance left: a note, no exception, nothing watched; after a while it is tried again."""
    observer = directory_watches.Observer

    def refuse():
        raise OSError(errno.EMFILE, "inotify instance limit reached")

    monkeypatch.setattr(directory_watches, "Observer", refuse)
    some = directories(1)
    told.watch(*some, now=0.0)
    assert not told.watches.working
    assert told.watches.note == "watching failed: [Errno 24] inotify instance limit reached"
    monkeypatch.setattr(directory_watches, "Observer", observer)
    told.watch(*some, now=299.0)
    assert not told.watches.working
    told.watch(*some, now=300.0)
    assert told.watches.working
    assert told.watches.note == ""


def test_a_system_that_names_no_changes(told, directories, monkeypatch):
    """Watchdog would poll whole directories there: we poll files."""
    monkeypatch.setattr(directory_watches, "Observer", directory_watches.PollingObserver)
    told.watch(*directories(1))
    assert not told.watches.working
    assert told.watches.note == "watching failed: this system names no changes"


def test_no_thread_left(told, directories, monkeypatch):
    """Half of the threads that there were are given back for good: others need some."""
    some = directories(6)
    start, running = threading.Thread.start, []

    def refuse(self):
        if type(self).__name__ == "InotifyEmitter":
            if len(running) == 4:
                raise RuntimeError("can't start new thread")
            running.append(self)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    told.watch(*some, now=0.0)
    assert told.directories == set()
    assert told.watches.note == "watching failed: can't start new thread"
    assert not [one for one in running if one.is_alive()]
    running.clear()
    told.watch(*some, now=300.0)
    assert told.directories == set(some[:2])
    assert told.watches.note == "only 2 directories are watched"


def test_no_thread_to_speak_to_the_observer(told, directories, monkeypatch):
    """The reader goes on."""

    def refuse(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        told.watch(*directories(1), now=0.0)
    assert told.watches.note == "watching failed: can't start new thread"
    assert not told.watches.working


def test_an_observer_that_has_ended(told, directories):
    """Another one begins."""
    some = directories(1)
    told.watch(*some, now=0.0)
    told.watches._observer.stop()
    told.watches._observer.join(SECONDS)
    told.watch(*some, now=10.0)
    touch(some[0], "x")
    assert told(f"{some[0]}/x")


def test_an_observer_that_does_not_answer(told, directories, monkeypatch):
    """Nobody waits for it, not even at the end; when it answers it is asked again."""
    monkeypatch.setattr(directory_watches, "_ANSWER_SECONDS", 0.01)
    released = threading.Event()
    unschedule = directory_watches.Observer.unschedule

    def hang(self, watch):
        released.wait(SECONDS)
        unschedule(self, watch)

    monkeypatch.setattr(directory_watches.Observer, "unschedule", hang)
    some = directories(2)
    told.watch(some[0], now=0.0)
    told.watches._worker.join(SECONDS)
    told.watch(some[1], now=10.0)
    assert not told.watches.working
    told.watch(*some, now=20.0)
    assert told.watches.note == "the observer does not answer"
    released.set()
    told.watches._worker.join(SECONDS)
    assert told.directories == {some[1]}
    assert told.watches.working

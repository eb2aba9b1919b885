"""The threads: real files, real time outs on the queue, and what happens when a mount or the loop stands still."""

import errno
import os
import threading

import pytest
from watchdog.events import FileModifiedEvent
from watchdog.observers.api import BaseObserver

from megatron_monitor.follow import follower as follower_module
from megatron_monitor.follow.content import Content
from megatron_monitor.follow.discovery import DiscoveredPath
from megatron_monitor.follow.finite import read_once
from megatron_monitor.follow.follower import Follower
from megatron_monitor.follow.inbox import Inbox
from megatron_monitor.follow.messages import CaughtUp, Data, Opened, Scanned, Unreadable
from megatron_monitor.follow.mounts import Mount, Mounts
from megatron_monitor.follow.os_layer import OsLayer
from megatron_monitor.follow.patterns import WatchedPath
from megatron_monitor.follow.settings import FollowSettings
from megatron_monitor.follow.waker import Waker
from megatron_monitor.system.clock import SystemClock

SECONDS = 120  # that no test needs, on a machine that is busy


@pytest.fixture
def start():
    """Starts a follower and stops it at the end."""
    followers = []

    def make(*patterns, resume=None, size=32, local=True, os_layer=None, mounts=None, **settings):
        messages = Inbox(size)
        table = Mounts([Mount("/", "ext4" if local else "nfs")])
        follower = Follower(
            [WatchedPath(str(pattern)) for pattern in patterns],
            resume or {},
            messages,
            settings=FollowSettings(**settings),
            os_layer=os_layer,
            mounts=mounts or (lambda: table),
        )
        follower.start()
        followers.append(follower)
        return follower, messages

    yield make
    for follower in followers:
        follower.stop(SECONDS)


def until(messages, kind):
    """The next message of this kind; fails the test if there is none in time."""
    clock = SystemClock()
    late = clock.monotonic() + SECONDS
    while not isinstance(message := messages.get(timeout=SECONDS), kind):
        assert clock.monotonic() < late
    return message


def test_woken_by_events(start, append, tmp_path):
    """On a local mount an append is delivered long before the next poll, and so is a new file."""
    log = tmp_path / "a.log"
    log.write_text("one\n")
    follower, messages = start(tmp_path / "*.log", poll_interval=1000.0, idle_interval=1000.0)
    until(messages, CaughtUp)
    assert follower.status()[0].mode == "inotify"
    append(log, b"two\n")
    assert until(messages, Data).data == b"two\n"
    (tmp_path / "b.log").write_text("three\n")
    assert until(messages, Data).data == b"three\n"
    assert follower.alive


def test_without_an_observer_the_reader_polls(start, append, tmp_path, monkeypatch):
    """No inotify watch is left: nothing is said of it, and the next look finds what was written."""

    def schedule(*_, **__):
        raise OSError(errno.ENOSPC, "inotify watch limit reached")

    monkeypatch.setattr(BaseObserver, "schedule", schedule)
    log = tmp_path / "a.log"
    log.write_text("one\n")
    follower, messages = start(log, poll_interval=0.02)
    until(messages, Scanned)
    until(messages, CaughtUp)
    append(log, b"two\n")
    assert until(messages, Data).data == b"two\n"
    assert follower.status()[0].mode == "poll"


def test_where_much_is_written_nothing_is_observed_for_a_while(tmp_path):
    """To be told of each change costs more than to look."""
    waker, directory = Waker(), {str(tmp_path): 0.0}
    assert waker.observe(directory, 0.0)
    for _ in range(100):
        waker.on_any_event(FileModifiedEvent(str(tmp_path / "a.log")))
    observed = []
    for now in (10.0, 300.0, 310.0):
        assert waker.observe(directory, now)
        observed.append(len(waker._watches))
    assert observed == [0, 0, 1]
    waker.close()


def test_a_call_ends_a_wait_that_events_do_not(tmp_path):
    """For a while after a pass events add up."""
    waker = Waker()
    waker.on_any_event(FileModifiedEvent(str(tmp_path / "a.log")))
    caller = threading.Timer(0.1, waker.wake)
    caller.start()
    waker.wait(SECONDS, idle_seconds=SECONDS)
    assert waker.take_changes() == ({str(tmp_path / "a.log")}, True)
    assert waker.take_changes() == (set(), False)
    caller.join()


def test_polled_on_a_network_mount(start, append, tmp_path):
    """Where this system sees nothing of others' writes nothing is watched, and the poll finds the change."""
    log = tmp_path / "a.log"
    log.write_text("one\n")
    follower, messages = start(log, local=False, poll_interval=0.02)
    until(messages, Scanned)
    assert follower.status()[0].mode == "poll"
    until(messages, CaughtUp)
    append(log, b"two\n")
    assert until(messages, Data).data == b"two\n"
    assert follower.stop(SECONDS)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("follow")]


def test_full_queue_holds_the_reader_back(start, tmp_path):
    """The loop takes messages when it can; nothing is lost meanwhile, and stopping does not wait for it."""
    log = tmp_path / "a.log"
    text = b"".join(b"%d\n" % number for number in range(1000))
    log.write_bytes(text)
    follower, messages = start(log, size=1, read_bytes=100)
    got = []
    while len(b"".join(got)) < 2000:
        message = messages.get(timeout=SECONDS)
        if isinstance(message, Data):
            got.append(message.data)
            assert messages.qsize() <= 3, "a place, and what the reader put before it waited"
    assert b"".join(got) == text[: len(b"".join(got))]
    assert follower.stop(SECONDS)


class Hanging(OsLayer):
    """A mount whose server does not answer: calls below `root` return only when released."""

    def __init__(self, root):
        self.root = str(root)
        self.entered = threading.Event()
        self.released = threading.Event()

    def stat(self, path):
        """Hangs."""
        self._hang(path)
        return super().stat(path)

    def realpath(self, path):
        """Hangs."""
        self._hang(path)
        return super().realpath(path)

    def scandir(self, path):
        """Hangs."""
        self._hang(path)
        return super().scandir(path)

    def _hang(self, path):
        if path.startswith(self.root):
            self.entered.set()
            self.released.wait(SECONDS * 3)


def test_hung_mount_blocks_its_own_thread_only(start, append, tmp_path, monkeypatch):
    """Other mounts are read, status is answered and stopping returns while one mount hangs for ever."""
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.log").write_text(f"{name}\n")
    monkeypatch.setattr(follower_module, "_RESOLVE_SECONDS", 0.01)
    system = Hanging(tmp_path / "bad")
    table = Mounts([Mount("/", "ext4"), Mount(f"{tmp_path}/bad", "nfs"), Mount(f"{tmp_path}/good", "nfs")])
    follower, messages = start(tmp_path / "**/*.log", os_layer=system, mounts=lambda: table, poll_interval=0.02)
    assert until(messages, Data).data == b"good\n"
    assert system.entered.wait(SECONDS)
    append(tmp_path / "good" / "a.log", b"more\n")
    assert until(messages, Data).data == b"more\n"
    hung = next(status for status in follower.status() if status.mount.endswith("bad"))
    assert hung.busy_seconds > 0
    assert follower.alive
    assert not follower.stop(0.05)
    system.released.set()
    assert follower.stop(SECONDS)


def test_mount_that_appears_later(start, tmp_path):
    """A mount point that comes up under a pattern gets a reader of its own."""
    (tmp_path / "auto").mkdir()
    (tmp_path / "auto" / "a.log").write_text("late\n")
    tables = [Mounts([Mount("/", "ext4")]), Mounts([Mount("/", "ext4"), Mount(f"{tmp_path}/auto", "nfs")])]
    follower, messages = start(
        tmp_path / "*/*.log", mounts=lambda: tables.pop(0) if len(tables) > 1 else tables[0], idle_interval=0.02
    )
    scans = {until(messages, Scanned).mount for _ in range(20)}
    assert scans == {"/", f"{tmp_path}/auto"}
    assert {status.mount for status in follower.status()} == scans


def test_resume_through_the_follower(start, append, tmp_path):
    """Positions reach the reader of their mount."""
    log = tmp_path / "a.log"
    log.write_text("text that is long enough to prove that it is the same file\n")
    status = log.stat()
    read = Content(status.st_dev, status.st_ino).advance(0, log.read_bytes())
    append(log, b"more\n")
    _, messages = start(log, resume={str(log): read.position(log.stat().st_size - 5, (), 0.0)})
    assert until(messages, Opened).resumed
    assert until(messages, Data).data == b"more\n"


def test_read_once(append, kinds, tmp_path):
    """Every file to its end, in turns of one block, then the end: no thread, no wait."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.log").write_bytes(name.encode() * 25)
    found = [DiscoveredPath(f"{tmp_path}/{name}.log") for name in "ab"]
    messages = list(read_once(found, SystemClock(), read_bytes=10))
    data = [message.data for message in messages if isinstance(message, Data)]
    assert data == [b"a" * 10, b"b" * 10] * 2 + [b"a" * 5, b"b" * 5]
    assert kinds(messages).count("CaughtUp") == 2
    assert kinds(messages)[0] == "Scanned"


def test_read_once_tells_what_cannot_be_read(tmp_path):
    """A path that was given and is absent, or is no file, is told; a pattern without a match is not."""
    os.mkfifo(tmp_path / "fifo")
    found = [DiscoveredPath(str(tmp_path / name), literal=name != "gone") for name in ("absent", "fifo", "gone")]
    messages = read_once(found, SystemClock())
    reported = {message.source: message.errno for message in messages if isinstance(message, Unreadable)}
    assert reported == {str(tmp_path / "absent"): errno.ENOENT, str(tmp_path / "fifo"): None}

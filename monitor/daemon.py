"""The daemon: the one loop that owns all state, and the threads around it.

Reader threads put messages in a bounded queue; the loop takes them, folds, judges, publishes a Snapshot, saves. HTTP
threads read the last Snapshot; notifier threads drain their own queues. A hung mount stops its own reader only.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from monitor.clock import Clock, SystemClock
from monitor.config import Config, ConfigError, Web, host_and_port
from monitor.core import Core
from monitor.follow.follower import Follower
from monitor.follow.inbox import Inbox
from monitor.follow.messages import Position
from monitor.follow.patterns import Watch
from monitor.follow.settings import FollowSettings
from monitor.known import Saved
from monitor.metrics import Snapshot
from monitor.notifiers import NotificationQueue
from monitor.outputs import Outputs
from monitor.rules import custom_rules
from monitor.serve.auth import BasicAuth
from monitor.serve.collector import SnapshotCollector
from monitor.serve.http import App
from monitor.serve.latest import Latest
from monitor.serve.server import HttpServer
from monitor.serve.tls import Tls, TlsError
from monitor.store import Saver, StateInUseError, Store, encode, pause_after
from monitor.systemd import ServiceManager

_log = logging.getLogger(__name__)

_WAIT = 0.5  # seconds that the loop waits for a message at most: so often is the clock asked whether a run hangs
_PACE = 0.1  # between two turns that take messages, unless somebody asks
_CATCH_UP = 0.05  # seconds that a page may wait for the readers: they need 5 ms for what 50 runs write in half a second
_TELL = 1.0  # between two lines for systemd
_BATCH_SECONDS = 0.2  # of messages taken before the runs are judged and shown again
_JUMP = 5.0  # seconds between the two clocks in one turn: NTP slews by milliseconds, anything more was a step
_HOLD = 5.0  # seconds that a reload shows the runs as they were, while their files are opened anew
_HUNG = 10.0  # seconds in one call after which a mount holds readiness up no longer
_SAVE_SOON = 1.0  # seconds to the save after a rotation: a crash later finds no more what the old file ended with
_SAVE_LAST = 2.0  # seconds that the last save may take
_STOP_SECONDS = 0.8  # for each group of threads at the end: with the save, SIGTERM is done within 5 s


class StartError(Exception):
    """The daemon cannot start; the message says why and what to do."""


class ReloadError(Exception):
    """The new configuration cannot be taken; the message says why. The old one stays."""


def default_state_directory(address: str) -> Path:
    """$XDG_STATE_HOME/megatron-monitor, one directory an address: two daemons never share an address."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base) / "megatron-monitor" / address.replace(":", "-").replace("/", "_")


class Daemon:
    """Made from a configuration; `start`, then `run` until `stop` is called (from a signal handler or a test)."""

    def __init__(
        self, config: Config, clock: Clock | None = None, configure: Callable[[], Config] | None = None
    ) -> None:
        """`configure` reads the configuration again for a reload. Raises ConfigError."""
        self.config = config
        self.clock = clock or SystemClock()
        self.core = Core(config, custom_rules(config))
        self._configure = configure
        self._inbox = Inbox(FollowSettings().queue_size)
        self._stopping = threading.Event()
        self._reloading = threading.Event()
        first = Snapshot(at=self.clock.wall(), loop_turned_at=self.clock.wall())
        self._latest = Latest(first, lambda: self._inbox.knock())  # noqa: PLW0108 - a reload replaces it
        self._turned = self.clock.monotonic()
        self._took = float("-inf")
        """When a message was last taken."""
        self._offset = self.clock.wall() - self._turned
        self._hold_until = float("-inf")
        self._was_ready = False
        self._store: Store | None = None
        self._saver: Saver | None = None
        self._save_at = self._told_at = float("-inf")
        self._save_failures = 0
        self._server: HttpServer | None = None
        self._follower: Follower | None = None
        self._outputs: Outputs | None = None
        self._notifications = NotificationQueue(config.notifiers, clock=self.clock)
        self._manager = ServiceManager(os.environ)
        self._reloaded(successful=True)

    @property
    def address(self) -> str:
        """host:port that HTTP listens on."""
        assert self._server is not None
        host, port = self._server.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def start(self) -> None:
        """Bind, take the state directory, resume, begin to follow. Raises StartError."""
        host, port = host_and_port(self.config.listen)
        try:
            tls, auth = _secured(self.config.web)
            app = App(self._latest, self.clock, lambda: self._turned, self._latest.figures)
            self._server = HttpServer(host, port, app)
        except TlsError as error:
            raise StartError(f"web.tls_server_config: {error}") from error
        except OSError as error:
            reason = error.strerror or str(error)
            raise StartError(
                f"cannot listen on {self.config.listen}: {reason}; is another megatron-monitor running? "
                "Choose another address with --listen"
            ) from error
        self._server.tls, self._server.auth = tls, auth
        self._follower = self._followed(self._load())
        self._outputs = self._made_outputs()
        self._notifications.start()
        self._server.start()
        self._outputs.start()
        self._follower.start()
        self._manager.ready()

    def run(self) -> None:
        """Turn the loop until `stop`; then save and end every thread."""
        try:
            while not self._stopping.is_set():
                self.turn(_WAIT)
        finally:
            self._close()

    def stop(self) -> None:
        """End the loop at its next turn. Safe in a signal handler."""
        self._stopping.set()

    def ask_reload(self) -> None:
        """Read the configuration again at the next turn. Safe in a signal handler."""
        self._reloading.set()

    def turn(self, wait: float) -> None:
        """One turn: take what came, judge, show, save."""
        if self._reloading.is_set():
            self._reloading.clear()
            self._reload()
        self._take(wait)
        if self._follower is not None and not self._follower.alive:
            raise RuntimeError("a reader thread has ended: its traceback stands above")  # a bug: start anew
        began = self.clock.monotonic()
        now = self._now()
        for transition in self.core.tick(now):
            level = logging.WARNING if transition.status == "firing" and not transition.quiet else logging.INFO
            _log.log(
                level, "run=%s incident=%s status=%s severity=%s %s",
                transition.run, transition.incident, transition.status, transition.severity,
                _printable(transition.summary),
            )  # fmt: skip
            if not transition.quiet:
                self._notifications.put(transition)
                self._save_at = float("-inf")  # what people were told is not told again after a crash
        self._count_saves()
        if not self._was_ready:
            self._was_ready = self.core.ready and self._searched()
        pages = self._latest.pages_wanted
        if self._latest.wanted:
            self._show(now, pages=pages)
        turned = self.clock.monotonic()
        self.core.counts.set("loop_duration_seconds", turned - began)
        if self.core.fleeting:
            self.core.fleeting = False
            self._save_at = min(self._save_at, turned + _SAVE_SOON)
        if self.core.changed and turned >= self._save_at:
            self._save(now)
        self._turned = self.clock.monotonic()
        self._manager.turned(self._turned)
        if self._manager.listens and not 0.0 <= self._turned - self._told_at < _TELL:
            self._told_at = self._turned
            self._manager.status(self._status())

    def _take(self, wait: float) -> None:
        if not self._latest.wanted:
            self._inbox.wait(self._took + _PACE - self.clock.monotonic(), wait)
        if self._latest.wanted and self._follower is not None and not self._inbox.pressing:
            self._follower.catch_up(_CATCH_UP)
        until = self.clock.monotonic() + _BATCH_SECONDS
        while messages := self._inbox.get_some():
            now = self._now()
            for message in messages:
                self.core.handle(message, now)
            self._took = self.clock.monotonic()
            if self._took >= until:
                return

    def _now(self) -> float:
        """Unix seconds. Where the wall clock was set since the last call, all that is known moves along first."""
        wall = self.clock.wall()
        offset = wall - self.clock.monotonic()
        jump, self._offset = offset - self._offset, offset
        if abs(jump) > _JUMP:
            _log.warning("the wall clock was set by %+.0f s; silences are counted on as before", jump)
            self.core.clock_jumped(jump)
            self.core.counts.add("clock_jumps_total")
        return wall

    # --- what is shown ----------------------------------------------------------------------------------------------

    def _show(self, now: float, *, pages: bool) -> None:
        """A snapshot for whoever asked; `pages` if one of them wants more than figures."""
        asked = self._latest.wanted
        self._count(now)
        snapshot = self.core.snapshot(now, pages=pages)
        if self._turned < self._hold_until:  # a reload: the runs are shown as they were until all of them are back
            old = self._latest.last
            if {run.run for run in old.runs} <= {run.run for run in snapshot.runs}:
                self._hold_until = float("-inf")
            else:
                snapshot = dataclasses.replace(snapshot, runs=old.runs, incidents=old.incidents)
        self._latest.show(dataclasses.replace(snapshot, ready=self._was_ready), asked, pages=pages)

    def _count(self, now: float) -> None:
        counts = self.core.counts
        for (notifier, outcome), count in self._notifications.counts().items():
            counts.set("notifications_total", count, notifier, outcome)
        if self._outputs is not None:
            for (output, written), count in self._outputs.counts().items():
                counts.set("output_writes_total", count, output, written)
        counts.set("loop_timestamp_seconds", now)
        if self._server is not None:
            counts.set("http_connections", self._server.connections)
        if self._follower is not None:
            counts.clear("mount_info")
            for mount in self._follower.status():
                counts.set("mount_info", 1.0, mount.mount, mount.file_system, mount.mode)
                counts.set("mount_busy_seconds", round(mount.busy_seconds, 1), mount.mount)

    def _status(self) -> str:
        """A line for `systemctl status`."""
        runs = [run for run in self.core.runs.values() if run.state.proven]
        incidents = sum(len(run.book.open) for run in runs)
        state = f"{len(runs)} runs, {len(self.core.sources)} files, {incidents} open incidents"
        return state if self._was_ready else f"reading the backlog: {state}"

    def _searched(self) -> bool:
        """Was every mount that answers searched once?"""
        mounts = self._follower.status() if self._follower is not None else ()
        return bool(mounts) and all(one.mount in self.core.scanned or one.busy_seconds > _HUNG for one in mounts)

    # --- configuration ----------------------------------------------------------------------------------------------

    def _followed(self, resume: dict[str, Position]) -> Follower:
        follow = self.config.follow
        settings = FollowSettings(
            poll_interval=follow.poll_interval,
            idle_interval=follow.idle_interval,
            discovery_interval=follow.discovery_interval,
        )
        watches = [Watch(pattern, tuple(watch.exclude)) for watch in self.config.runs for pattern in watch.paths]
        return Follower(watches, resume, self._inbox, settings=settings, clock=self.clock)

    def _made_outputs(self) -> Outputs:
        assert self._server is not None
        instance = f"{socket.gethostname()}:{self._server.address[1]}"
        return Outputs(self.config.outputs, SnapshotCollector(self._latest.figures), instance)

    def _reload(self) -> None:
        if self._configure is None:
            return
        self._manager.reloading(self.clock.monotonic())
        try:
            self._apply(self._configure())
        except (ConfigError, ReloadError, TlsError, OSError) as error:
            _log.error("configuration not reloaded, the old one stays: %s", error)
            self._reloaded(successful=False)
        else:
            _log.info("configuration reloaded")
            self._reloaded(successful=True)
        self._manager.ready()

    def _apply(self, config: Config) -> None:
        """All or nothing: what can fail comes first. Offsets, runs and counters stay."""
        for key in ("listen", "state_dir"):
            if getattr(config, key) != getattr(self.config, key):
                raise ReloadError(f"{key}: cannot change while the monitor runs; restart it")
        if not config.runs:
            raise ReloadError("runs: there is nothing to follow")
        tls, auth = _secured(config.web) if config.web != self.config.web else (None, None)
        rules = custom_rules(config)
        if config.notifiers != self.config.notifiers:
            old = self._notifications
            self._notifications = NotificationQueue(config.notifiers, clock=self.clock)
            self._notifications.start()
            # It goes on delivering what waits; nobody waits for it.
            threading.Thread(target=old.stop, args=(30.0,), name="old notifiers", daemon=True).start()
        if self._server is not None and config.web != self.config.web:
            self._server.tls, self._server.auth = tls, auth
        if self._follower is not None:
            self._follower.stop(_STOP_SECONDS)
        self._show(self._now(), pages=True)  # what is shown until all of it is back
        self._inbox = Inbox(FollowSettings().queue_size)  # a reader left behind keeps the old one
        changed_outputs = config.outputs != self.config.outputs
        self.config = config
        if changed_outputs and self._outputs is not None:
            self._outputs.stop(_STOP_SECONDS)
            self._outputs = self._made_outputs()
            self._outputs.start()
        positions = self.core.reconfigure(config, rules, self._now())
        self._hold_until = self.clock.monotonic() + _HOLD
        self._follower = self._followed(positions)
        self._follower.start()
        logging.getLogger().setLevel(config.log_level.upper())

    def _reloaded(self, *, successful: bool) -> None:
        self.core.counts.set("config_last_reload_successful", float(successful))
        if successful:
            self.core.counts.set("config_last_reload_success_timestamp_seconds", self.clock.wall())

    # --- state ------------------------------------------------------------------------------------------------------

    def _load(self) -> dict[str, Position]:
        given = self.config.state_dir
        directory = Path(os.path.expanduser(given)) if given else default_state_directory(self.address)
        store = Store(directory)
        try:
            store.lock()
        except StateInUseError as error:
            self._release_server()
            raise StartError(f"{error}; give this one a state_dir of its own (--set state_dir=DIR)") from error
        except OSError as error:
            _log.warning(
                "state=%s cannot be used: %s; watching without it: a restart will read the logs anew",
                directory, error.strerror or error,
            )  # fmt: skip
            self.core.counts.add("state_save_failures_total")
            return {}
        self._store, self._saver = store, Saver(store)
        saved, problems = store.load(Saved)
        for problem in problems:
            _log.warning("state %s; it is rebuilt from the logs", problem)
            self.core.counts.add("state_rebuilds_total")
        return self.core.restore(saved) if saved is not None else {}

    def _save(self, now: float) -> None:
        """Hand a copy of everything to the saver."""
        if self._saver is None or self._saver.busy:  # a disk that is slow is not given more
            return
        began = self.clock.monotonic()
        data = encode(self.core.save(now))
        self._saver.offer(data)
        self.core.changed = False
        ended = self.clock.monotonic()
        self._save_at = ended + pause_after(len(data), ended - began)

    def _count_saves(self) -> None:
        if self._saver is None:
            return
        failures = self._saver.failures
        if failures > self._save_failures:
            self.core.counts.add("state_save_failures_total", by=failures - self._save_failures)
            self._save_failures, self.core.changed = failures, True  # what was not written is tried again

    def _close(self) -> None:
        self._manager.stopping()
        self._save_last()  # first: whatever hangs below, this is done
        if self._follower is not None:
            self._follower.stop(_STOP_SECONDS)
        self._notifications.stop(_STOP_SECONDS)
        if self._outputs is not None:
            self._outputs.stop(_STOP_SECONDS)
        self._release_server()
        if self._store is not None:
            self._store.release()

    def _save_last(self) -> None:
        if self._saver is None:
            return
        self._saver.offer(encode(self.core.save(self.clock.wall())))
        if not self._saver.finish(_SAVE_LAST):
            _log.warning("state not saved: the disk did not take it within %.0f s", _SAVE_LAST)

    def _release_server(self) -> None:
        if self._server is not None:
            self._server.stop(_STOP_SECONDS)
            if self._server.auth is not None:
                self._server.auth.close()
            self._server = None


def _secured(web: Web) -> tuple[Tls | None, BasicAuth | None]:
    """TlsError."""
    tls = Tls(web.tls_server_config) if web.tls_server_config is not None else None
    return tls, BasicAuth(web.basic_auth_users) if web.basic_auth_users else None


def _printable(text: str) -> str:
    """A log's text may hold escapes that a terminal obeys."""
    return "".join(char if char.isprintable() else "�" for char in text)


def serve(config: Config, configure: Callable[[], Config] | None = None) -> None:
    """Run the daemon in the foreground until SIGTERM or SIGINT. Raises StartError.

    SIGHUP reads the configuration again by `configure`; SIGUSR1 writes the stack of every thread to standard error.
    """
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
    daemon = Daemon(config, configure=configure)
    daemon.start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: daemon.stop())
    signal.signal(signal.SIGHUP, lambda *_: daemon.ask_reload())
    _log.info("listening on %s://%s/", "https" if config.web.tls_server_config else "http", daemon.address)
    daemon.run()

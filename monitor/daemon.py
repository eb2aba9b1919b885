"""The daemon: the one loop that owns all state, and the threads around it.

Reader threads put messages in a bounded queue; the loop takes them, folds, judges, publishes a Snapshot, saves. HTTP
threads read the last Snapshot; notifier threads drain their own queues. A hung mount stops its own reader only.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import threading
from pathlib import Path

from monitor.clock import Clock, SystemClock
from monitor.config import Config, Web, host_and_port
from monitor.core import Core, Saved
from monitor.follow.follower import Follower
from monitor.follow.messages import Message, Position
from monitor.follow.patterns import Watch
from monitor.follow.settings import FollowSettings
from monitor.metrics import Snapshot
from monitor.notifiers import NotificationQueue, build_notifiers
from monitor.outputs import Outputs
from monitor.rules import custom_rules
from monitor.serve.http import App, HttpServer
from monitor.store import StateInUseError, Store

_log = logging.getLogger(__name__)

_WAIT = 0.25  # seconds that the loop waits for a message at most: so often is the clock asked whether a run hangs
_BATCH_SECONDS = 0.2  # of messages taken before the runs are judged and shown again
_SAVE_INTERVAL = 1.0


class StartError(Exception):
    """The daemon cannot start; the message says why and what to do."""


def default_state_directory(address: str) -> Path:
    """$XDG_STATE_HOME/megatron-monitor, one directory an address: two daemons never share an address."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base) / "megatron-monitor" / address.replace(":", "-").replace("/", "_")


class Daemon:
    """Made from a configuration; `start`, then `run` until `stop` is called (from a signal handler or a test)."""

    def __init__(self, config: Config, clock: Clock | None = None) -> None:
        self.config = config
        self.clock = clock or SystemClock()
        self.core = Core(config, custom_rules(config))
        self._messages: queue.Queue[Message] = queue.Queue(maxsize=FollowSettings().queue_size)
        self._stopping = threading.Event()
        self._snapshot = Snapshot(at=self.clock.wall(), loop_turned_at=self.clock.wall())
        self._store: Store | None = None
        self._saved_at = 0.0
        self._server: HttpServer | None = None
        self._follower: Follower | None = None
        self._outputs: Outputs | None = None
        self._notifications = NotificationQueue(build_notifiers(config), clock=self.clock)

    @property
    def address(self) -> str:
        """host:port that HTTP listens on."""
        assert self._server is not None
        host, port = self._server.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def start(self) -> None:
        """Bind, take the state directory, resume, begin to follow. Raises StartError."""
        if self.config.web != Web():
            raise StartError("web: TLS and basic auth are not served yet; remove web: and listen on loopback")
        host, port = host_and_port(self.config.listen)
        try:
            self._server = HttpServer(host, port, App(lambda: self._snapshot, self.clock))
        except OSError as error:
            reason = error.strerror or str(error)
            raise StartError(
                f"cannot listen on {self.config.listen}: {reason}; is another megatron-monitor running? "
                "Choose another address with --listen"
            ) from error
        resume = self._load()
        settings = FollowSettings(
            poll_interval=self.config.follow.poll_interval,
            idle_interval=self.config.follow.idle_interval,
            discovery_interval=self.config.follow.discovery_interval,
        )
        watches = [Watch(pattern, tuple(watch.exclude)) for watch in self.config.runs for pattern in watch.paths]
        self._follower = Follower(watches, resume, self._messages, settings=settings, clock=self.clock)
        instance = f"{socket.gethostname()}:{self._server.address[1]}"
        self._outputs = Outputs(self.config.outputs, lambda: self._snapshot, instance)
        self._notifications.start()
        self._server.start()
        self._outputs.start()
        self._follower.start()

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

    def turn(self, wait: float) -> None:
        """One turn: take what came, judge, show, save."""
        self._take(wait)
        if self._follower is not None and not self._follower.alive:
            raise RuntimeError("a reader thread has ended: its traceback stands above")  # a bug: start anew
        began = self.clock.monotonic()
        now = self.clock.wall()
        for transition in self.core.tick(now):
            level = logging.WARNING if transition.status == "firing" and not transition.quiet else logging.INFO
            _log.log(
                level, "run=%s incident=%s status=%s severity=%s %s",
                transition.run, transition.incident, transition.status, transition.severity, transition.summary,
            )  # fmt: skip
            if not transition.quiet:
                self._notifications.put(transition)
        for (notifier, outcome), count in self._notifications.counts().items():
            self.core.counts.set("notifications_total", count, notifier, outcome)
        if self._outputs is not None:
            for (output, written), count in self._outputs.counts().items():
                self.core.counts.set("output_writes_total", count, output, written)
        self.core.counts.set("loop_timestamp_seconds", now)
        self._snapshot = self.core.snapshot(now)
        self.core.counts.set("loop_duration_seconds", self.clock.monotonic() - began)
        if self.core.changed and now - self._saved_at >= _SAVE_INTERVAL:
            self._save(now)

    def _take(self, wait: float) -> None:
        until = self.clock.monotonic() + _BATCH_SECONDS
        try:
            message = self._messages.get(timeout=wait)
            while True:
                self.core.handle(message, self.clock.wall())
                if self.clock.monotonic() >= until:
                    return
                message = self._messages.get_nowait()
        except queue.Empty:
            return

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
        self._store = store
        saved, problems = store.load(Saved)
        for problem in problems:
            _log.warning("state %s; it is rebuilt from the logs", problem)
            self.core.counts.add("state_rebuilds_total")
        return self.core.restore(saved) if saved is not None else {}

    def _save(self, now: float) -> None:
        self._saved_at = now
        if self._store is None:
            return
        if self._store.save(self.core.save(now)):
            self.core.changed = False
        else:
            self.core.counts.add("state_save_failures_total")

    def _close(self) -> None:
        if self._follower is not None:
            self._follower.stop(2.0)
        self._save(self.clock.wall())
        self._notifications.stop(2.0)
        if self._outputs is not None:
            self._outputs.stop(2.0)
        self._release_server()
        if self._store is not None:
            self._store.release()

    def _release_server(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None


def serve(config: Config) -> None:
    """Run the daemon in the foreground until SIGTERM or SIGINT. Raises StartError."""
    daemon = Daemon(config)
    daemon.start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: daemon.stop())
    _log.info("listening on http://%s/", daemon.address)
    daemon.run()

"""The daemon: one loop that owns all state, and the threads around it.

Reader threads put messages in a bounded queue (live.py). The loop takes the messages, updates the runs, evaluates the
rules, shows and saves. HTTP and output threads ask the loop for a Snapshot (serve/latest.py). Notifier threads send the
pending notifications (deliveries.py). A mount that hangs stops only its own reader.
"""

import contextlib
import faulthandler
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial, reduce
from itertools import chain
from operator import attrgetter

import msgspec

from megatron_monitor.config import Config, ConfigError, state_directory
from megatron_monitor.core import Core
from megatron_monitor.core.saved import Saved
from megatron_monitor.core.sources import unmatched, watches
from megatron_monitor.dispatch import Dispatcher
from megatron_monitor.extensions import services
from megatron_monitor.live import LiveCore
from megatron_monitor.parsers.redaction import masked_path
from megatron_monitor.serve.latest import LatestSnapshot
from megatron_monitor.services import Services, StartError
from megatron_monitor.snapshot import EVERYTHING, Snapshot, ViewRequest, merged
from megatron_monitor.store import StateInUseError, StateNewerError
from megatron_monitor.system.clock import SystemClock
from megatron_monitor.system.flag import Flag
from megatron_monitor.system.systemd import ServiceManager

__all__ = ["Daemon", "ReloadError", "StartError", "serve"]

_log = logging.getLogger(__name__)

_WAIT = 0.5  # maximum seconds of waiting for a message, and so between two checks for hangs
_POLL = 0.1  # maximum seconds of waiting for Kafka records, so that other messages are not delayed
_STATUS_SECONDS = 1.0  # between two status lines for systemd
_HOLD = 5.0  # maximum seconds after a reload in which the old figures are shown, until all files are open again
_SETTLE = 10.0  # maximum seconds after a start without sending: the logs may end an incident of the saved state
_UNMATCHED = 2.0  # seconds until patterns without a file are logged
_HUNG = 10.0  # seconds in one system call after which a mount no longer delays readiness
_STOP_SECONDS = 0.8  # for the reader threads and for the notifier threads at the end
_FIXED = (
    "listen", "web", "external_url", "runbook_url", "outputs", "notifiers", "state_dir", "receiver.listen",
    "receiver.directory", "kafka", "log_format",
)  # fmt: skip
"""Configuration keys that a reload cannot change."""


class ReloadError(Exception):
    """The new configuration cannot be applied, for the reason in the message. The old one stays."""


class Daemon:
    """The observer process: call `start`, then `run`, which returns after `stop`."""

    def __init__(self, config: Config, configure: Callable[[], Config]) -> None:
        """Bind the address. `configure` reads the configuration again, for a reload. Raises StartError, ConfigError."""
        self.config = config
        self.clock = SystemClock()
        self._parts = services(self)
        self.live = LiveCore(self.followed, self.clock)
        self._core = self.live.core
        self._configure = configure
        self._stopping = Flag()
        self._at_once = Flag()
        self._reload_asked = Flag()
        self._latest = LatestSnapshot(Snapshot(at=self.clock.wall()), self.live.wake)
        self._manager = ServiceManager(os.environ)
        self._began_at = self._turned_at = self.clock.monotonic()
        self._report_unmatched_at = self._began_at + _UNMATCHED
        self._status_at = self._hold_until = float("-inf")  # monotonic seconds
        self._was_ready = False
        self.services = Services(config, self._latest, self.clock, lambda: self._turned_at)
        self._pipeline = Dispatcher(self._core, config, self.clock, self.live.wake, self.services.links)

    @property
    def followed(self) -> Config:
        """The configuration with the paths that optional parts add."""
        return reduce(lambda config, part: part.follow(config), self._parts, self.config)

    def start(self) -> None:
        """Lock the state directory, resume, and begin to follow. Raises StartError."""
        try:
            saved = self._load()
            for part in self._parts:
                part.start()
                self.services.notes.append(partial(attrgetter("notice"), part))
        except StartError:
            self._close_parts()
            self.services.stop_server()
            self._pipeline.saving.release()
            raise
        self._note_reload(successful=True)
        self.services.start()
        self.live.start(saved)
        self._pipeline.start()
        self._manager.ready()

    def _load(self) -> Saved | None:
        try:
            return self._pipeline.saving.load(state_directory(self.config, self.services.address))
        except (StateInUseError, StateNewerError) as error:
            advice = "give this one a state_dir of its own (--set state_dir=DIR)"
            if isinstance(error, StateNewerError):
                advice = f"run the version that wrote it, or {advice}, or move the file away: "
                advice += "the logs are then read again, and open incidents are lost"
            raise StartError(f"{error}; {advice}") from error

    def _close_parts(self) -> None:
        for part in self._parts:
            part.close()

    def run(self) -> None:
        """Run the loop until `stop`, then save and end every thread."""
        try:
            while not self._stopping.is_set():
                self.turn(_WAIT)
                if self.live.over:
                    self._end_of_streams()
            self._serve_final_metrics()
        finally:
            self._close()

    def stop(self, *, at_once: bool = False) -> None:
        """End the loop at its next turn, after the final metrics unless `at_once`. Safe in a signal handler."""
        if at_once or self._stopping.is_set():
            self._at_once.set()
        self._stopping.set()

    def _end_of_streams(self) -> None:
        """Standard input has ended: count an unfinished last line, and evaluate what waits for more lines."""
        now = self.live.now()
        self._core.flush(now)
        self._pipeline.judge(now, now + _SETTLE)
        lines = sum(source.reader.lines for source in self._core.sources.values())
        _log.info("the input has ended after %d lines: %s", lines, self._status())
        self.stop()

    def ask_reload(self) -> None:
        """Read the configuration again at the next turn. Safe in a signal handler."""
        self._reload_asked.set()

    def turn(self, wait: float) -> None:
        """Do one turn: take messages, evaluate, notify, show, save."""
        if self._reload_asked.is_set():
            self._reload_asked.clear()
            self._reload()
        waits = any(part.waits for part in self._parts)
        now = self.live.take(0.0 if self._latest.wanted or waits else wait)
        for part in self._parts:
            part.take(0.0 if self._latest.wanted else min(wait, _POLL))
        began = self.clock.monotonic()
        self._pipeline.judge(now)
        if not self._was_ready and self._core.sources.ready and self._searched():
            self._was_ready = self._core.caught_up = True
            _log.info("following %s", self._status())
        if self._was_ready and 0.0 < self._report_unmatched_at <= began:
            self._report_unmatched_at = 0.0
            for pattern in unmatched(self._core.config, self._core.sources.names):
                _log.warning("%s: no file matches yet; one that appears later is followed", masked_path(pattern))
        if self._latest.wanted:
            self._show(now, self._latest.asked)
        self._core.counts.set("loop_duration_seconds", self.clock.monotonic() - began)
        self._pipeline.saving.turn(now)
        if self._all_read():
            self._pipeline.all_is_read(now)
        if self._was_ready or began - self._began_at >= _SETTLE:
            self._pipeline.send(now)
        self._turned_at = self.clock.monotonic()
        self._manager.turned(self._turned_at)
        if self._manager.listens and not 0.0 <= self._turned_at - self._status_at < _STATUS_SECONDS:
            self._status_at = self._turned_at
            self._manager.status(self._status())

    def _cores(self, now: float) -> list[tuple[Core, float]]:
        """Return the core of the followed files and those of optional parts, each with its instant."""
        return [(self._core, now), *chain(*(part.cores() for part in self._parts))]

    # --- what is shown ----------------------------------------------------------------------------------------------

    def _show(self, now: float, asked: ViewRequest) -> None:
        """Publish a snapshot with the requested parts."""
        self._count(now)
        snapshots = [core.snapshot(at, asked) for core, at in self._cores(now)]
        for part in self._parts:
            snapshots = part.show(snapshots)
        snapshot = merged(snapshots)
        if self._turned_at < self._hold_until:  # after a reload: the old runs, until all of them are read again
            old = self._latest.last
            if {run.run for run in old.runs} <= {run.run for run in snapshot.runs}:
                self._hold_until = float("-inf")
            else:
                snapshot = msgspec.structs.replace(snapshot, runs=old.runs, incidents=old.incidents)
        self._latest.show(msgspec.structs.replace(snapshot, ready=self._was_ready), asked)

    def _count(self, now: float) -> None:
        counts = self._core.counts
        self.services.count(counts)
        for part in self._parts:
            part.count(counts)
        counts.set("loop_timestamp_seconds", now + self._core.wall_offset)
        counts.set("ready", float(self._all_read()))
        counts.clear("mount_info")
        for mount in self.live.mounts():
            counts.set("mount_info", 1.0, mount.mount, mount.file_system, mount.mode)
            counts.set("mount_busy_seconds", round(mount.busy_seconds, 1), mount.mount)

    def _status(self) -> str:
        """Return a line for `systemctl status`."""
        cores = [core for core, _ in self._cores(0.0)]
        runs = [run for core in cores for run in core.runs.values() if run.state.proven]
        files, incidents = sum(len(core.sources.names) for core in cores), sum(len(run.book.open) for run in runs)
        counts = {"file": files, "run": len(runs), "open incident": incidents}
        state = ", ".join(f"{count} {noun}{'s' * (count != 1)}" for noun, count in counts.items())
        return state if self._was_ready else f"reading the backlog: {state}"

    def _all_read(self) -> bool:
        """Return True if every mount was searched and every log found there was read to its end."""
        return self._was_ready and all(one.mount in self._core.scanned for one in self.live.mounts())

    def _searched(self) -> bool:
        """Return True if every mount that answers was searched once and its files were opened."""
        mounts, scanned = self.live.mounts(), self._core.scanned
        if not all(part.ready for part in self._parts):
            return False
        return bool(mounts or not watches(self._core.config)) and all(
            (one.mount in scanned and not one.unopened) or one.busy_seconds > _HUNG for one in mounts
        )

    # --- configuration ----------------------------------------------------------------------------------------------

    def _reload(self) -> None:
        self._manager.reloading(self.clock.monotonic())
        try:
            self._apply(self._configure())
        except (ConfigError, ReloadError, OSError) as error:
            _log.error("configuration not reloaded, the old one stays in use: %s", error)
            self._note_reload(successful=False)
        else:
            _log.info("configuration reloaded")
            self._note_reload(successful=True)
        self._manager.ready()

    def _apply(self, config: Config) -> None:
        """Apply all of a configuration or raise ReloadError. Offsets, runs and counters stay."""
        for key in _FIXED:
            if attrgetter(key)(config) != attrgetter(key)(self.config):
                raise ReloadError(f"{key}: cannot change while the monitor runs: restart it")
        if config.empty:
            raise ReloadError("runs: there is nothing to follow")
        self.live.stop(_STOP_SECONDS)
        self._show(self.live.now(), EVERYTHING)  # shown until all files are read again
        self.config = config
        self.live.reconfigure(self.followed)
        for part in self._parts:
            part.configure(config)
        self._hold_until = self.clock.monotonic() + _HOLD
        logging.getLogger().setLevel(config.log_level.upper())

    def _note_reload(self, *, successful: bool) -> None:
        self._core.counts.set("config_last_reload_successful", float(successful))
        if successful:
            self._core.counts.set("config_last_reload_success_timestamp_seconds", self.clock.wall())

    def _serve_final_metrics(self) -> None:
        """Serve metrics of an intended stop until each scraper has read them: a missing target looks like a crash."""
        began = self.clock.monotonic()
        self._pipeline.saving.soon()  # first, so that a kill during the wait loses nothing
        over = self.config.ends_with_job
        self._pipeline.stop_runs(self.live.now(), over=over)
        for core, _ in self._cores(0.0):
            core.stop_runs(self.clock.wall(), over=over)
        self.services.write_last()
        until = began + self.config.shutdown_grace_period
        while not self._at_once.is_set() and self.clock.monotonic() < min(until, self.services.awaited_until(began)):
            self.turn(_WAIT)

    def _close(self) -> None:
        self._manager.stopping()
        now = self.live.now()
        self._close_parts()
        self._pipeline.saving.save_last(now)  # first, because a step below may hang
        self._pipeline.stop()
        self.live.stop(_STOP_SECONDS)
        self._pipeline.finish(now, _STOP_SECONDS)
        self.services.stop()
        self._pipeline.saving.release()


def _show_threads(*_: object) -> None:
    """Write the stack of each thread to standard error.

    This runs under the interpreter's lock. faulthandler reads frames of running threads: one signal of ten killed a
    busy daemon.
    """
    stacks = (
        f"Thread 0x{identity:x} (most recent call last):\n{''.join(traceback.format_stack(frame))}\n"
        for identity, frame in sys._current_frames().items()
    )
    with contextlib.suppress(OSError):  # by the descriptor: the loop may hold the lock of sys.stderr
        os.write(sys.stderr.fileno(), "".join(stacks).encode("utf-8", "replace"))


def serve(config: Config, configure: Callable[[], Config]) -> None:
    """Run the daemon in the foreground until SIGTERM or SIGINT. Raises StartError.

    SIGTERM ends the daemon after its final metrics were served (`shutdown_grace_period`); SIGINT or a second SIGTERM
    ends it at once. SIGHUP reads the configuration again by `configure`. SIGUSR1 writes all stacks to standard error.
    """
    signal.signal(signal.SIGUSR1, _show_threads)
    faulthandler.register(
        signal.SIGUSR1, file=sys.stderr, all_threads=False, chain=True
    )  # the loop's stack, if it is blocked
    daemon = Daemon(config, configure)
    daemon.start()
    signal.signal(signal.SIGTERM, lambda *_: daemon.stop())
    signal.signal(signal.SIGINT, lambda *_: daemon.stop(at_once=True))  # Ctrl-C
    signal.signal(signal.SIGHUP, lambda *_: daemon.ask_reload())
    _log.info("listening on %s://%s/", "https" if config.web.tls_server_config else "http", daemon.services.address)
    daemon.run()

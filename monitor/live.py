"""A core on live files: reader threads, the queue between them and the core, and the clock.

It saves no state: without a restored state it shows what was read since the start.
"""

import logging
import math
import resource
from collections.abc import Callable

from megatron_monitor.config import Config
from megatron_monitor.core import Core
from megatron_monitor.core.saved import Saved
from megatron_monitor.core.sources import watches
from megatron_monitor.follow.follower import Follower, MountStatus
from megatron_monitor.follow.inbox import Inbox
from megatron_monitor.follow.messages import Position
from megatron_monitor.follow.settings import OLD_SECONDS, QUEUE_SIZE, FollowSettings
from megatron_monitor.pushed import AgentStates
from megatron_monitor.system.clock import Clock, SteadyClock

_log = logging.getLogger(__name__)

_BATCH_SECONDS = 0.2  # maximum time of taking messages before the runs are evaluated
_PACE = 0.1  # seconds between two turns that take messages, unless a request waits
_JUMP = 5.0  # seconds: a larger step of the wall clock is logged and counted
_OPEN_FILES_DIVISOR = (
    8  # part of the limit of open files for the logs of one mount: there are other mounts, and clients
)
_MOST_OPEN = 8192


def room_for_logs() -> int:
    """Return how many logs of one mount may be open. The limit of the process is not raised, because started programs
    would inherit it and `sbatch` passes it on to jobs.
    """
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return min(soft // _OPEN_FILES_DIVISOR, _MOST_OPEN) if soft >= 0 else _MOST_OPEN


class Instants:
    """The clock of one core."""

    def __init__(self, core: Core, clock: Clock, saved: Saved | None = None) -> None:
        """Continue the saved instants."""
        self._core = core
        self._steady = SteadyClock(clock) if saved is None else SteadyClock(clock, saved.wall_offset, saved.contact_at)
        core.set_clock(self._steady.offset)

    def now(self) -> float:
        """Return the present instant. A changed wall clock is noted in the core."""
        step = self._steady.look()
        if step:
            self._core.set_clock(self._steady.offset)
        if abs(step) > _JUMP:
            _log.warning("the wall clock was set by %+.0f s; silences are not affected", step)
            self._core.counts.add("clock_jumps_total")
            self._core.changed = self._core.save_soon = True  # otherwise a restart counts the step as a stop
        return self._steady.now()


class LiveCore:
    """Call `start`, then `take`, then `stop`. All methods but `wake` are for one thread."""

    def __init__(self, config: Config, clock: Clock) -> None:
        """Raises ConfigError."""
        self.clock = clock
        self.core = Core(config)
        self.core.dormant_seconds = OLD_SECONDS
        self._instants = Instants(self.core, self.clock)
        self._inbox = Inbox(QUEUE_SIZE)
        self._follower: Follower  # from `start` on
        self._taken_until = math.inf  # instant until which all read lines are in the core; inf: during the backlog
        self._evaluated_until = -math.inf
        self.agents: Callable[[], AgentStates] | None = None
        """Returns the states of the agents; None if no stream is pushed."""
        self._received_at = float("-inf")  # monotonic seconds when messages were last taken

    def start(self, saved: Saved | None = None) -> None:
        """Begin to read, at the positions of `saved`."""
        positions: dict[str, Position] = {}
        if saved is not None:
            positions = self.core.restore(saved)
            self._instants = Instants(self.core, self.clock, saved)
        self._follow(positions)

    def stop(self, seconds: float) -> None:
        """End the reader threads, within so many seconds."""
        self._follower.stop(seconds)

    def reconfigure(self, config: Config) -> None:
        """Continue with another configuration after `stop`. The state stays."""
        self._inbox = Inbox(QUEUE_SIZE)  # a blocked old reader keeps the old one
        self._follow(self.core.reconfigure(config, self.now()))

    def wake(self) -> None:
        """End the waiting of `take`. For any thread, not for a signal handler."""
        self._inbox.wake()

    def take(self, wait: float) -> float:
        """Pass messages to the core, waiting up to `wait` seconds for them.

        Return the instant up to which the runs can be evaluated: all lines read until then are in the core, and the
        core knows what is not observed. Raises RuntimeError if a reader thread has ended by a bug.
        """
        if wait > 0.0:
            self._inbox.wait(self._received_at + _PACE - self.clock.monotonic(), wait)
        until = self.clock.monotonic() + _BATCH_SECONDS
        while True:
            now = self.now()  # before the readers are asked, because the process may be suspended between any two lines
            mounts = self.mounts()
            stopped = {one.mount: now - one.unobserved_seconds for one in mounts if one.unobserved_seconds}
            messages = self._inbox.get_some() if self._received_at < until else []
            if not messages:
                break
            now = self.now()
            for message in messages:
                self.core.handle(message, now)
            self._received_at = self.clock.monotonic()
        self._note_taken(now)
        self.core.listen(stopped, now, self.agents() if self.agents is not None else None)
        late = max((max(one.unobserved_seconds, one.overdue_seconds) for one in mounts), default=0.0)
        self.core.read_until = min(now - late, self._taken_until)
        if not self._follower.alive:
            raise RuntimeError("a reader thread ended: its traceback is above")
        self._evaluated_until = max(self._evaluated_until, min(now, self._taken_until))
        return self._evaluated_until

    def _note_taken(self, now: float) -> None:
        """Update the instant until which all read lines are in the core."""
        oldest = self._inbox.oldest() - self.core.wall_offset
        if self._taken_until < math.inf or oldest == math.inf:
            self._taken_until = min(now, oldest)

    @property
    def over(self) -> bool:
        """True if all input came from standard input, and that has ended."""
        return self._follower.over and self._inbox.empty()

    def now(self) -> float:
        """Return the present instant."""
        return self._instants.now()

    def mounts(self) -> tuple[MountStatus, ...]:
        """Return the status of each reader, without I/O."""
        return self._follower.status()

    def _follow(self, positions: dict[str, Position]) -> None:
        interval = self.core.config.poll_interval
        settings = FollowSettings(interval, 20 * interval, max_open_files=room_for_logs())
        wanted = watches(self.core.config)  # none if all lines come from Kafka
        self._follower = Follower(wanted, positions, self._inbox, settings=settings, clock=self.clock)
        self._follower.start()

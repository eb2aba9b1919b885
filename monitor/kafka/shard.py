"""One partition while it is ours: its records become messages of a core of its own, as those of a follower do.

A stream is what it is in the intake: the same labels, lines and order (core/ordered.py); its path is that of no file,
`/kafka/TOPIC/RUN/...`. Silence counts only while the partition was heard: its leader answers, and all that
lies there has been read.

Law: who takes a partition over tells what the member before would have told. Time goes on from the saved instant by the
records, each handled when it came, until all is read. What lay there when the first member of all began is history.
"""

import logging
from collections import Counter
from collections.abc import Callable
from functools import lru_cache

from confluent_kafka import KafkaException

from megatron_monitor.config import Config
from megatron_monitor.core import Core
from megatron_monitor.core.saved import PartitionOffset, Saved, of_parts
from megatron_monitor.dispatch import Dispatcher, Links
from megatron_monitor.follow.messages import CaughtUp, Data, Gone, Opened, Scanned, UnobservedTime, Unreadable
from megatron_monitor.kafka.records import push_of
from megatron_monitor.kafka.state import StateError, StateRecord
from megatron_monitor.live import Instants
from megatron_monitor.pushed import run_at
from megatron_monitor.receiver.agents import Agents
from megatron_monitor.receiver.labels import Address, Written, address, followed
from megatron_monitor.receiver.messages import AHEAD
from megatron_monitor.receiver.spool import lines_of
from megatron_monitor.receiver.wire import TooLargeError, WireError
from megatron_monitor.saving import Saver
from megatron_monitor.snapshot import MonitorCounts
from megatron_monitor.store import StateNewerError, StateUnreadableError, decoded
from megatron_monitor.system.asking import Asking
from megatron_monitor.system.clock import Clock

_log = logging.getLogger(__name__)

_LAPSE = 5.0  # seconds without a word of the partition's leader after which nobody listens; it answers twice a second
_SETTLE = 10.0  # seconds at most in which nothing that was owed before is sent: the records may say that it has ended
_CLOSE = 2.0  # seconds for what notifiers are at when the partition goes to another member
_ADDRESSES = 4096  # sets of labels whose run is remembered: to tell it takes a tenth of a millisecond
_STEP = 1.0  # seconds of records that are handled at once while the partition is behind
_GAP = 15.0  # seconds without any record, behind, in which the brokers may have been away: agents beat each 5 s
_FORGOTTEN = 7 * 86400.0  # seconds without a line after which a stream is let go, as in the spool
_SWEEP = 3600.0
_NAMED = 20  # records of a partition that are left out and named in the log


class Shard:
    """Opened in a thread of its own; all else is for the loop's thread."""

    def __init__(
        self, config: Config, partition: int, record: StateRecord, clock: Clock, wake: Callable[[], None], links: Links
    ) -> None:
        """`record` is where the state lies."""
        self._directory = f"/kafka/{config.kafka.topic}"
        self._config, self._clock, self._wake = followed(config, self._directory), clock, wake
        self.partition, self.record = partition, record
        self._mount = f"kafka:{config.kafka.topic}/{partition}"
        self.core = Core(self._config)
        self.dispatcher = Dispatcher(self.core, config, clock, wake, links)
        self._instants = Instants(self.core, clock)
        self._agents = Agents()
        self._positions: Asking[int, bytes | str] = Asking(
            f"kafka state {partition}", lambda _: self._opened(), lambda _, error: f"a bug: {error}", 1, wake
        )
        self._positions.ask(partition)
        self._place = PartitionOffset()
        self._until = 0  # records before it are in what was restored, but for those of the streams in `_again`
        self._again: dict[str, int] = {}
        self._fed: dict[str, int] = {}  # bytes of each stream that the core was given
        self._lines: dict[str, list[bytes]] = {}
        self._keys: dict[str, bytes] = {}  # run -> the key that its records have
        self._at = 0.0  # the instant until which the core was brought
        self._turned_at = self._began_at = clock.monotonic()
        self._swept_at = clock.wall()
        self._named = 0
        self._address = lru_cache(_ADDRESSES)(self._addressed)
        self._unobserved = 0.0  # seconds, when it was looked last
        self.open = False
        """Is it known where to read on?"""
        self.next = 0
        """The record to read next."""
        self.contact_at = clock.monotonic()
        """When all had been read that lay there, monotonic seconds."""
        self.caught_up = False
        """It was read to its end once."""
        self.refused: dict[str, str] = {}
        """Run -> why its records are left out; a person has to do something."""
        self.unnamed = ""
        """Labels of lines that name no run."""
        self.counts: Counter[str] = Counter()
        """Records by what became of them, until somebody takes them."""

    # --- begin and end ----------------------------------------------------------------------------------------------

    def _opened(self) -> bytes | str:
        """In the thread: what was known, or why that cannot be told now."""
        try:
            return self.record.open()
        except (KafkaException, StateError, OSError) as error:
            reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
            return f"partition {self.partition} cannot be taken: {reason}"

    def look(self) -> str:
        """Has it been opened by now? Then `next` is the record to read. Why it cannot be, if so."""
        for found in self._positions.answers():
            if isinstance(found, str):
                return found
            saved, problems = None, list[str]()
            try:
                # Here, not in the thread: msgspec crashes where two threads at once decode a type for the first time.
                if found:
                    parts, problem = decoded(found)
                    problems += [problem] if problem else []
                    saved = of_parts(dict(parts), problems)
                    self.record.parts = {**parts} if saved is not None else {}
            except StateNewerError as error:
                return f"the state of partition {self.partition} cannot be read: {error}; update this member"
            except StateUnreadableError as error:
                problems.append(str(error))
            for problem in problems:
                _log.warning("kafka: state of partition %d: %s; the topic is read anew", self.partition, problem)
                self.core.counts.add("state_rebuilds_total")
            self._begin(saved or Saved(contact_at=self.now(), place=PartitionOffset(live=self.record.end)))
        return ""

    def _begin(self, saved: Saved) -> None:
        """Go on where it was written."""
        saved.counts = {}  # those of a process: each begins at 0
        self._instants = Instants(self.core, self._clock, saved)
        self._place = self.core.place = place = saved.place or PartitionOffset()
        if place.offset > self.record.end:
            _log.warning("kafka: %s was made anew: it is read from its beginning", self._mount)
            place.offset, place.live, place.first = 0, 0, {}
        self._agents.restore(place.agents)
        now, wall = min(saved.contact_at, self.now()), self._clock.wall()
        for name, position in self.core.restore(saved).items():
            written = place.written.get(name, wall)
            self.core.handle(
                Opened(name, name, position, position.offset, written, True, position.offset, mount=self._mount), now
            )
            self._fed[name] = position.offset
        self._again = {name: at for name, at in place.first.items() if name not in self._fed}
        self._at, self._until = now, place.offset
        self.next = min([place.offset, *self._again.values()])
        self.core.changed = True
        self.core.outbox.patience = float("inf")
        self.dispatcher.saving.keep(Saver(self.record, self._wake))
        self.dispatcher.deliveries.may_send = self._is_ours
        self.dispatcher.start(self._config)
        self._began_at = self.contact_at = self._clock.monotonic()
        self.open = True

    def close(self, *, save: bool) -> MonitorCounts:
        """Another member has it, as it is now if `save`, else as it was saved last. What was counted here."""
        self._positions.stop()
        self.dispatcher.stop()
        self.record.lost = self.record.lost or not save
        if self.open:
            save = save and self.next >= self._until
            self.dispatcher.deliveries.finish(self.core.outbox, self._at, _CLOSE if save else 0.0, hand=False)
            if save:
                self._feed()
                self._prune()
                self.dispatcher.saving.save_last(self._at)
            self.dispatcher.saving.release()
        return self.core.counted()

    def _is_ours(self) -> bool:
        """A member that was stopped for longer than it takes to be given up sends nothing before it knows better."""
        return self._clock.monotonic() - self._turned_at < _LAPSE and not self.record.lost

    # --- records ----------------------------------------------------------------------------------------------------

    def take(self, offset: int, key: bytes | None, value: bytes | None, headers: dict[str, str], at: int) -> None:
        """The next record, written at Unix nanosecond `at`."""
        if offset < self.next:
            return
        came, key = self._clock.wall(), key or b""
        if not 0 < at <= came * 1e9 + AHEAD:
            at = int(came * 1e9)
        if not self.caught_up:
            came = min(came, max(at / 1e9, self._at + self.core.wall_offset))
            self._pass(came - self.core.wall_offset)
        self.next = offset + 1
        if value is None:
            self._left_out("empty", offset, "it is empty")
        elif not key and self.record.partitions > 1:
            self._left_out("unkeyed", offset, "it has no key")
            if not (self._keys or self._fed):
                self.refused[""] = (
                    f"the records of {self._config.kafka.topic} have no keys (partition {self.partition}, offset"
                    f" {offset}): key them by run, so that one partition has all lines of a run (docs/pushed-logs.md)"
                )
        else:
            try:
                self._take(offset, key, value, headers, at, came)
            except (WireError, TooLargeError) as error:
                self._left_out("undecodable", offset, str(error))
            except Exception as error:  # noqa: BLE001 - one record ends no member
                self._left_out("undecodable", offset, f"the monitor's own code failed at it: {error!r}")
        self._place.offset = max(self._place.offset, self.next)

    def _take(self, offset: int, key: bytes, value: bytes, headers: dict[str, str], at: int, came: float) -> None:
        outcome, reason = "unnamed", key.decode("utf-8", "replace")
        reason = reason if reason.isprintable() else ""  # a digest names no run
        for stream in push_of(value, headers, at).streams:
            written, agent, beats = self._address(tuple(stream.labels.items()), reason)
            if written is not None and self._is_keyed_by(written.run, key, offset):
                outcome = "taken"
                self._line_up(offset, written, stream.entries, round(self._agents.shift(agent) * 1e9))
            elif written is not None:
                outcome = "refused"
            elif beats:
                outcome = "taken"
            if agent and stream.entries:
                until = max(entry for entry, _ in stream.entries) / 1e9
                self._agents.note(agent, min(until, came), came, heartbeat=beats)
            if outcome == "unnamed":
                self.unnamed = ", ".join(f"{name}={text}" for name, text in stream.labels.items())[:300] or "no labels"
        self.counts[outcome] += 1

    def _is_keyed_by(self, run: str, key: bytes, offset: int) -> bool:
        """Have all records of the run this key? Else others may lie in other partitions: nobody can tell how the run
        goes, and it is unobserved until the partition is opened anew.
        """
        first = self._keys.setdefault(run, key)
        if first != key and self.record.partitions > 1 and run not in self.refused:
            self.refused[run] = why = (
                f"records of the run {run} have several keys, {first!r} and {key!r} (partition {self.partition}, offset"
                f" {offset}): key them by run, and by nothing else (docs/pushed-logs.md)"
            )
            _log.error("kafka: %s", why)
            wall = self._at + self.core.wall_offset
            for name in {*self._fed, *self._lines}:
                if run_at(name) == run:
                    self._lines.pop(name, None)
                    self.core.handle(Unreadable(name, None, why, wall), self._at)
        return run not in self.refused

    def _addressed(self, labels: tuple[tuple[str, str], ...], key: str) -> Address:
        return address(dict(labels), "", self._config.runs, key)

    def _line_up(self, offset: int, written: Written, entries: list[tuple[int, bytes]], shift: int) -> None:
        name, head = f"{self._directory}/{written.name}", written.head.encode()
        if offset < self._until and offset < self._again.get(name, self._until):
            return
        if name not in self._fed and name not in self._lines:
            self._place.first[name] = offset
        lines = self._lines.setdefault(name, [])
        for at, text in entries:
            lines += lines_of(at + shift, head, text)
            self._place.written[name] = max(self._place.written.get(name, 0.0), min(at / 1e9, self._clock.wall()))

    def _left_out(self, outcome: str, offset: int, why: str) -> None:
        self.counts[outcome] += 1
        self._named += 1
        if self._named <= _NAMED:
            _log.warning("kafka: %s offset %d is left out: %s", self._mount, offset, why)

    # --- the loop ---------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """The instant of its core, once all is read."""
        return self._instants.now()

    def turn(self) -> None:
        """Hand on what came, judge, save, send."""
        clock = self._clock.monotonic()
        is_read = self.contact_at > self._began_at and clock - self.contact_at < _LAPSE and self.next >= self._until
        if is_read and not self.caught_up:
            self._pass(self.now())
            self.caught_up = True
        if self.caught_up:
            self._at = self.now()
        elif self.next < self._place.live:  # history: as much time passes as it takes to read
            self._at = min(self._at + clock - self._turned_at, self.now())
        self._go_on()
        self._turned_at = self._clock.monotonic()
        if self.next >= self._until:  # what is read again is in no state yet
            self._again.clear()
            self._prune()
            self.dispatcher.saving.turn(self._at)
            if self.caught_up or clock - self._began_at >= _SETTLE:
                self.dispatcher.send(self._at)
        if not 0.0 <= self._clock.wall() - self._swept_at < _SWEEP:
            self._sweep(self._at)

    def _pass(self, until: float) -> None:
        """Time goes on to that instant, as it went for the member that had the partition then."""
        while (gap := until - self._at) >= _STEP:
            self._go_on()
            if gap > _GAP:
                self.core.handle(UnobservedTime(self._mount, gap, until + self.core.wall_offset), until)
            self._at = until if gap > _GAP else self._at + _STEP

    def _go_on(self) -> None:
        """What came, to the core, which judges as at that instant."""
        self._feed()
        self._listen()
        if self.caught_up or self.next >= max(self._until, self._place.live):
            self._catch_up()
        self.dispatcher.judge(self._at, act=self.caught_up)

    def _feed(self) -> None:
        wall = self._at + self.core.wall_offset
        for name, lines in self._lines.items():
            written = self._place.written[name]
            if name not in self._fed:
                self._fed[name] = 0
                self.core.handle(Opened(name, name, None, 0, written, False, mount=self._mount), self._at)
            data = b"".join(lines)
            self.core.handle(Data(name, self._fed[name], data, written, wall, 0), self._at)
            self._fed[name] += len(data)
        self._lines.clear()

    def _listen(self) -> None:
        now, wall = self._at, self._at + self.core.wall_offset
        silent_for = max(0.0, self._clock.monotonic() - self.contact_at) if self.caught_up else 0.0
        if silent_for <= _LAPSE < self._unobserved:
            self.core.handle(UnobservedTime(self._mount, self._unobserved, wall), now)
        self._unobserved, read_until = silent_for, now - silent_for if silent_for > _LAPSE else now
        states = self._agents.report(wall).states(wall)
        self.core.listen({self._mount: read_until} if read_until < now else {}, now, states)
        self.core.read_until = read_until
        for state, many in states.states.items():
            self.core.counts.set("agents", many, state)

    def _catch_up(self) -> None:
        """History is over: what comes now comes live."""
        wall = self._at + self.core.wall_offset
        for source in list(self.core.sources.values()):
            if not source.caught_up and source.ordered and source.ordered.settles_at is None:
                self.core.handle(CaughtUp(source.name, wall), self._at)
        if not self.core.scanned:
            self.core.handle(Scanned(self._mount, wall), self._at)

    def _prune(self) -> None:
        """What need not be read again: streams of which it is decided whose they are."""
        for name in [name for name in self._place.first if name not in self._again]:
            source = self.core.sources.get(name)
            if source is None or source.member.settled or source.failed:
                del self._place.first[name]
        self._place.agents = self._agents.report(self._at + self.core.wall_offset).agents

    def _sweep(self, now: float) -> None:
        self._swept_at = wall = self._clock.wall()
        old = [name for name, at in self._place.written.items() if wall - at > _FORGOTTEN]
        for name in old:
            self.core.handle(Gone(name, wall), now)
            del self._place.written[name]
            self._fed.pop(name, None)
        if old:
            self.core.handle(Scanned(self._mount, wall, forgotten=tuple(old)), now)

"""A partition that this member owns: its records become messages of its own core, like those of the follower.

Streams have the same labels, lines and order as in the receiver (core/ordered.py); their paths `/kafka/TOPIC/RUN/...`
name no files. Silence only counts while the partition is observed: its leader answers and all records were read.

Rule: a new owner reports what the former owner would have reported. Its time continues from the saved instant, by the
times at which the records were written, until all are read. Records from before the first owner are historical.
"""

import logging
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2s

from confluent_kafka import KafkaException

from megatron_monitor.config import Config
from megatron_monitor.core import Core
from megatron_monitor.core.saved import PartitionOffset, Saved, of_parts
from megatron_monitor.dispatch import Dispatcher, Links
from megatron_monitor.follow.content import Content
from megatron_monitor.follow.messages import CaughtUp, Data, Gone, Opened, Scanned, UnobservedTime, Unreadable
from megatron_monitor.kafka.records import push_of
from megatron_monitor.kafka.state import StateError, StateRecord
from megatron_monitor.live import Instants
from megatron_monitor.pushed import run_at
from megatron_monitor.receiver.agents import Agents
from megatron_monitor.receiver.labels import Origin, StreamFile, followed, origin_of
from megatron_monitor.receiver.messages import AHEAD
from megatron_monitor.receiver.spool import lines_of
from megatron_monitor.snapshot import MonitorCounts
from megatron_monitor.store import StateNewerError, StateUnreadableError, decoded
from megatron_monitor.system.asking import Asking
from megatron_monitor.system.clock import Clock

_log = logging.getLogger(__name__)

# Seconds:
_UNOBSERVED_AFTER = 5.0  # without an answer of the partition's leader, which answers twice a second
_MAX_SEND_DELAY = 10.0  # after opening, before old notifications are sent: records may show that incidents ended
_CLOSE_TIMEOUT = 2.0  # for notifications being sent when the partition goes to another member
_CATCH_UP_STEP = 1.0  # of records that are handled at once while the partition is behind
_MAX_RECORD_GAP = 15.0  # without a record, while behind: then the brokers were down, as heartbeats come each 5 s
_FORGET_STREAM = 7 * 86400.0  # without a line, as in the spool
_FORGET_INTERVAL = 3600.0  # between two searches for such streams
_CACHED_ORIGINS = 4096  # sets of labels: to find the run of one takes 0.1 ms
_CACHED_CHARACTERS = 4096  # of a set of labels: those of pods have a tenth
_KEY_BYTES = 256  # of a record's key that are kept for each run
_MAX_STREAMS = 10_000  # each takes up to 650 bytes of the state, and a record has 64 MiB
_MAX_SKIPS_LOGGED = 20  # of a partition's records


class Shard:
    """A partition and its core. The state is opened in a thread; all methods are for the loop's thread."""

    def __init__(
        self, config: Config, partition: int, record: StateRecord, clock: Clock, wake: Callable[[], None], links: Links
    ) -> None:
        self._directory = f"/kafka/{config.kafka.topic}"
        self._config, self._clock, self._wake = followed(config, self._directory), clock, wake
        self.partition, self.record = partition, record
        self._mount = f"kafka:{config.kafka.topic}/{partition}"
        self.core = Core(self._config)
        self.dispatcher = Dispatcher(self.core, config, clock, wake, links)
        self._instants = Instants(self.core, clock)
        self._agents = Agents()
        self._state_read: Asking[int, bytes | str] = Asking(
            f"kafka state {partition}", lambda _: self._read_state(), lambda _, error: f"a bug: {error}", 1, wake
        )
        self._state_read.ask(partition)
        self._place = PartitionOffset()
        self._lines: dict[str, list[bytes]] = {}  # stream -> lines that were not given to the core yet
        self._keys: dict[str, bytes] = {}  # run -> the key of its records
        self._at = 0.0  # the core's present instant
        self._turned_at = self._began_at = clock.monotonic()
        self._forgot_at = clock.wall()
        self._skips = 0
        self._cached_origin = lru_cache(_CACHED_ORIGINS)(self._origin)
        self._unobserved = 0.0  # seconds, at the last turn
        self.open = False  # the state was read
        self.next = 0  # offset of the next record
        self.contact_at = clock.monotonic()  # monotonic time at which all records were known to be read
        self.caught_up = False  # the partition was read to its end once
        self.refused: dict[str, str] = {}  # run -> why its records are skipped; a person must act
        self.unnamed = ""  # labels of lines that name no run
        self.lag: int | None = None  # records that were not read at the last statistics

    # --- begin and end ----------------------------------------------------------------------------------------------

    def _read_state(self) -> bytes | str:
        """Return the saved state, or the problem as text. Runs in a thread."""
        try:
            return self.record.open()
        except (KafkaException, StateError, OSError) as error:
            reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
            return f"partition {self.partition} cannot be opened: {reason}"

    def restore_when_read(self) -> str:
        """Restore the state once it was read; then `open` is set. Returns the problem if it cannot be read."""
        for answer in self._state_read.answers():
            if isinstance(answer, str):
                return answer
            saved, problems = None, list[str]()
            try:
                # Not in the thread: msgspec crashes if two threads decode a type for the first time at once.
                if answer:
                    parts, problem = decoded(answer)
                    problems += [problem] if problem else []
                    saved = of_parts(dict(parts), problems)
                    self.record.parts = {**parts} if saved is not None else {}
            except StateNewerError as error:
                return f"the state of partition {self.partition} cannot be read: {error}; update this member"
            except StateUnreadableError as error:
                problems.append(str(error))
            for problem in problems:
                _log.warning("kafka: state of partition %d: %s; it is read from its beginning", self.partition, problem)
                self.core.counts.add("state_rebuilds_total")
            self._begin(saved or Saved(contact_at=self.now(), place=PartitionOffset(live=self.record.end)))
        return ""

    def _begin(self, saved: Saved) -> None:
        """Continue from the saved state."""
        saved.counts = {}  # counters belong to a process: each begins at 0
        self._instants = Instants(self.core, self._clock, saved)
        self._place = self.core.place = place = saved.place or PartitionOffset()
        if place.offset > self.record.end:
            _log.warning("kafka: %s was re-created: it is read from its beginning", self._mount)
            place.offset, place.live = 0, 0
        self._agents.restore(place.agents)
        now, wall = min(saved.contact_at, self.now()), self._clock.wall()
        for name, position in self.core.restore(saved).items():
            written = place.written.get(name, wall)
            self.core.handle(
                Opened(name, name, Content(offset=position.start), position.start, written, True, mount=self._mount),
                now,
            )
        self._at, self.next = now, place.offset
        self.core.changed = True
        self.core.outbox.patience = float("inf")
        self.dispatcher.saving.keep(self.record.save)
        self.dispatcher.deliveries.may_send = self._owns_partition
        self.dispatcher.start()
        self._began_at = self.contact_at = self._clock.monotonic()
        self.open = True

    def close(self, *, save: bool) -> MonitorCounts:
        """Stop, and save the present state if `save`. Returns the core's counts."""
        self._state_read.stop()
        self.dispatcher.stop()
        self.record.lost = self.record.lost or not save
        if self.open:
            self.dispatcher.deliveries.finish(self.core.outbox, self._at, _CLOSE_TIMEOUT if save else 0.0, hand=False)
            if save:
                self._feed()
                self._report_coverage()
                self.dispatcher.saving.save_last(self._at)
            self.dispatcher.saving.release()
        return self.core.counted()

    def _owns_partition(self) -> bool:
        """Return False after a pause that may have cost the partition: then nothing is sent until the next turn."""
        return self._clock.monotonic() - self._turned_at < _UNOBSERVED_AFTER and not self.record.lost

    # --- records ----------------------------------------------------------------------------------------------------

    def handle_record(
        self, offset: int, key: bytes | None, value: bytes | None, headers: dict[str, str], at: int
    ) -> None:
        """Handle the next record, written at Unix nanosecond `at`."""
        if offset < self.next:
            return
        arrived, key = self._clock.wall(), _short(key or b"")
        if not 0 < at <= arrived * 1e9 + AHEAD:
            at = int(arrived * 1e9)
        if not self.caught_up:
            arrived = min(arrived, max(at / 1e9, self._at + self.core.wall_offset))
            self._advance_to(arrived - self.core.wall_offset)
        self.next = offset + 1
        if value is None:
            self._skip("empty", offset, "it is empty")
        elif not key and self.record.partitions > 1:
            self._skip("unkeyed", offset, "it has no key")
            if not (self._keys or self.core.sources):
                self.refused[""] = (
                    f"the records of {self._config.kafka.topic} have no keys (partition {self.partition}, offset"
                    f" {offset}): key them by run, so that one partition has all lines of a run (docs/pushed-logs.md)"
                )
        else:
            try:
                self._handle_streams(offset, key, value, headers, at, arrived)
            except Exception as error:  # noqa: BLE001 - a record must not end the member
                self._skip("undecodable", offset, repr(error))
        self._place.offset = self.next

    def _handle_streams(
        self, offset: int, key: bytes, value: bytes, headers: dict[str, str], at: int, arrived: float
    ) -> None:
        outcome, run = "unnamed", key.decode("utf-8", "replace")
        run = run if run.isprintable() else ""  # a hash as key names no run
        for stream in push_of(value, headers, at).streams:
            labels = tuple(stream.labels.items())
            is_usual = sum(len(name) + len(text) for name, text in labels) <= _CACHED_CHARACTERS
            file, agent, is_heartbeat = (self._cached_origin if is_usual else self._origin)(labels, run)
            if file is not None and self._has_one_key(file.run, key, offset):
                outcome = "taken"
                self._add_lines(file, stream.entries)
            elif file is not None:
                outcome = "refused"
            elif is_heartbeat:
                outcome = "taken"
            if agent and stream.entries:
                until = max(entry for entry, _ in stream.entries) / 1e9
                self._agents.note(agent, min(until, arrived), arrived, heartbeat=is_heartbeat)
            if outcome == "unnamed":
                self.unnamed = ", ".join(f"{name}={text}" for name, text in stream.labels.items())[:300] or "no labels"
        self.core.counts.add("kafka_records_total", outcome)

    def _origin(self, labels: tuple[tuple[str, str], ...], run: str) -> Origin:
        return origin_of(dict(labels), "", self._config.runs, run)

    def _has_one_key(self, run: str, key: bytes, offset: int) -> bool:
        """Return True if all records of the run have this key. With other keys, records may be in other partitions: the
        run then cannot be judged and is unobserved until the partition is opened again.
        """
        first = self._keys.setdefault(run, key)
        if first != key and self.record.partitions > 1 and run not in self.refused:
            self.refused[run] = why = (
                f"records of the run {run} have several keys, {first!r} and {key!r} (partition {self.partition}, offset"
                f" {offset}): key them by run, and by nothing else (docs/pushed-logs.md)"
            )
            _log.error("kafka: %s", why)
            wall = self._at + self.core.wall_offset
            for name in {*self.core.sources, *self._lines}:
                if run_at(name) == run:
                    self._lines.pop(name, None)
                    self.core.handle(Unreadable(name, None, why, wall), self._at)
        return run not in self.refused

    def _add_lines(self, file: StreamFile, entries: list[tuple[int, bytes]]) -> None:
        name, head = f"{self._directory}/{file.name}", file.head.encode()
        lines = self._lines.setdefault(name, [])
        for at, text in entries:
            lines += lines_of(at, head, text)
            self._place.written[name] = max(self._place.written.get(name, 0.0), min(at / 1e9, self._clock.wall()))

    def _skip(self, outcome: str, offset: int, reason: str) -> None:
        self.core.counts.add("kafka_records_total", outcome)
        self._skips += 1
        if self._skips <= _MAX_SKIPS_LOGGED:
            _log.warning("kafka: %s: the record at offset %d is skipped: %s", self._mount, offset, reason)

    # --- the loop ---------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the present instant of a core that has caught up."""
        return self._instants.now()

    def turn(self) -> None:
        """Feed the core with what came, judge, save and send."""
        clock = self._clock.monotonic()
        is_observed = self.contact_at > self._began_at and clock - self.contact_at < _UNOBSERVED_AFTER
        if is_observed and not self.caught_up:
            self._advance_to(self.now())
            self.caught_up = self.core.caught_up = True
        if self.caught_up:
            self._at = self.now()
        elif self.next < self._place.live:  # historical records: time passes as fast as they are read
            self._at = min(self._at + clock - self._turned_at, self.now())
        self._judge()
        self._turned_at = self._clock.monotonic()
        self.dispatcher.saving.turn(self._at)
        if self.caught_up or clock - self._began_at >= _MAX_SEND_DELAY:
            self.dispatcher.send(self._at)
        is_due = not 0.0 <= self._clock.wall() - self._forgot_at < _FORGET_INTERVAL
        if is_due or len(self._place.written) > _MAX_STREAMS:
            self._forget_streams(self._at)

    def _advance_to(self, until: float) -> None:
        """Advance the core's time in steps, as it passed for the member that had the partition then."""
        while (gap := until - self._at) >= _CATCH_UP_STEP:
            self._judge()
            if gap > _MAX_RECORD_GAP:
                self.core.handle(UnobservedTime(self._mount, gap, until + self.core.wall_offset), until)
            self._at = until if gap > _MAX_RECORD_GAP else self._at + _CATCH_UP_STEP

    def _judge(self) -> None:
        """Feed the core with what came and judge at its instant."""
        self._feed()
        self._report_coverage()
        if self.caught_up or self.next >= self._place.live:
            self._report_caught_up()
        self.dispatcher.judge(self._at, act=self.caught_up)

    def _feed(self) -> None:
        wall = self._at + self.core.wall_offset
        for name, lines in self._lines.items():
            written = self._place.written[name]
            if name not in self.core.sources:
                self.core.handle(Opened(name, name, None, 0, written, False, mount=self._mount), self._at)
            if (source := self.core.sources.get(name)) is not None:
                data = Data(name, source.content.offset, b"".join(lines), written, wall, 0)
                self.core.handle(data, self._at)
        self._lines.clear()

    def _report_coverage(self) -> None:
        """Report until when the partition and its agents were observed."""
        now, wall = self._at, self._at + self.core.wall_offset
        silent_for = max(0.0, self._clock.monotonic() - self.contact_at) if self.caught_up else 0.0
        if silent_for <= _UNOBSERVED_AFTER < self._unobserved:
            self.core.handle(UnobservedTime(self._mount, self._unobserved, wall), now)
        self._unobserved, read_until = silent_for, now - silent_for if silent_for > _UNOBSERVED_AFTER else now
        report = self._agents.report(wall)
        self._place.agents, states = report.agents, report.states(wall)
        self.core.listen({self._mount: read_until} if read_until < now else {}, now, states)
        self.core.read_until = read_until
        for state, count in states.states.items():
            self.core.counts.set("agents", count, state)

    def _report_caught_up(self) -> None:
        """End the historical part of each stream: later lines are live."""
        wall = self._at + self.core.wall_offset
        for source in list(self.core.sources.values()):
            if not source.caught_up and source.ordered and source.ordered.settles_at is None:
                self.core.handle(CaughtUp(source.name, wall), self._at)
        if not self.core.scanned:
            self.core.handle(Scanned(self._mount, wall), self._at)

    def _forget_streams(self, now: float) -> None:
        """Forget streams without a line for a week. If there are too many, forget a tenth: first those of no training,
        written first. Otherwise made-up runs would make the state larger than a record may be.
        """
        self._forgot_at = wall = self._clock.wall()
        written = self._place.written
        trainings = {name for name, run in self.core.runs.items() if run.state.proven}
        order = sorted(written, key=lambda name: (run_at(name) in trainings, written[name]))
        spare = order[: len(order) - _MAX_STREAMS * 9 // 10] if len(order) > _MAX_STREAMS else []
        old = {*spare, *(name for name in order if wall - written[name] > _FORGET_STREAM)}
        for name in old:
            self.core.handle(Gone(name, wall), now)
            written.pop(name, None)
        if old:
            self.core.handle(Scanned(self._mount, wall, forgotten=tuple(old)), now)
            runs = set(map(run_at, written))
            self._keys = {run: key for run, key in self._keys.items() if run in runs}
            self.refused = {run: why for run, why in self.refused.items() if not run or run in runs}


def _short(key: bytes) -> bytes:
    """Return the key, or its beginning with a hash of the rest."""
    return key if len(key) <= _KEY_BYTES else key[:_KEY_BYTES] + blake2s(key, digest_size=8).hexdigest().encode()

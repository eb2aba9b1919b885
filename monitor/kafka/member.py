"""A member of the consumer group: a Shard for each of its partitions.

All of it runs in the loop's thread. librdkafka fetches and keeps the group's session in its own threads and only calls
back while `take` polls. The states of partitions are read in other threads.
"""

import json
import logging
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Message, TopicPartition

from megatron_monitor.config import Config
from megatron_monitor.core import Core
from megatron_monitor.extensions import Service
from megatron_monitor.kafka.records import headers_of
from megatron_monitor.kafka.shard import Shard
from megatron_monitor.kafka.state import StateRecord
from megatron_monitor.services import StartError
from megatron_monitor.snapshot import MonitorCounts, Snapshot

if TYPE_CHECKING:
    from megatron_monitor.daemon import Daemon

_log = logging.getLogger(__name__)

_MAX_RECORDS = 2000  # consumed at once
_MAX_PROBLEMS = 8  # shown on the page; senders choose the names of runs
# Seconds:
_REOPEN_DELAY = 5.0  # until a partition that could not be opened, or lost its transaction, is opened again
_MESSAGE_SECONDS = 60.0  # for which the page shows an error of the brokers
_GROUP = {
    "enable.auto.commit": "false",
    "auto.offset.reset": "earliest",
    "partition.assignment.strategy": "cooperative-sticky",
    "session.timeout.ms": "6000",  # the minimum of brokers; then a killed member is removed
    "heartbeat.interval.ms": "500",
    "max.poll.interval.ms": "60000",
    "topic.metadata.refresh.interval.ms": "10000",
    "enable.partition.eof": "true",
    "statistics.interval.ms": "1000",
    "fetch.wait.max.ms": "500",
    "queued.max.messages.kbytes": "16384",
    "isolation.level": "read_committed",
}


class Member(Service):
    """A member of the group that shares the topic, from `start` to `close`."""

    waits = True

    def __init__(self, daemon: "Daemon") -> None:
        self._daemon, self._clock, self._config = daemon, daemon.clock, daemon.config
        self._topic = str(self._config.kafka.topic)
        self._shards: dict[int, Shard] = {}
        self._reopen: dict[int, float] = {}
        self._reported: dict[str, float] = {}  # warning -> monotonic time until which it is shown
        self._counts = MonitorCounts()  # of this member, and of shards that it had before
        self._joined = self._expelled = False
        self._consumer: Any = None

    def start(self) -> None:
        """Join the group. Raises StartError for a property that librdkafka does not know."""
        self._config = config = self._daemon.config
        address = self._daemon.services.page_url or f"http://{self._daemon.services.address}/"
        try:
            properties = {**config.kafka.properties(), **_GROUP, "client.id": f"megatron-monitor {address}"}
            self._consumer = Consumer(
                {**properties, "group.id": config.kafka.group, "error_cb": self._error, "stats_cb": self._statistics}
            )
        except (KafkaException, OSError, ValueError) as error:
            raise StartError(f"kafka: {error}") from error
        left = partial(self._leave, save=True)
        self._consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=left, on_lost=self._lost)

    # --- the group --------------------------------------------------------------------------------------------------

    def _assigned(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        """Open the partitions, paused until each shard has read the offset to begin at from its state."""
        self._joined, self._expelled = True, False
        assigned = [TopicPartition(self._topic, added.partition, 0) for added in partitions]
        consumer.incremental_assign(assigned)
        if assigned:
            consumer.pause(assigned)
        for added in assigned:
            self._open(added.partition)

    def _open(self, partition: int) -> None:
        record = StateRecord(self._config.kafka, partition)
        _log.info("kafka: partition %d is assigned to this member", partition)
        self._shards[partition] = Shard(
            self._config, partition, record, self._clock, self._daemon.live.wake, self._daemon.services.links
        )

    def _lost(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        """Leave partitions without a save: the group expelled this member, and others may have had them for long."""
        self._expelled = True
        self._leave(consumer, partitions, save=False)

    def _leave(self, consumer: Consumer, partitions: Sequence[TopicPartition], *, save: bool) -> None:
        for removed in partitions:
            self._reopen.pop(removed.partition, None)
            if removed.partition in self._shards:
                self._close(removed.partition, save=save)
        consumer.incremental_unassign(list(partitions))

    def _close(self, partition: int, *, save: bool) -> None:
        for name, series in self._shards.pop(partition).close(save=save).values.items():
            if name.endswith("_total"):
                for labels, value in series.items():
                    self._counts.add(name.removeprefix("megatron_monitor_"), *labels, by=value)
        _log.info("kafka: partition %d is closed", partition)

    # --- the loop ---------------------------------------------------------------------------------------------------

    def take(self, wait: float) -> None:
        """Handle the records that come within `wait` seconds, then run a turn of every shard."""
        try:
            for message in self._consumer.consume(_MAX_RECORDS, wait):
                self._handle_message(message)
        except KafkaException as error:
            self._error(error.args[0])
        now = self._clock.monotonic()
        for partition, shard in list(self._shards.items()):
            if not shard.open:
                self._begin(partition, shard)
            elif shard.record.lost:
                self._close_and_reopen(partition, save=False)
            else:
                shard.turn()
        for partition in [partition for partition, at in self._reopen.items() if now >= at]:
            del self._reopen[partition]
            self._consumer.pause([TopicPartition(self._topic, partition)])
            self._open(partition)

    def _close_and_reopen(self, partition: int, *, save: bool) -> None:
        """Close the partition now, and open it again: at once if it could be saved."""
        self._close(partition, save=save)
        self._reopen[partition] = self._clock.monotonic() + (0.0 if save else _REOPEN_DELAY)

    def _begin(self, partition: int, shard: Shard) -> None:
        if problem := shard.restore_when_read():
            self._warn(problem)
            self._close_and_reopen(partition, save=False)
        elif shard.open:
            place = TopicPartition(self._topic, partition, shard.next)
            self._consumer.seek(place)
            self._consumer.resume([place])
            _log.info("kafka: partition %d is read from record %d on", partition, shard.next)

    def _handle_message(self, message: Message) -> None:
        shard = self._shards.get(message.partition() or 0)
        if (error := message.error()) is not None and error.code() != KafkaError._PARTITION_EOF:
            self._error(error)
        elif shard is not None and shard.open:
            self._handle_end(shard, message) if error is not None else self._handle_record(shard, message)

    def _handle_record(self, shard: Shard, message: Message) -> None:
        offset, (kind, stamp) = message.offset() or 0, message.timestamp()
        if offset > shard.next:
            bounds = self._consumer.get_watermark_offsets(TopicPartition(self._topic, shard.partition), cached=True)
            if bounds and (low := bounds[0]) > shard.next:
                self._warn(f"records {shard.next} to {low - 1} of partition {shard.partition} were deleted unread")
                shard.core.counts.add("kafka_records_total", "lost", by=low - shard.next)
        at = round(self._clock.wall() * 1e9) if kind == TIMESTAMP_NOT_AVAILABLE else stamp * 10**6
        shard.handle_record(offset, message.key(), message.value(), headers_of(message), at)

    def _handle_end(self, shard: Shard, message: Message) -> None:
        """Note that all records of the partition were handled."""
        if (end := message.offset() or 0) < shard.next:  # the state of the runs is kept
            self._warn(f"partition {shard.partition} ends before the offset that was read: the topic was re-created")
            self._close_and_reopen(shard.partition, save=True)
        else:
            shard.next = end
            shard.contact_at = self._clock.monotonic()

    def _statistics(self, text: str) -> None:
        """Note each partition's end and its leader's last answer, from librdkafka's statistics (once a second)."""
        statistics: dict[str, Any] = json.loads(text)
        leaders = {broker["nodeid"]: broker for broker in statistics["brokers"].values()}
        for name, partition in statistics["topics"].get(self._topic, {}).get("partitions", {}).items():
            shard, leader = self._shards.get(int(name)), leaders.get(partition["leader"])
            if shard is None:
                continue
            end = max(partition["hi_offset"], 0)
            shard.lag = max(0, end - shard.next) if shard.open else end
            if leader is not None and leader["state"] == "UP" and shard.open and shard.next >= end:
                shard.contact_at = max(shard.contact_at, self._clock.monotonic() - leader["rxidle"] / 1e6)

    def _error(self, error: KafkaError) -> None:
        self._counts.add("kafka_errors_total", error.name())
        if error.code() == KafkaError._TRANSPORT:
            return  # one of several brokers; _ALL_BROKERS_DOWN follows if none is left
        self._warn(error.str())

    def _warn(self, sentence: str) -> None:
        """Show the sentence in the log, and on the page for a minute."""
        if sentence not in self._reported:
            _log.warning("kafka: %s", sentence)
        self._reported[sentence] = self._clock.monotonic() + _MESSAGE_SECONDS

    # --- what is shown ----------------------------------------------------------------------------------------------

    @property
    def shards(self) -> list[Shard]:
        """The open shards."""
        return [shard for _, shard in sorted(self._shards.items()) if shard.open]

    def cores(self) -> list[tuple[Core, float]]:
        """Return the cores of the open shards, each with its instant."""
        return [(shard.core, shard.now()) for shard in self.shards]

    def show(self, snapshots: list[Snapshot]) -> list[Snapshot]:
        """Add the counts of this member, and of partitions that it had before."""
        return [*snapshots, Snapshot(at=0.0, monitor=self._counts.frozen(), ready=True)]

    @property
    def ready(self) -> bool:  # type: ignore[override]
        """True if every partition of this member was read to its end."""
        return self._joined and not self._reopen and all(shard.caught_up for shard in self._shards.values())

    @property
    def notice(self) -> str:  # type: ignore[override]
        """The problems that people should know; empty if there are none."""
        now = self._clock.monotonic()
        self._reported = {sentence: until for sentence, until in self._reported.items() if until > now}
        problems = [reason for shard in self._shards.values() for reason in shard.refused.values()]
        unnamed = next((shard.unnamed for shard in self._shards.values() if shard.unnamed), "")
        names = Counter(name for shard in self.shards for name in shard.core.runs)
        problems += [
            f"the run {name} is in several partitions: key records by run, and by nothing else (docs/pushed-logs.md)"
            for name, count in names.items()
            if count > 1
        ]
        if self._expelled:
            problems.append("no broker answered for 6 s: other members evaluate this member's runs, or none does")
        if unnamed:
            problems.append(f"lines name no run, so that they are not monitored: {unnamed} (docs/pushed-logs.md)")
        shown, more = [*problems, *self._reported][:_MAX_PROBLEMS], len(problems) + len(self._reported) - _MAX_PROBLEMS
        shown += [f"{more} further problems are in the log"] if more > 0 else []
        return ". ".join(f"Kafka: {problem}" for problem in shown)

    def count(self, counts: MonitorCounts) -> None:
        """Count this member's partitions and their unread records."""
        judging = len(self.shards)
        counts.set("kafka_partitions", judging, "judging")
        counts.set("kafka_partitions", len(self._shards) - judging, "opening")
        counts.clear("kafka_lag")
        for partition, shard in self._shards.items():
            if shard.lag is not None:
                counts.set("kafka_lag", shard.lag, str(partition))

    def configure(self, config: Config) -> None:
        """Use another configuration: each partition is closed and opened again."""
        self._config = config
        for partition in list(self._shards):
            self._close_and_reopen(partition, save=True)

    def close(self) -> None:
        """Save and leave the group: other members take over at once."""
        for partition in list(self._shards):
            self._close(partition, save=True)
        if self._consumer is not None:
            self._consumer.close()

"""A monitor as one of its group: its partitions, each a Shard, and what of the others the page should know.

All of it in the loop's thread: librdkafka fetches and keeps the group's session in threads of its own, and calls back
only while `take` polls. What blocks (the state of a partition, who has the others) is asked in other threads.
"""

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import closing
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import msgspec
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Message, TopicPartition

from megatron_monitor.config import Config
from megatron_monitor.core import Core
from megatron_monitor.extensions import Service
from megatron_monitor.kafka.shard import Shard
from megatron_monitor.kafka.state import Reader, StateError, StateRecord, prepare
from megatron_monitor.services import StartError
from megatron_monitor.snapshot import MonitorCounts, Snapshot
from megatron_monitor.system.asking import Asking

if TYPE_CHECKING:
    from megatron_monitor.daemon import Daemon

_log = logging.getLogger(__name__)

_BATCH = 2000  # records taken at once
_PEERS = 60.0  # seconds between two looks at who has the other partitions: each reads all that they know
_BALANCED = 5.0  # seconds from a change of ours until the others have theirs
_AGAIN = 5.0  # seconds until a partition that could not be opened, or was lost though it is ours, is opened again
_MESSAGE_SECONDS = 60.0  # seconds for which the page shows an error of the brokers
_GROUP = {
    "enable.auto.commit": "false",
    "auto.offset.reset": "earliest",
    "partition.assignment.strategy": "cooperative-sticky",
    "session.timeout.ms": "6000",  # the least that brokers let be: a member that was killed is given up after it
    "heartbeat.interval.ms": "500",
    "max.poll.interval.ms": "60000",
    "topic.metadata.refresh.interval.ms": "10000",
    "enable.partition.eof": "true",
    "statistics.interval.ms": "1000",
    "fetch.wait.max.ms": "500",
    "queued.max.messages.kbytes": "16384",
    "isolation.level": "read_committed",
}
_HEADERS = methodcaller("headers")  # called by its name in warm code, a name that is no UTF-8 crashes Python 3.11
_HELP = {
    KafkaError._ALL_BROKERS_DOWN: "no broker answers at {brokers}",
    KafkaError._RESOLVE: "no address is known of {brokers}",
    KafkaError._AUTHENTICATION: "the brokers do not let us in: see kafka.client (sasl.*)",
    KafkaError._SSL: "TLS with the brokers fails: see kafka.client (ssl.*)",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "the topic {topic} does not exist",
    KafkaError._UNKNOWN_TOPIC: "the topic {topic} does not exist",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "we may not read {topic}: allow READ and DESCRIBE",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "we may not join the group {group}: allow READ on it",
}


class Member(Service):
    """A member of the group that shares the topic, from `start` to `close`."""

    fixed = ("kafka",)
    waits = True

    def __init__(self, daemon: "Daemon") -> None:
        self._daemon, self._clock, self._config = daemon, daemon.clock, daemon.config
        self._topic = str(self._config.kafka.topic)
        self._address = ""  # of this member's page
        self._shards: dict[int, Shard] = {}
        self._reopen: dict[int, float] = {}
        self._reported: dict[str, float] = {}  # sentence -> until when it is shown, monotonic seconds
        self._gone = MonitorCounts()  # counted by shards that are not ours any more
        self._counts: defaultdict[tuple[str, ...], float] = defaultdict(float)
        self._partitions = 0
        self._others: dict[int, str] = {}
        self._peers: Asking[str, tuple[int, dict[int, str]] | None] = Asking(
            "kafka peers", lambda _: self._look_around(), lambda _, __: None, 1
        )
        self._look_at = float("-inf")
        self._joined = self._given_up = False
        self._consumer: Any = None

    def start(self) -> None:
        """Join the group. StartError for a property that librdkafka does not know."""
        self._config = config = self._daemon.followed
        self._address = self._daemon.services.page_url or f"http://{self._daemon.services.address}/"
        try:
            own = {**config.kafka.properties(), **_GROUP, "client.id": f"megatron-monitor {self._address}"}
            self._consumer = Consumer(
                {**own, "group.id": config.kafka.group, "error_cb": self._error, "stats_cb": self._statistics}
            )
        except (KafkaException, OSError, ValueError) as error:
            raise StartError(f"kafka: {error}") from error
        self._consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    # --- the group --------------------------------------------------------------------------------------------------

    def _assigned(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        """Nothing is fetched until it is known from where on: a shard says that when it has read its state."""
        self._joined, self._given_up, self._look_at = True, False, self._clock.monotonic() + _BALANCED
        theirs = [TopicPartition(self._topic, one.partition, 0) for one in partitions]
        consumer.incremental_assign(theirs)
        if theirs:
            consumer.pause(theirs)
        for one in theirs:
            self._open(one.partition)

    def _open(self, partition: int) -> None:
        record = StateRecord(self._config.kafka, partition, self._address, self._partitions)
        _log.info("kafka: partition %d is ours", partition)
        self._shards[partition] = Shard(
            self._config, partition, record, self._clock, self._daemon.live.wake, self._daemon.links
        )

    def _revoked(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self._leave(partitions, save=True)
        consumer.incremental_unassign(list(partitions))

    def _lost(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        """The group gave us up, or the brokers do not answer: others have these, perhaps for long."""
        self._given_up = True
        self._leave(partitions, save=False)
        consumer.incremental_unassign(list(partitions))

    def _leave(self, partitions: Sequence[TopicPartition], *, save: bool) -> None:
        self._look_at = self._clock.monotonic() + _BALANCED
        for one in partitions:
            self._reopen.pop(one.partition, None)
            if one.partition in self._shards:
                self._close(one.partition, save=save)

    def _close(self, partition: int, *, save: bool) -> None:
        for name, series in self._shards.pop(partition).close(save=save).values.items():
            if name.endswith("_total"):
                for labels, value in series.items():
                    self._gone.add(name.removeprefix("megatron_monitor_"), *labels, by=value)
        _log.info("kafka: partition %d is ours no more", partition)

    # --- the loop ---------------------------------------------------------------------------------------------------

    def take(self, wait: float) -> None:
        """Take what came within `wait` seconds, and let every shard have its turn."""
        try:
            for message in self._consumer.consume(_BATCH, wait):
                self._receive(message)
        except KafkaException as error:
            self._error(error.args[0])
        now = self._clock.monotonic()
        for partition, shard in list(self._shards.items()):
            if not shard.open:
                self._begin(partition, shard)
            elif shard.record.lost:
                self._again(partition, save=False, seconds=_AGAIN)
            else:
                shard.turn()
        for partition in [one for one, at in self._reopen.items() if now >= at]:
            del self._reopen[partition]
            self._consumer.pause([TopicPartition(self._topic, partition)])
            self._open(partition)
        for found in self._peers.answers():
            self._partitions, self._others = found or (self._partitions, self._others)
        if now >= self._look_at:
            self._look_at = now + _PEERS
            self._peers.ask("who?")

    def _again(self, partition: int, *, save: bool, seconds: float = 0.0) -> None:
        """Close the partition, and open it anew after so many seconds."""
        self._close(partition, save=save)
        self._reopen[partition] = self._clock.monotonic() + seconds

    def _begin(self, partition: int, shard: Shard) -> None:
        if trouble := shard.look():
            self._warn(trouble)
            self._again(partition, save=False, seconds=_AGAIN)
        elif shard.open:
            place = TopicPartition(self._topic, partition, shard.next)
            self._consumer.seek(place)
            self._consumer.resume([place])
            _log.info("kafka: partition %d goes on at record %d", partition, shard.next)

    def _receive(self, message: Message) -> None:
        shard = self._shards.get(message.partition() or 0)
        if (error := message.error()) is not None and error.code() != KafkaError._PARTITION_EOF:
            self._error(error)
        elif shard is not None and shard.open:
            self._ended(shard, message) if error is not None else self._hand(shard, message)

    def _hand(self, shard: Shard, message: Message) -> None:
        offset, (kind, stamp) = message.offset() or 0, message.timestamp()
        if offset > shard.next:
            known = self._consumer.get_watermark_offsets(TopicPartition(self._topic, shard.partition), cached=True)
            if known and (low := known[0]) > shard.next:
                self._warn(f"records {shard.next} to {low - 1} of partition {shard.partition} were deleted unread")
                self._counts["kafka_records_total", "lost"] += low - shard.next
        at = round(self._clock.wall() * 1e9) if kind == TIMESTAMP_NOT_AVAILABLE else stamp * 10**6
        try:
            given = _HEADERS(message) or ()
            headers = {name: (value or b"").decode("utf-8", "replace") for name, value in given}
        except Exception:  # noqa: BLE001 - names that are no UTF-8: no sender's record ends a member
            headers = {}
        shard.take(offset, message.key(), message.value(), headers, at)

    def _ended(self, shard: Shard, message: Message) -> None:
        """All that lies in the partition was handed on."""
        if (end := message.offset() or 0) < shard.next:  # what it knows of the old one is gone on with
            self._warn(f"partition {shard.partition} ends before what was read: the topic was made anew")
            self._again(shard.partition, save=True)
        else:
            shard.next = end
            shard.contact_at = self._clock.monotonic()

    def _statistics(self, text: str) -> None:
        """Once a second, from memory: when the leader of each partition was last heard, and where its log ends."""
        statistics: dict[str, Any] = json.loads(text)
        leaders = {one["nodeid"]: one for one in statistics["brokers"].values()}
        for name, one in statistics["topics"].get(self._topic, {}).get("partitions", {}).items():
            shard, leader = self._shards.get(int(name)), leaders.get(one["leader"])
            if shard is None:
                continue
            end = max(one["hi_offset"], 0)
            self._counts["kafka_lag", name] = max(0, end - shard.next) if shard.open else end
            if leader is not None and leader["state"] == "UP" and shard.open and shard.next >= end:
                shard.contact_at = max(shard.contact_at, self._clock.monotonic() - leader["rxidle"] / 1e6)

    def _error(self, error: KafkaError) -> None:
        settings = self._config.kafka
        names = {"brokers": ", ".join(settings.bootstrap), "topic": self._topic, "group": settings.group}
        self._counts["kafka_errors_total", error.name()] += 1.0
        if error.code() == KafkaError._TRANSPORT:
            return  # one of several; it is said when none is left
        self._warn(_HELP[error.code()].format(**names) if error.code() in _HELP else error.str())

    def _warn(self, sentence: str) -> None:
        """In the log, and for a minute on the page."""
        if sentence not in self._reported:
            _log.warning("kafka: %s", sentence)
        self._reported[sentence] = self._clock.monotonic() + _MESSAGE_SECONDS

    def _look_around(self) -> tuple[int, dict[int, str]] | None:
        """In a thread: how many partitions there are, and who has written the state of each."""
        try:
            count = prepare(self._config.kafka)
            with closing(Reader(self._config.kafka)) as reader:
                found = {partition: reader.newest(partition) for partition in range(count)}
        except (KafkaException, StateError, OSError):
            return None  # who opens a partition tells of it
        return count, {partition: one.address for partition, one in found.items() if one is not None}

    # --- what is shown ----------------------------------------------------------------------------------------------

    @property
    def shards(self) -> list[Shard]:
        """Those that judge."""
        return [shard for _, shard in sorted(self._shards.items()) if shard.open]

    def cores(self) -> list[tuple[Core, float]]:
        """Those of the partitions that are ours."""
        return [(shard.core, shard.now()) for shard in self.shards]

    def show(self, snapshots: list[Snapshot]) -> list[Snapshot]:
        """With who has which partition, and what was counted of partitions that are ours no more."""
        first = msgspec.structs.replace(snapshots[0], members=self.members)
        return [first, *snapshots[1:], Snapshot(at=0.0, monitor=self._gone.frozen(), ready=True)]

    @property
    def ready(self) -> bool:  # type: ignore[override]
        """Is all read that is ours?"""
        return self._joined and not self._reopen and all(shard.caught_up for shard in self._shards.values())

    @property
    def notice(self) -> str:  # type: ignore[override]
        """What people should know; empty where all is well."""
        now = self._clock.monotonic()
        self._reported = {sentence: until for sentence, until in self._reported.items() if until > now}
        refused = [why for shard in self._shards.values() for why in shard.refused.values()]
        unnamed = next((shard.unnamed for shard in self._shards.values() if shard.unnamed), "")
        names = Counter(name for shard in self.shards for name in shard.core.runs)
        refused += [
            f"the run {name} lies in several partitions: key records by run, and by nothing else (docs/pushed-logs.md)"
            for name, count in names.items()
            if count > 1
        ]
        if self._given_up:
            refused.append(
                "nothing was heard of the brokers for 6 s: our runs are judged by other members, or by nobody"
            )
        if unnamed:
            refused.append(f"lines name no run, so nobody watches them: {unnamed} (docs/pushed-logs.md)")
        return ". ".join(f"Kafka: {one}" for one in (*refused, *self._reported))

    @property
    def members(self) -> dict[str, list[int]]:
        """Page of each member that has partitions -> which."""
        found: dict[str, list[int]] = {}
        for partition in sorted({*range(self._partitions), *self._shards, *self._others}):
            own = partition in self._shards
            address = self._address if own else self._others.get(partition, "")
            if own or address != self._address:
                found.setdefault(address, []).append(partition)
        return found

    def count(self, counts: MonitorCounts) -> None:
        """Into `counts`: this member's share, and what became of the records."""
        for shard in self._shards.values():
            for outcome, many in shard.counts.items():
                self._counts["kafka_records_total", outcome] += many
            shard.counts.clear()
        judging = len(self.shards)
        counts.set("kafka_partitions", judging, "judging")
        counts.set("kafka_partitions", len(self._shards) - judging, "opening")
        counts.set("kafka_members", len([one for one in self.members if one]))
        counts.clear("kafka_lag")
        for (name, *labels), value in self._counts.items():
            if name != "kafka_lag" or int(labels[0]) in self._shards:
                counts.set(name, value, *labels)

    def configure(self, config: Config) -> None:
        """Go on by another configuration: each partition is opened anew."""
        self._config = config
        for partition in list(self._shards):
            self._again(partition, save=True)

    def close(self) -> None:
        """Leave the group: others take over at once, with what is saved now."""
        for partition in list(self._shards):
            self._close(partition, save=True)
        self._peers.stop()
        if self._consumer is not None:
            self._consumer.close()

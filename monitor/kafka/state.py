"""The state of one partition: the newest record in its partition of the state topic, which only its owner writes.

`init_transactions` of a new owner fences the old one, whose next record is refused. After a write with unknown result
the owner gives the partition up, and the next owner continues from the newest record.
"""

import logging
from contextlib import closing
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from megatron_monitor.config.inputs import KafkaSettings
from megatron_monitor.kafka.records import headers_of
from megatron_monitor.store import Parts, encoded

_log = logging.getLogger(__name__)

_TIMEOUT = 10.0  # seconds of a call to a broker
_MAX_RECORD_BYTES = 64 << 20
_TOPIC = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "segment.bytes": str(64 << 20),
    "max.message.bytes": str(_MAX_RECORD_BYTES),
}


def key_of(settings: KafkaSettings, partition: int) -> str:
    """Return the key of a partition's record, which is also the owner's transactional id. Several groups and topics may
    have their states in one topic.
    """
    return f"{settings.group}/{settings.topic}/{partition}"


class RecoveredState(NamedTuple):
    """The newest record of a partition."""

    value: bytes
    address: str  # of the page of the member that wrote it


class StateError(Exception):
    """The state topic cannot be used; the text names the problem and the remedy."""


def prepare(settings: KafkaSettings) -> int:
    """Create the state topic if it is absent. Returns the topic's partition count. StateError, KafkaException."""
    admin, topic = AdminClient({**settings.properties()}), str(settings.topic)
    known = admin.list_topics(timeout=_TIMEOUT).topics  # a request by name could create the topic
    if topic not in known:
        raise StateError(f"the topic {topic} does not exist: create it, with at least one partition per member")
    count = len(known[topic].partitions)
    if settings.state_topic not in known:
        made = admin.create_topics([NewTopic(settings.state_topic, num_partitions=count, config=_TOPIC)])
        try:
            made[settings.state_topic].result(_TIMEOUT)
        except KafkaException as error:
            code = error.args[0].code()
            if code not in (KafkaError.TOPIC_ALREADY_EXISTS, KafkaError._UNSUPPORTED_FEATURE):
                raise StateError(
                    f"the topic {settings.state_topic} cannot be created ({error.args[0].str()}): create it by hand, "
                    f"with {count} partitions and cleanup.policy=compact"
                ) from error
        return count
    if (have := len(known[settings.state_topic].partitions)) < count:
        raise StateError(
            f"the topic {settings.state_topic} has {have} partitions, {topic} has {count}: give both the same number"
        )
    return count


class Reader:
    """Finds the newest record of a partition. For one thread."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings, self._topic, self._lines = settings, settings.state_topic, str(settings.topic)
        self._consumer = Consumer(
            {
                **settings.properties(),
                "group.id": f"{settings.group}.state",  # never committed, but required by librdkafka
                "enable.auto.commit": "false",
                "isolation.level": "read_committed",
                "enable.partition.eof": "true",
                "fetch.wait.max.ms": "50",
                "auto.offset.reset": "earliest",
                "fetch.message.max.bytes": str(_MAX_RECORD_BYTES),
                "receive.message.max.bytes": str(2 * _MAX_RECORD_BYTES),
            }
        )

    def newest(self, partition: int) -> RecoveredState | None:
        """Return the newest record; None if there is none. KafkaException."""
        low, high = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), timeout=_TIMEOUT)
        for behind in (4, 64, high - low):  # each transaction takes two offsets, even if aborted
            if high > low and (state := self._last(partition, max(low, high - behind))) is not None:
                return state
        return None

    def _last(self, partition: int, begin: int) -> RecoveredState | None:
        """Return the partition's last record from offset `begin` on."""
        key = key_of(self._settings, partition).encode()
        self._consumer.assign([TopicPartition(self._topic, partition, begin)])
        state = None
        try:
            while (message := self._consumer.poll(_TIMEOUT)) is not None:
                error = message.error()
                if error is None and message.key() != key:
                    continue
                if error is None:
                    state = RecoveredState(message.value() or b"", headers_of(message).get("address", ""))
                elif error.code() == KafkaError._PARTITION_EOF:
                    return state
                else:
                    raise KafkaException(error)
        finally:
            self._consumer.unassign()
        raise StateError(f"{self._topic} was not read to its end within {_TIMEOUT:.0f} s")

    def end(self, partition: int) -> int:
        """Return the offset after the last record of the topic of lines. KafkaException."""
        lines = TopicPartition(self._lines, partition)
        return int(self._consumer.get_watermark_offsets(lines, timeout=_TIMEOUT)[1])

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()


class StateRecord:
    """Reads and writes the state of one partition, for its owner: `open` once, then `save`, each in its own thread."""

    def __init__(self, settings: KafkaSettings, partition: int, address: str, partitions: int = 0) -> None:
        """`address`: URL of this member's page. `partitions`: the topic's partition count; 0: unknown."""
        self._settings, self._partition, self._address = settings, partition, address
        self._producer: Any = None
        self.parts: Parts = {}  # all parts of the record
        self.partitions = partitions
        self.end = 0  # end offset of the topic's partition when the record was read
        self.lost = False
        """Another member has the partition, or the result of a write is unknown: nothing more is written."""
        self.trouble = ""  # why the last record was not written; empty if it was

    def open(self) -> bytes:
        """Fence the former owner and return its state, empty if there is none. KafkaException, StateError."""
        settings, partition = self._settings, self._partition
        if partition >= self.partitions:
            self.partitions = prepare(settings)
        if partition >= self.partitions:
            raise StateError(f"{settings.topic} has fewer partitions than it had")
        self._producer = Producer(
            {
                **settings.properties(),
                "transactional.id": key_of(settings, partition),
                "compression.type": "zstd",
                "message.max.bytes": str(_MAX_RECORD_BYTES),
                "linger.ms": "0",
            },
            logger=_log,  # else librdkafka writes to standard error what `write` logs
        )
        self._producer.init_transactions(_TIMEOUT)
        with closing(Reader(settings)) as reader:
            newest = reader.newest(partition)
            self.end = reader.end(partition)
        state = b"" if newest is None else newest.value
        if not self.write(state):  # shows the other members the new owner
            raise StateError(self.trouble)
        return state

    def save(self, parts: Parts) -> bool:
        """Write the record with these parts replaced. False if the brokers refuse it."""
        self.parts = {name: part for name, part in {**self.parts, **parts}.items() if part is not None}
        return self.write(encoded(self.parts))

    def write(self, data: bytes) -> bool:
        """Write the record. False if the brokers refuse it: then nothing is written."""
        if self.lost:
            return False
        producer, settings, partition = self._producer, self._settings, self._partition
        key, headers = key_of(settings, partition), {"address": self._address}
        try:
            producer.begin_transaction()
            producer.produce(settings.state_topic, data, key, partition=partition, headers=headers)
            producer.commit_transaction(_TIMEOUT)
        except KafkaException as exception:
            error = exception.args[0]
        else:
            self.trouble = ""
            return True
        self.trouble = f"the state of partition {partition} was not saved: {error.str()}"
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            self.trouble += f"; raise max.message.bytes of {settings.state_topic}"
        _log.warning("kafka: %s", self.trouble)
        try:
            producer.abort_transaction(_TIMEOUT)
            self.lost = error.fatal() or error.retriable()  # then the record may be written
        except KafkaException:
            self.lost = True
        return False

"""The state of one partition: the newest record in its partition of the state topic, which only its owner writes.

`init_transactions` of a new owner fences the old one, whose next record is refused. After a write with unknown result
the owner gives the partition up, and the next owner continues from the newest record.
"""

import logging
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from megatron_monitor.config.inputs import KafkaSettings
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


class StateRecord:
    """Reads and writes the state of one partition, for its owner: `open` once, then `save`, each in its own thread."""

    def __init__(self, settings: KafkaSettings, partition: int) -> None:
        self._settings, self._partition = settings, partition
        self._producer: Any = None
        self.parts: Parts = {}  # all parts of the record
        self.partitions = 0  # of the topic
        self.end = 0  # end offset of the topic's partition when the record was read
        self.lost = False
        """Another member has the partition, or the result of a write is unknown: nothing more is written."""
        self.trouble = ""  # why the last record was not written; empty if it was

    def open(self) -> bytes:
        """Fence the former owner and return its state, empty if there is none. KafkaException, StateError."""
        settings, partition = self._settings, self._partition
        self.partitions = prepare(settings)
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
        consumer = Consumer(
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
        with closing(consumer):
            newest = self._newest(consumer)
            lines = TopicPartition(str(settings.topic), partition)
            self.end = consumer.get_watermark_offsets(lines, timeout=_TIMEOUT)[1]
        if not self.write(newest):  # later saves would be refused, too, and nothing would be sent
            raise StateError(self.trouble)
        return newest

    def _newest(self, consumer: Consumer) -> bytes:
        """Return the newest record; empty if there is none."""
        topic, key = self._settings.state_topic, key_of(self._settings, self._partition).encode()
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, self._partition), timeout=_TIMEOUT)
        for behind in (4, 64, high - low):  # each transaction takes two offsets, even if aborted
            consumer.assign([TopicPartition(topic, self._partition, max(low, high - behind))])
            state = b""
            while high > low:
                if (message := consumer.poll(_TIMEOUT)) is None:
                    raise StateError(f"{topic} was not read to its end within {_TIMEOUT:.0f} s")
                if (error := message.error()) is None:
                    state = message.value() or b"" if message.key() == key else state
                elif error.code() == KafkaError._PARTITION_EOF:
                    break
                else:
                    raise KafkaException(error)
            if state:
                return state
        return b""

    def save(self, parts: Parts) -> bool:
        """Write the record with these parts replaced. False if the brokers refuse it."""
        self.parts = {name: part for name, part in {**self.parts, **parts}.items() if part is not None}
        return self.write(encoded(self.parts))

    def write(self, data: bytes) -> bool:
        """Write the record. False if the brokers refuse it: then nothing is written."""
        if self.lost:
            return False
        producer, settings, partition = self._producer, self._settings, self._partition
        try:
            producer.begin_transaction()
            producer.produce(settings.state_topic, data, key_of(settings, partition), partition=partition)
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

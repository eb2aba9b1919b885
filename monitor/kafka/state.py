"""The state of one partition: the newest record of its partition in the state topic, which only its owner writes.

Who begins (`init_transactions`) fences whoever had the partition before: that one's next record is refused. A write
whose outcome is not known gives the partition up: who opens it anew goes on from the record that is there.
"""

import logging
from contextlib import closing
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from megatron_monitor.config.inputs import KafkaSettings
from megatron_monitor.store import Parts, encoded

_log = logging.getLogger(__name__)

_TIMEOUT = 10.0  # seconds of a call to a broker
_LARGEST = 64 << 20  # bytes of a record
_TOPIC = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "segment.bytes": str(64 << 20),
    "max.message.bytes": str(_LARGEST),
}


class RecoveredState(NamedTuple):
    """The newest record of a partition."""

    value: bytes
    address: str
    """The page of who wrote it."""


class StateError(Exception):
    """The state topic cannot be used: what is wrong, and what to do."""


def prepare(settings: KafkaSettings) -> int:
    """How many partitions the topic has. The state topic is made if it is not there. StateError, KafkaException."""
    admin, topic = AdminClient({**settings.properties()}), str(settings.topic)
    known = admin.list_topics(timeout=_TIMEOUT).topics  # asked for by name, a topic may be made by that
    if topic not in known:
        raise StateError(f"the topic {topic} does not exist: make it, with a partition for each member at least")
    count = len(known[topic].partitions)
    if settings.state_topic not in known:
        made = admin.create_topics([NewTopic(settings.state_topic, num_partitions=count, config=_TOPIC)])
        try:
            made[settings.state_topic].result(_TIMEOUT)
        except KafkaException as error:
            code = error.args[0].code()
            if code not in (KafkaError.TOPIC_ALREADY_EXISTS, KafkaError._UNSUPPORTED_FEATURE):
                raise StateError(
                    f"the topic {settings.state_topic} cannot be made ({error.args[0].str()}): make it yourself, with "
                    f"{count} partitions and cleanup.policy=compact"
                ) from error
        return count
    if (have := len(known[settings.state_topic].partitions)) < count:
        raise StateError(
            f"the topic {settings.state_topic} has {have} partitions, {topic} has {count}: give both the same number"
        )
    return count


class Reader:
    """Looks for the newest record of any partition. For one thread."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._topic, self._lines = settings.state_topic, str(settings.topic)
        self._consumer = Consumer(
            {
                **settings.properties(),
                "group.id": f"{settings.group}.state",  # nothing is committed, but librdkafka wants one
                "enable.auto.commit": "false",
                "isolation.level": "read_committed",
                "enable.partition.eof": "true",
                "fetch.wait.max.ms": "50",
                "auto.offset.reset": "earliest",
                "fetch.message.max.bytes": str(_LARGEST),
                "receive.message.max.bytes": str(2 * _LARGEST),
            }
        )

    def newest(self, partition: int) -> RecoveredState | None:
        """None: there is none yet. KafkaException."""
        low, high = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), timeout=_TIMEOUT)
        for behind in (4, 64, high - low):  # a transaction takes two offsets, also one that came to nothing
            if high > low and (found := self._last(partition, max(low, high - behind))) is not None:
                return found
        return None

    def _last(self, partition: int, begin: int) -> RecoveredState | None:
        """The last record from offset `begin` on."""
        self._consumer.assign([TopicPartition(self._topic, partition, begin)])
        found = None
        try:
            while (message := self._consumer.poll(_TIMEOUT)) is not None:
                error = message.error()
                if error is None:
                    headers: Any = message.headers() or ()
                    found = RecoveredState(
                        message.value() or b"", dict(headers).get("address", b"").decode("utf-8", "replace")
                    )
                elif error.code() == KafkaError._PARTITION_EOF:
                    return found
                else:
                    raise KafkaException(error)
        finally:
            self._consumer.unassign()
        raise StateError(f"{self._topic} was not read to its end within {_TIMEOUT:.0f} s")

    def end(self, partition: int) -> int:
        """The offset behind the last record of the topic itself. KafkaException."""
        place = TopicPartition(self._lines, partition)
        return int(self._consumer.get_watermark_offsets(place, timeout=_TIMEOUT)[1])

    def close(self) -> None:
        """Leave the brokers."""
        self._consumer.close()


class StateRecord:
    """The state of one partition, for its owner. `open`, then `save` as a Saver does; each in a thread of its own."""

    def __init__(self, settings: KafkaSettings, partition: int, address: str, partitions: int = 0) -> None:
        """`address`: where people find this member's page. `partitions`: how many the topic has, if that is known."""
        self._settings, self._partition, self._address = settings, partition, address
        self._producer: Any = None
        self.parts: Parts = {}
        """What is kept: the record is all of it."""
        self.partitions = partitions
        """How many the topic has."""
        self.end = 0
        """Of the topic's partition, when the record was read."""
        self.lost = False
        """Another member has the partition, or nobody knows what is written: nothing is written any more."""
        self.trouble = ""
        """Why the last record was not written."""

    def open(self) -> bytes:
        """Fence who was before; what it knew, empty if nothing. KafkaException, StateError."""
        settings, partition = self._settings, self._partition
        if partition >= self.partitions:
            self.partitions = prepare(settings)
        if partition >= self.partitions:
            raise StateError(f"{settings.topic} has fewer partitions than it had")
        self._producer = Producer(
            {
                **settings.properties(),
                "transactional.id": f"{settings.group}.{settings.topic}.{partition}",
                "compression.type": "zstd",
                "message.max.bytes": str(_LARGEST),
                "linger.ms": "0",
            },
            logger=_log,  # else librdkafka writes to standard error what `_failed` tells
        )
        self._producer.init_transactions(_TIMEOUT)
        with closing(Reader(settings)) as reader:
            found = reader.newest(partition)
            self.end = reader.end(partition)
        known = b"" if found is None else found.value
        if not self.write(known):  # so that the others see who has it
            raise StateError(self.trouble)
        return known

    def save(self, parts: Parts) -> bool:
        """The next record, with these parts anew. False: the brokers would not have it."""
        self.parts = {name: part for name, part in {**self.parts, **parts}.items() if part is not None}
        return self.write(encoded(self.parts))

    def write(self, data: bytes) -> bool:
        """The next record. False: the brokers would not have it, and nothing of it is there."""
        if self.lost:
            return False
        producer, headers = self._producer, {"address": self._address}
        try:
            producer.begin_transaction()
            producer.produce(
                self._settings.state_topic, data, str(self._partition), partition=self._partition, headers=headers
            )
            producer.commit_transaction(_TIMEOUT)
        except KafkaException as error:
            self._failed(error.args[0])
            return False
        self.trouble = ""
        return True

    def _failed(self, error: KafkaError) -> None:
        """What was begun is undone. If that is not possible, or the brokers may have done it, the partition is lost."""
        self.trouble = f"the state of partition {self._partition} was not saved: {error.str()}"
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            self.trouble += f"; raise max.message.bytes of {self._settings.state_topic}"
        _log.warning("kafka: %s", self.trouble)
        try:
            self._producer.abort_transaction(_TIMEOUT)
            self.lost = error.fatal() or error.retriable()
        except KafkaException:
            self.lost = True

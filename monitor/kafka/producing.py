"""Our forwarder's batches as records of a topic: a record a stream, keyed by its run, in the form of Loki's push."""

import gzip
import logging
from collections.abc import Iterator
from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException, Producer

from megatron_monitor.config.intake import KafkaSettings

_log = logging.getLogger(__name__)

_TIMEOUT = 30.0  # seconds until a record that no broker takes is tried anew by who called
_LARGEST = 256 << 10  # bytes of lines of a record; brokers take a million
_HOPELESS = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG, KafkaError.INVALID_RECORD)


class Topic:
    """Where the forwarder pushes to."""

    keyed = True

    def __init__(self, url: str, settings: KafkaSettings) -> None:
        """`url` as it was given. KafkaException for a property that librdkafka does not know."""
        self.url, self._topic = url, str(settings.topic)
        self._failed: list[KafkaError] = []
        own = {
            "enable.idempotence": "true",  # the order within a partition is that of the calls
            "compression.type": "zstd",
            "linger.ms": "50",
            "message.timeout.ms": str(round(_TIMEOUT * 1000)),
            "message.max.bytes": str(64 << 20),
        }
        self._producer = Producer({**settings.properties(), **own})

    def push(self, body: bytes) -> float | None:
        """A batch of Loki's JSON in gzip. None: all of it is there; else the seconds after which to try again."""
        self._failed.clear()
        try:
            for stream in msgspec.json.decode(gzip.decompress(body))["streams"]:
                key = stream["stream"]["run"].encode("utf-8", "replace")
                for values in _pieces(stream["values"]):
                    record = msgspec.json.encode({"streams": [{**stream, "values": values}]})
                    self._producer.produce(self._topic, record, key, on_delivery=self._delivered)
                    self._producer.poll(0)
            left = self._producer.flush(_TIMEOUT)
        except (KafkaException, BufferError) as error:
            _log.warning("push failed: %s", error)
            self._producer.purge()
            return 0.0
        for one in self._failed[:1]:
            _log.warning("push failed: %s", one.str())
        return None if not left and all(one.code() in _HOPELESS for one in self._failed) else 0.0

    def _delivered(self, error: KafkaError | None, _message: Any) -> None:
        if error is not None:
            self._failed.append(error)


def _pieces(values: list[list[str]]) -> Iterator[list[list[str]]]:
    """Lines of a record each."""
    piece, size = list[list[str]](), 0
    for value in values:
        if piece and size + len(value[1]) > _LARGEST:
            yield piece
            piece, size = [], 0
        piece.append(value)
        size += len(value[1])
    if piece:
        yield piece

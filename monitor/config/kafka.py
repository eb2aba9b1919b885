"""The keys of `kafka:`: a topic of log lines that several monitors share (monitor/kafka/)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from monitor import scalars

_OURS = (
    "bootstrap.servers", "client.id", "group.id", "transactional.id", "enable.auto.commit", "auto.offset.reset",
    "isolation.level", "partition.assignment.strategy", "enable.partition.eof", "statistics.interval.ms",
)  # fmt: skip
"""Properties on which it depends that each line counts once."""

Text = Annotated[str, Meta(min_length=1, max_length=249)]


class KafkaSettings(Struct, frozen=True, kw_only=True):
    """A consumer group: each member judges the runs of its partitions."""

    bootstrap: tuple[Text, ...] = ()
    """HOST:PORT of brokers; none: no Kafka."""
    topic: Text | None = None
    """Keyed by run: the lines of a run lie in one partition, and one core reads them."""
    group: Text = "megatron-monitor"
    """Members of one group share the topic; two groups judge all of it, each for itself."""
    state_topic: Text = "megatron-monitor-state"
    """Compacted; made if it is not there. A partition of it for each of the topic."""
    client: Mapping[Text, str] = msgspec.field(default_factory=scalars.empty)
    """librdkafka's own properties: `security.protocol`, `sasl.username`, `ssl.ca.location`, ..."""
    client_files: Mapping[Text, scalars.FilePath] = msgspec.field(default_factory=scalars.empty)
    """The same, of which the value is what a file holds: `sasl.password`."""

    def properties(self) -> dict[str, str]:
        """What every client of ours begins with. OSError where a file cannot be read."""
        secret = {name: Path(path).read_text("utf-8").strip("\r\n") for name, path in self.client_files.items()}
        return {"log_level": "0", **self.client, **secret, "bootstrap.servers": ",".join(self.bootstrap)}

    def problems(self) -> scalars.Problems:
        """What the values together have wrong."""
        if bool(self.bootstrap) != (self.topic is not None):
            yield "", "bootstrap and topic belong together"
        if self.topic == self.state_topic:
            yield "state_topic", "is the topic of the lines: give the state one of its own"
        for key, names in (("client", self.client), ("client_files", self.client_files)):
            for name in names:
                if name in _OURS:
                    yield f"{key}.{name}", "is set by the monitor: each line counts once by it"

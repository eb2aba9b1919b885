"""The keys of `intake:` and `kafka:`: logs that come in over the network (monitor/intake/, monitor/kafka/)."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from megatron_monitor import scalars
from megatron_monitor.units import PositiveSeconds

_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,3})?) ?(?:([kMGT])(i)?)?B")


def bytes_of(raw: object) -> int:
    """`64MiB`, `10MB`, `512B` or a number of bytes; ValueError for anything else and for 0."""
    match = _SIZE.fullmatch(raw) if isinstance(raw, str) else None
    if match is not None:
        raw = int(float(match[1]) * (1024 if match[3] else 1000) ** (" kMGT".index(match[2]) if match[2] else 0))
    if isinstance(raw, bool) or not isinstance(raw, int) or not 0 < raw < 2**60:
        raise ValueError("expected a size such as 64MiB or 10MB, or a number of bytes")
    return raw


Bytes = Annotated[int, Meta(extra={"read": bytes_of})]
Count = Annotated[int, Meta(ge=1)]


class Auth(Struct, frozen=True, kw_only=True):
    """Who may push."""

    basic_auth_users: Mapping[scalars.Name, scalars.BcryptHash] = msgspec.field(default_factory=scalars.empty)
    """User -> bcrypt hash of the password. Empty: those of `web`, as the page."""
    bearer_tokens: Mapping[scalars.Name, scalars.Sha256] = msgspec.field(default_factory=scalars.empty)
    """Who has it -> SHA-256 of the token, which is long and random: what nobody can guess needs no bcrypt."""


class Tenants(Struct, frozen=True, kw_only=True):
    """The share of each tenant (X-Scope-OrgID; those who name none are one). Beyond it the answer is 429: try later."""

    max_streams: Count = 2000
    """A stream is a file, and costs the judge some 20 kB; 1,000 pods have two each."""
    max_runs: Count = 200
    """A fifth of `max_runs`: a tenant that names a run a line pushes nobody else's out."""
    max_bytes_per_second: Bytes = 10_000_000
    """Of bodies, as they come: 64 pods that print 5,000 lines a second are a tenth of it."""


class Spool(Struct, frozen=True, kw_only=True):
    """Where pushed lines lie until they are judged."""

    directory: scalars.FilePath | None = None
    """None: `spool` in state_dir."""
    per_stream: Bytes = 64 << 20
    """A stream's file is begun anew at half of it: the half before is kept beside it."""
    total: Bytes = 20 << 30
    """Of all files: the oldest halves go first, then it is full (503)."""


class Heartbeat(Struct, frozen=True, kw_only=True):
    """How the agent of a node says that it lives while its streams are silent."""

    label: Annotated[str, Meta(min_length=1, max_length=200)] = "carrier"
    """Names the agent on all that it sends; heartbeats have a label `heartbeat` beside it."""
    every: PositiveSeconds = 5.0
    """Between two of them; an agent is deaf after one and a half, as one may be on its way: a twelfth of the shortest
    hang budget (60 s)."""


class IntakeSettings(Struct, frozen=True, kw_only=True):
    """Loki push and OTLP/HTTP logs."""

    listen: scalars.Listen | None = None
    """HOST:PORT; None: nobody can push."""
    auth: Auth = Auth()
    tenants: Tenants = Tenants()
    spool: Spool = Spool()
    heartbeat: Heartbeat = Heartbeat()

    def problems(self) -> scalars.Problems:
        """What the values together have wrong."""
        if self.spool.per_stream > self.spool.total:
            yield "spool", "per_stream is more than total"


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

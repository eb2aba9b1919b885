"""The keys of `receiver:`, `kafka:` and `slurm:`."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from megatron_monitor import scalars
from megatron_monitor.scalars import PositiveSeconds

_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,3})?) ?(?:([kMGT])(i)?)?B")


def bytes_of(raw: object) -> int:
    """Return the bytes of `64MiB`, `10MB`, `512B` or a number. Raises ValueError for anything else and for 0."""
    match = _SIZE.fullmatch(raw) if isinstance(raw, str) else None
    if match is not None:
        raw = int(float(match[1]) * (1024 if match[3] else 1000) ** (" kMGT".index(match[2]) if match[2] else 0))
    if isinstance(raw, bool) or not isinstance(raw, int) or not 0 < raw < 2**60:
        raise ValueError("expected a size such as 64MiB or 10MB, or a number of bytes")
    return raw


Bytes = Annotated[int, Meta(extra={"read": bytes_of})]
Count = Annotated[int, Meta(ge=1)]
Tenant = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class ReceiverSettings(Struct, frozen=True, kw_only=True):
    """The process `receive`: who may push logs (Loki, OTLP/HTTP), and how much.

    Quotas hold for each tenant. A sender above its quota gets the answer 429: try later.
    """

    listen: scalars.Listen | None = None
    """HOST:PORT. None: nothing is received."""
    directory: scalars.FilePath | None = None
    """Directory of the spool, which `run` follows. None: `spool` in the state directory."""
    tenants: Mapping[Tenant, tuple[scalars.Sha256, ...]] = msgspec.field(default_factory=dict)
    """Tenant -> SHA-256 of its tokens, which are long and random. Empty: one tenant without a token."""
    max_runs: Count = 200
    """A fifth of the monitor's `max_runs`, so that the runs of one tenant leave room for others."""
    max_bytes_per_second: Bytes = 10_000_000
    """Of unpacked bodies. 64 pods that print 5,000 lines per second together use a tenth."""
    spool_size: Bytes = 20 << 30
    """Bytes of a tenant's files. Files that the observer has read are removed first; otherwise senders must wait."""


Text = Annotated[str, Meta(min_length=1, max_length=249)]


class KafkaSettings(Struct, frozen=True, kw_only=True):
    """A consumer group. Each member evaluates the runs of its partitions."""

    bootstrap: tuple[Text, ...] = ()
    """HOST:PORT of brokers. Empty: Kafka is not used."""
    topic: Text | None = None
    """Topic of the lines, keyed by run: all lines of a run are in one partition."""
    group: Text = "megatron-monitor"
    """Members of one group share the topic. Two groups each evaluate the whole topic."""
    client_file: scalars.FilePath | None = None
    """A file of librdkafka properties, as Kafka's tools read them: lines such as `sasl.password=...`. The monitor's own
    properties, such as `group.id`, have priority: they ensure that each line counts once."""

    @property
    def state_topic(self) -> str:
        """The compacted topic of the members' state. It is created if it is missing."""
        return f"{self.group}-state"

    def properties(self) -> dict[str, str]:
        """Return the properties of every client. Raises OSError or ValueError if the file cannot be used."""
        found: dict[str, str] = {}
        for line in Path(self.client_file).read_text("utf-8").splitlines() if self.client_file else ():
            name, equals, value = (part.strip() for part in line.partition("="))
            if not name or name.startswith("#"):
                continue
            if not equals:
                raise ValueError(f"{self.client_file}: expected name=value in each line")
            found[name] = value
        return {"log_level": "0", **found, "bootstrap.servers": ",".join(self.bootstrap)}

    def problems(self) -> scalars.Problems:
        """Yield what is wrong with the combination of values."""
        if bool(self.bootstrap) != (self.topic is not None):
            yield "", "bootstrap and topic are needed together"
        if self.topic == self.state_topic:
            yield "group", f"stores its state in {self.state_topic}, which is the topic of the lines"


class SlurmSettings(Struct, frozen=True, kw_only=True):
    """How Slurm is asked about the jobs of runs. Without `scontrol` in PATH, Slurm is not asked."""

    interval: PositiveSeconds = 60.0
    """Seconds between two questions about a job: slurmctld serves the whole cluster, and a minute is soon enough."""
    job_from: scalars.Regex | None = None
    """A regular expression, searched in the path; its group `job` is the id. None: the usual file names."""

    def problems(self) -> scalars.Problems:
        """Yield what is wrong with the combination of values."""
        if self.job_from is not None and "job" not in scalars.compiled(self.job_from).groupindex:
            yield "job_from", "has no named group job, as in /(?P<job>[0-9]+)[.]out"

"""The keys of `receiver:`, `kafka:` and `slurm:`: what the monitor learns over the network, and from Slurm."""

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


Tenant = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class ReceiverSettings(Struct, frozen=True, kw_only=True):
    """The process `receive`: who may push logs (Loki, OTLP/HTTP), and how much. A quota is that of each tenant; beyond
    it the answer is 429: try later.
    """

    listen: scalars.Listen | None = None
    """HOST:PORT; None: nothing is received."""
    directory: scalars.FilePath | None = None
    """Where pushed lines are until they are judged; `run` follows it. None: `spool` in the state directory."""
    tenants: Mapping[Tenant, tuple[scalars.Sha256, ...]] = msgspec.field(default_factory=scalars.empty)
    """Tenant -> SHA-256 of its tokens, which are long and random. Empty: nobody is asked, and there is one tenant."""
    max_runs: Count = 200
    """Of the monitor's `max_runs` a fifth: the runs that a tenant names leave room for those of files."""
    max_bytes_per_second: Bytes = 10_000_000
    """Of bodies, unpacked: 64 pods that print 5,000 lines a second are a tenth of it."""
    spool_size: Bytes = 20 << 30
    """Bytes of the files of a tenant. What the observer has read is removed then; if nothing is, senders wait."""


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
    client_file: scalars.FilePath | None = None
    """librdkafka's own properties, as Kafka's tools read them: lines such as `sasl.password=...`."""

    @property
    def state_topic(self) -> str:
        """Where a member keeps what it knows, compacted; made if it is not there."""
        return f"{self.group}-state"

    def properties(self) -> dict[str, str]:
        """What every client of ours begins with. OSError or ValueError where the file cannot be used."""
        found: dict[str, str] = {}
        for line in Path(self.client_file).read_text("utf-8").splitlines() if self.client_file else ():
            name, equals, value = (part.strip() for part in line.partition("="))
            if not name or name.startswith("#"):
                continue
            if not equals:
                raise ValueError(f"{self.client_file}: expected name=value in each line")
            if name in _OURS:
                raise ValueError(f"{self.client_file}: {name} is set by the monitor: each line counts once by it")
            found[name] = value
        return {"log_level": "0", **found, "bootstrap.servers": ",".join(self.bootstrap)}

    def problems(self) -> scalars.Problems:
        """What the values together have wrong."""
        if bool(self.bootstrap) != (self.topic is not None):
            yield "", "bootstrap and topic belong together"
        if self.topic == self.state_topic:
            yield "group", f"keeps its state in {self.state_topic}, which is the topic of the lines"


class SlurmSettings(Struct, frozen=True, kw_only=True):
    """How Slurm is asked about runs that are its jobs; without `scontrol` in PATH nothing is asked."""

    interval: PositiveSeconds = 60.0
    """Between two questions about a job: slurmctld serves the whole cluster, and a minute is soon enough to act."""
    job_from: scalars.Regex | None = None
    """A regular expression searched in the path; its group `job` is the id. None: the usual names."""

    def problems(self) -> scalars.Problems:
        """What the values together have wrong."""
        if self.job_from is not None and "job" not in scalars.compiled(self.job_from).groupindex:
            yield "job_from", "has no named group job, as in /(?P<job>[0-9]+)[.]out"

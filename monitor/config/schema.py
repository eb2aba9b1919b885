"""Every key of the configuration with its type and default. The file config.yaml at the project's root shows the same.

Rule: these classes are frozen and their instances valid. Durations are seconds, ratios are fractions of one.
The settings of a detector, a notifier or an output are in its own file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from megatron_monitor import scalars
from megatron_monitor.config.inputs import KafkaSettings, ReceiverSettings, SlurmSettings
from megatron_monitor.config.remediations import Remediation
from megatron_monitor.detectors import RULES
from megatron_monitor.pushed import PATTERN
from megatron_monitor.scalars import FilePath, Name, PositiveSeconds, Seconds


def _format(name: str, base: str) -> Any:
    from megatron_monitor.config.formats import format_at  # needed only if the configuration names a format

    return format_at(name, base)


FormatFile = Annotated[Any, Meta(extra={"read": scalars.path_of, "resolve": _format})]
"""In the file: a path. In the settings: the format of that file."""


class Watch(Struct, frozen=True, kw_only=True):
    """Files to follow, and how their runs are named (monitor/identity/naming.py)."""

    paths: Annotated[tuple[FilePath, ...], Meta(min_length=1)] = ()
    """Files, directories or globs. `**` matches any number of directories."""
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Instead of paths, for pushed streams (`receiver`, `kafka`): label -> glob. All must match."""
    exclude: tuple[scalars.PathOrName, ...] = ()
    name: scalars.RunName | None = None
    """The name of the one run of all these paths. With labels: a template in which `{a|b}` is the first of these labels
    that exists (monitor/receiver/labels.py). None: from the file names, or from the operator's labels.
    """
    name_from: scalars.Regex | None = None
    """A regular expression, searched in the path; its group `run` is the name."""

    def problems(self) -> scalars.Problems:
        """Yield what is wrong with the combination of values."""
        if not (self.paths or self.labels):
            yield "", "the key paths is missing"
        if self.paths and self.labels:
            yield "labels", "an entry has either paths or labels"
        if self.labels and self.name_from is not None:
            yield "name_from", "is for paths; with labels, name is a template"
        if self.name is not None and self.name_from is not None:
            yield "name_from", "cannot be used with name, which already names the run"
        if self.name_from is not None and "run" not in scalars.compiled(self.name_from).groupindex:
            yield "name_from", "has no named group run, as in (?P<run>[^/]+)"


class TlsServer(Struct, frozen=True, kw_only=True):
    """`tls_server_config` of Prometheus's web configuration file: TLS 1.2 and later."""

    cert_file: FilePath
    key_file: FilePath
    client_ca_file: FilePath | None = None
    """Clients must present a certificate of this authority (`RequireAndVerifyClientCert`). None: no certificate."""


class Web(Struct, frozen=True, kw_only=True):
    """TLS and basic auth of the HTTP server, in the shape of Prometheus's web configuration file."""

    tls_server_config: TlsServer | None = None
    basic_auth_users: Mapping[Name, scalars.BcryptHash] = msgspec.field(default_factory=dict)
    """User -> bcrypt hash of the password."""


# One field per rule, of its settings class: a rule is registered in monitor/detectors only.
_DETECTORS = msgspec.defstruct(
    "Detectors",
    [(name, rule.settings, msgspec.field(default_factory=rule.settings)) for name, rule in RULES.items()],
    frozen=True,
    kw_only=True,
)
if TYPE_CHECKING:
    Detectors = Any
else:
    Detectors = _DETECTORS


class Config(Struct, frozen=True, kw_only=True):
    """The whole configuration."""

    listen: scalars.Listen = "127.0.0.1:9843"
    state_dir: FilePath | None = None
    """None: $XDG_STATE_HOME/megatron-monitor."""
    external_url: scalars.PublicUrl | None = None
    """Public address of the page, for links. None: from `listen`; no link if that is a loopback address."""
    runbook_url: scalars.PublicUrl | None = None
    """Address of the runbook or of your copy of it: messages link to its sections. None: no link."""
    ends_with_job: bool = False
    """True: the runs end when the monitor stops. For a monitor that is started and ended with its job."""
    shutdown_grace_period: Seconds = 20.0
    """Maximum seconds after SIGTERM in which the final metrics are served until each scraper has read them: more than a
    scrape interval of 15 s, less than the 30 s that Slurm and Kubernetes allow."""
    runs: tuple[Watch, ...] = ()
    gpu_peak_tflops: scalars.Positive | None = None
    """Dense peak TFLOP/s of one GPU by its data sheet. None: from the GPU's name in the log, else no MFU."""
    detectors: Detectors = _DETECTORS()
    formats: tuple[FormatFile, ...] = ()
    """Files of a site's own line formats."""
    notifiers: Annotated[tuple[Any, ...], Meta(extra={"kinds": "megatron_monitor.notifiers:NOTIFIERS"})] = ()
    """Instances of classes of monitor/notifiers, selected by `type:`. Imported on use: they need HTTP clients."""
    outputs: Annotated[tuple[Any, ...], Meta(extra={"kinds": "megatron_monitor.outputs:OUTPUTS"})] = ()
    """Instances of classes of monitor/outputs.py, selected by `type:`."""
    web: Web = Web()
    receiver: ReceiverSettings = ReceiverSettings()
    """Logs that agents push over the network. Off without `listen`."""
    kafka: KafkaSettings = KafkaSettings()
    """Logs in a Kafka topic, shared by several monitors. Off without brokers."""
    slurm: SlurmSettings = SlurmSettings()
    """How Slurm is asked about the jobs of runs."""
    poll_interval: PositiveSeconds = 0.5
    """Seconds between two polls of a growing file, below a second so that a hang is reported in time. A search for new
    files comes after twenty times as long, and so at the latest does the poll of a file that does not grow."""
    remediations: tuple[Remediation, ...] = ()
    """What is done about incidents (monitor/config/remediations.py). Empty: nothing."""
    repeat_interval: PositiveSeconds = 4 * 3600.0
    """Seconds after which an open incident is notified again: Alertmanager's default."""
    run_retention: Seconds = 3600.0
    """Seconds for which the series of a finished run are exported, so that every scrape sees its end."""
    max_runs: Annotated[int, Meta(ge=1)] = 1000
    """Maximum runs at once. Each has some 70 series, and a scrape of 70,000 takes a second."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["logfmt", "json"] = "logfmt"

    @property
    def pushed(self) -> str:
        """The followed spool directory (added by monitor/receiver/labels.py). Empty: nothing is pushed."""
        found = (watch.paths[0] for watch in self.runs if watch.paths and watch.labels)
        return next(found, "").removesuffix(f"/{PATTERN}")

    def is_pushed(self, path: str) -> bool:
        """Return True if the path is the file of a pushed stream."""
        return bool(self.pushed) and path.startswith(f"{self.pushed}/")

    @property
    def empty(self) -> bool:
        """True if there is nothing to follow."""
        return not (self.runs or self.receiver.listen or self.kafka.bootstrap)

    def problems(self) -> scalars.Problems:
        """Yield what is wrong with the combination of values."""
        if self.receiver.listen is None and not self.kafka.bootstrap:
            why = "are for pushed logs: set receiver.listen, for example 0.0.0.0:9844"
            yield from ((f"runs.{index}.labels", why) for index, watch in enumerate(self.runs) if watch.labels)
        elif self.receiver.listen == self.listen:
            yield "receiver", "listens on the address of the page: give it another port"
        for key in ("runs", "formats", "notifiers", "outputs", "remediations"):
            first: dict[str, int] = {}
            for index, item in enumerate(getattr(self, key)):
                if item.name is not None and first.setdefault(item.name, index) != index:
                    yield f"{key}.{index}.name", f"{item.name!r} is already the name of {key}.{first[item.name]}"

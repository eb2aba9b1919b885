"""Every key of the configuration, its type and its default. The file config.yaml at the project's root shows the same.

Law: frozen; a value of these classes is valid, whatever text it came from. Durations are seconds, ratios parts of one.
The settings of a detector, a notifier or an output stand in its own file; here is only where they hang.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta, Struct

from megatron_monitor import scalars
from megatron_monitor.config.inputs import KafkaSettings, ReceiverSettings, SlurmSettings
from megatron_monitor.config.remediations import Remediation
from megatron_monitor.detectors import RULES, IncidentKind
from megatron_monitor.pushed import PATTERN
from megatron_monitor.scalars import FilePath, Name
from megatron_monitor.units import PositiveSeconds, Seconds


def _formats(name: str, base: str) -> tuple[Any, ...]:
    from megatron_monitor.config.formats import formats_at  # for a configuration that names one

    return formats_at(name, base)


FormatFiles = Annotated[Any, Meta(extra={"read": scalars.path_of, "resolve": _formats})]
"""A path in the file; the formats that stand there in the settings."""


class Watch(Struct, frozen=True, kw_only=True):
    """What to follow, and how the runs found there are named (monitor/identity/naming.py)."""

    paths: Annotated[tuple[FilePath, ...], Meta(min_length=1)] = ()
    """Files, directories or globs; `**` crosses directories."""
    labels: Mapping[str, str] = msgspec.field(default_factory=scalars.empty)
    """In place of paths, streams that are pushed (`receiver`, `kafka`): label -> glob, all must match."""
    exclude: tuple[scalars.PathOrName, ...] = ()
    name: scalars.RunName | None = None
    """All sources of these paths are this one run. Of labels: a template, `{a|b}` is the first of these labels that
    there is (monitor/receiver/labels.py); None: the operator's own labels.
    """
    name_from: scalars.Regex | None = None
    """A regular expression searched in the path; its group `run` is the name."""
    pid_file: str | None = None
    """Where the launcher leaves its process id, on its own host: a template of the run's name, `{run}`, and of its
    log's path without suffix, `{log}`. Messages name it in their command where no job of Slurm is known.
    """

    def problems(self) -> scalars.Problems:
        """What the values together have wrong."""
        if not (self.paths or self.labels):
            yield "", "the key paths is missing"
        if self.paths and self.labels:
            yield "labels", "stands beside paths: an entry has one of the two"
        if self.labels and self.name_from is not None:
            yield "name_from", "is for paths; the name of what has labels is a template of these"
        if self.name is not None and self.name_from is not None:
            yield "name_from", "stands beside name, which already names the run"
        if self.name_from is not None and "run" not in scalars.compiled(self.name_from).groupindex:
            yield "name_from", "has no named group run, as in (?P<run>[^/]+)"
        unknown = set(re.findall(r"{.*?}", self.pid_file or "")) - {"{run}", "{log}"}
        if unknown or self.pid_file == "":
            wrong = "".join(f", not {name}" for name in sorted(unknown))
            yield "pid_file", "is a path with {run} or {log} in it" + wrong


class TlsServer(Struct, frozen=True, kw_only=True):
    """`tls_server_config` of Prometheus's web configuration file: TLS 1.2 and later."""

    cert_file: FilePath
    key_file: FilePath
    client_ca_file: FilePath | None = None
    """Clients must show a certificate of this authority (`RequireAndVerifyClientCert`). None: they need none."""


class Web(Struct, frozen=True, kw_only=True):
    """TLS and basic auth of the HTTP server, in the shape of Prometheus's web configuration file."""

    tls_server_config: TlsServer | None = None
    basic_auth_users: Mapping[Name, scalars.BcryptHash] = msgspec.field(default_factory=scalars.empty)
    """User -> bcrypt hash of the password."""
    allowed_hosts: tuple[scalars.HostPattern, ...] = ()
    """Names, as globs, under which browsers and Prometheus may ask; addresses and localhost always may. None: any name
    where others are let in, no other one on a loopback address (monitor/serve/auth.py).
    """


# One attribute a rule, of its settings class: a rule stands in monitor/detectors, and nowhere else.
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
    """Where people reach the page, for links to it. None: by what it listens on, no link if that is loopback."""
    runbook_url: scalars.PublicUrl | None = None
    """Address of deploy/runbook.md, or of your copy of it: messages link to its sections. None: no link."""
    ends_with_job: bool = False
    """The monitor's stop is the end of its runs: a job's own monitor is ended with it, nobody need go on watching."""
    shutdown_grace_period: Seconds = 20.0
    """At SIGTERM the last word is served until each scraper has seen it, so long at most: more than a scrape interval
    of 15 s, less than the 30 s that Slurm and Kubernetes leave."""
    runs: Annotated[tuple[Watch, ...], Meta(extra={"unique": "name"})] = ()
    gpu_peak_tflops: scalars.Positive | None = None
    """TFLOP/s of one GPU at its data sheet's dense peak. None: from the GPU's name in the log, else no MFU."""
    detectors: Detectors = _DETECTORS()
    formats: tuple[FormatFiles, ...] = ()
    """Files of a site's own line formats, or folders of them: how the lines of its trainers are read."""
    notifiers: Annotated[
        tuple[Any, ...], Meta(extra={"unique": "name", "kinds": "megatron_monitor.notifiers:NOTIFIERS"})
    ] = ()
    """Each of a class of monitor/notifiers, chosen by `type:`; they bring HTTP clients."""
    outputs: Annotated[
        tuple[Any, ...], Meta(extra={"unique": "name", "kinds": "megatron_monitor.outputs:OUTPUTS"})
    ] = ()
    """Each of a class of monitor/outputs.py, chosen by `type:`; they bring prometheus_client."""
    web: Web = Web()
    receiver: ReceiverSettings = ReceiverSettings()
    """Logs that agents push over the network; off unless it listens."""
    kafka: KafkaSettings = KafkaSettings()
    """Logs that lie in a topic, shared by several monitors; off unless it names brokers."""
    flight_recorder: tuple[FilePath, ...] = ()
    """Globs of PyTorch's flight recorder dumps, `{run}` for the run's name: read when a run hangs. None: not read."""
    slurm: SlurmSettings = SlurmSettings()
    """What Slurm is asked of the runs that are its jobs."""
    poll_interval: PositiveSeconds = 0.5
    """Between two polls of a file that grows: well below a second, so that a hang is reported in time. Twenty times
    this between two searches for new files, and at most between two polls of a file that does not grow."""
    remediations: Annotated[tuple[Remediation, ...], Meta(extra={"unique": "name"})] = ()
    """What is done about incidents (monitor/config/remediations.py); nothing unless an entry says so."""
    repeat_interval: PositiveSeconds = 4 * 3600.0
    """An incident that still fires is notified again after this: Alertmanager's default."""
    hold: Mapping[IncidentKind, PositiveSeconds] = msgspec.field(default_factory=scalars.empty, name="for")
    """Incident kind -> how long it must last before it is notified; none: at once."""
    run_retention: Seconds = 3600.0
    """How long the series of a finished run are exported: long enough for every scrape to see its end."""
    max_runs: Annotated[int, Meta(ge=1)] = 1000
    """Runs kept at once; each has some 70 series, and a scrape of 70,000 takes a second."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    RENAMED: ClassVar[Mapping[str, str]] = {
        "hold": "for", "stop_wait": "shutdown_grace_period", "intake": "receiver", "policies": "remediations",
        "dialects": "formats", "follow": "poll_interval",
    }  # fmt: skip
    """Keys of old configuration files -> their present names, for the message that refuses them."""

    @property
    def pushed(self) -> str:
        """The directory in which pushed lines are followed (monitor/receiver/labels.py adds it); empty: none come."""
        found = (watch.paths[0] for watch in self.runs if watch.paths and watch.labels)
        return next(found, "").removesuffix(f"/{PATTERN}")

    def is_pushed(self, path: str) -> bool:
        """Does it name a stream that somebody pushed?"""
        return bool(self.pushed) and path.startswith(f"{self.pushed}/")

    @property
    def empty(self) -> bool:
        """Is there nothing to follow?"""
        return not (self.runs or self.receiver.listen or self.kafka.bootstrap)

    def problems(self) -> scalars.Problems:
        """What the values together have wrong."""
        if self.receiver.listen is None and not self.kafka.bootstrap:
            why = "are those of pushed logs: set receiver.listen, for example 0.0.0.0:9844"
            yield from ((f"runs.{index}.labels", why) for index, watch in enumerate(self.runs) if watch.labels)
        elif self.receiver.listen == self.listen:
            yield "receiver", "listens where the page does: give it a port of its own"
        names: set[str] = set()
        for index, own in ((index, one) for index, several in enumerate(self.formats) for one in several):
            if own.name in names:
                yield f"formats.{index}", f"the name {own.name!r} is that of another format, too"
            names.add(own.name)

"""Every key of the configuration, its type and its default. The file config.yaml at the project's root shows the same.

Law: frozen; a value of these classes is valid, whatever text it came from. Durations are seconds, ratios parts of one.
A detector's settings stand beside the detector, with their reasons; here is only where they hang.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from monitor.config import scalars
from monitor.config.scalars import FilePath, Name
from monitor.detectors import DETECTORS
from monitor.detectors.base import Severity
from monitor.metrics import CATALOGUE, MONITOR_CATALOGUE
from monitor.run.units import PositiveSeconds, Seconds
from parsers.events import Failure

_Problems = Iterator[tuple[str, str]]


if TYPE_CHECKING:
    IncidentKind = str
else:
    IncidentKind = Literal[tuple(DETECTORS)]

_OWN_LABELS = {"run", *(label for row in CATALOGUE for label in row.labels)}
_OWN_LABELS |= {label for own in MONITOR_CATALOGUE for label in own.labels}


def _nothing() -> Mapping[Any, Any]:
    return MappingProxyType({})


class Watch(Struct, frozen=True, kw_only=True):
    """What to follow, and how the runs found there are named (naming.py)."""

    paths: Annotated[tuple[FilePath, ...], Meta(min_length=1)]
    """Files, directories or globs; `**` crosses directories."""
    exclude: tuple[FilePath, ...] = ()
    name: scalars.RunName | None = None
    """All sources of these paths are this one run."""
    name_from: scalars.Regex | None = None
    """A regular expression searched in the path; its group `run` is the name."""

    def problems(self) -> _Problems:
        """What the keys say together."""
        if self.name is not None and self.name_from is not None:
            yield "name_from", "stands beside name, which already names the run"
        if self.name_from is not None and "run" not in scalars.compiled(self.name_from).groupindex:
            yield "name_from", "has no named group run, as in (?P<run>[^/]+)"


class Pattern(Struct, frozen=True, kw_only=True):
    """A line of the site's own: what it looks like and what it means."""

    name: Name
    match: scalars.Regex
    """Searched in the line, without the prefix that a launcher adds."""
    kind: Literal["value", "progress", "failure"]
    """`value` exports the named group `value`; `progress` proves that the run lives; `failure` is a crash."""
    contains: str | None = None
    """Text that every such line holds; lines without it cost one look. None: searched for in every line."""
    failure: Failure | None = None
    """Which failure it is (for kind `failure`); None: unknown."""

    def problems(self) -> _Problems:
        """What the keys say together."""
        pattern = scalars.compiled(self.match)
        if self.kind == "value" and "value" not in pattern.groupindex:
            yield "match", "has no named group value, which kind value exports"
        if self.failure is not None and self.kind != "failure":
            yield "failure", f"is for kind failure, not {self.kind}"
        if self.contains == "":
            yield "contains", "is empty: leave it out"
        # A pattern that needs nothing is found in every line; of kind progress it would switch hang detection off.
        if pattern.search("", timeout=1.0) is not None:
            yield "match", "matches an empty line, and so every line"


class Wanted(Struct, frozen=True, kw_only=True):
    """What every notifier has: its name, and what it wants to hear of."""

    name: Name
    minimum_severity: Severity = "warning"
    runs: tuple[str, ...] = ()
    """Globs over run names; none: every run."""
    incidents: tuple[IncidentKind, ...] = ()
    """Incident kinds; none: every kind."""


class WebhookSettings(Wanted, frozen=True, kw_only=True, tag_field="type", tag="webhook"):
    """A JSON object posted to an address at each transition of an incident."""

    url: scalars.Url | None = None
    url_file: FilePath | None = None
    """The file that holds the address, read at each delivery: for addresses that are secrets."""
    url_env: scalars.Variable | None = None
    """The environment variable that holds the address."""
    headers: Mapping[scalars.PlainHeader, scalars.HeaderValue] = msgspec.field(default_factory=_nothing)
    header_files: Mapping[scalars.Header, FilePath] = msgspec.field(default_factory=_nothing)
    """Header -> the file that holds its value, read at each delivery: for secrets such as Authorization."""
    timeout: PositiveSeconds = 10.0
    """For each step of a delivery: to connect, to write, to read. Longer than a receiver in health ever needs."""

    def problems(self) -> _Problems:
        """What the keys say together."""
        if sum(where is not None for where in (self.url, self.url_file, self.url_env)) != 1:
            yield "", "expected exactly one of url, url_file, url_env"
        for header in {name.lower() for name in self.headers} & {name.lower() for name in self.header_files}:
            yield "header_files", f"{header} stands in headers too"


class AlertmanagerSettings(WebhookSettings, frozen=True, kw_only=True, tag_field="type", tag="alertmanager"):
    """An Alertmanager, by its API; `url` is its root, as in http://alertmanager:9093."""

    keep: PositiveSeconds = 12 * 3600.0
    """An alert that the daemon neither repeats nor resolves ends by itself after this: longer than repeat_interval."""


class CommandSettings(Wanted, frozen=True, kw_only=True, tag_field="type", tag="command"):
    """A program, started at each transition with the JSON object on its standard input."""

    command: Annotated[tuple[str, ...], Meta(min_length=1)]
    """Program and arguments; no shell looks at them."""
    timeout: PositiveSeconds = 300.0
    """Then it is ended, with everything it started: py-spy over a hundred nodes takes minutes."""


class AppriseSettings(Wanted, frozen=True, kw_only=True, tag_field="type", tag="apprise"):
    """Chat, mail and pagers, by the library Apprise (`pip install megatron-monitor[apprise]`)."""

    url_file: FilePath | None = None
    """The file that holds Apprise's addresses, one a line: they are secrets."""
    url_env: scalars.Variable | None = None
    """The environment variable that holds them, separated by spaces."""

    def problems(self) -> _Problems:
        """What the keys say together."""
        if (self.url_file is None) == (self.url_env is None):
            yield "", "expected exactly one of url_file, url_env"


NotifierConfig = WebhookSettings | AlertmanagerSettings | CommandSettings | AppriseSettings
"""The union of all kinds of notifiers, told apart by `type:`."""


class TextfileSettings(Struct, frozen=True, kw_only=True, tag_field="type", tag="textfile"):
    """The metrics as a file for node_exporter's textfile collector."""

    name: Name
    path: FilePath
    """Below node_exporter's --collector.textfile.directory."""
    interval: PositiveSeconds = 15.0
    """Between two writes: as often as Prometheus looks."""
    labels: Mapping[scalars.Variable, str] = msgspec.field(default_factory=_nothing)
    """Added to every sample: two daemons on one node would else write the same series twice."""

    def problems(self) -> _Problems:
        """What the keys say together."""
        if not self.path.endswith(".prom"):
            yield "path", "does not end in .prom, and node_exporter reads no other file"
        for label in self.labels:
            if label in _OWN_LABELS or label.startswith("__"):
                yield "labels", f"{label} is a label of the metrics themselves"


class PushgatewaySettings(Struct, frozen=True, kw_only=True, tag_field="type", tag="pushgateway"):
    """The metrics pushed to a Pushgateway; the daemon's group is deleted when it ends."""

    name: Name
    url: scalars.Url
    job: Name = "megatron-monitor"
    """As the rules know the daemons."""
    instance: Name | None = None
    """Names this daemon among those that push. None: host:port."""
    interval: PositiveSeconds = 15.0
    """Between two pushes: as often as Prometheus looks."""
    timeout: PositiveSeconds = 10.0
    """Of one push: longer than a gateway in health ever needs, shorter than the interval."""
    username: Name | None = None
    password_file: FilePath | None = None
    """The file that holds the password of basic auth, read at each push."""

    def problems(self) -> _Problems:
        """What the keys say together."""
        if (self.username is None) != (self.password_file is None):
            yield "", "username and password_file belong together"


OutputConfig = TextfileSettings | PushgatewaySettings
"""The union of all kinds of outputs, told apart by `type:`."""


class Follow(Struct, frozen=True, kw_only=True):
    """How often the file system is asked. Each question is a stat; see the counters of the daemon for what it costs."""

    poll_interval: PositiveSeconds = 0.5
    """Between two looks at a file that grows: well below a second, so that a hang is told in time."""
    discovery_interval: PositiveSeconds = 10.0
    """Between two searches for new files: a scan of directories, which shared file systems pay for."""
    idle_interval: PositiveSeconds = 10.0
    """Between two looks at a file that has not grown for long."""

    def problems(self) -> _Problems:
        """What the keys say together."""
        if self.idle_interval < self.poll_interval:
            yield "idle_interval", "is shorter than poll_interval"


class TlsServer(Struct, frozen=True, kw_only=True):
    """`tls_server_config` of Prometheus's web configuration file."""

    cert_file: FilePath
    key_file: FilePath
    client_ca_file: FilePath | None = None
    client_auth_type: Literal[
        "NoClientCert",
        "RequestClientCert",
        "RequireAnyClientCert",
        "VerifyClientCertIfGiven",
        "RequireAndVerifyClientCert",
    ] = "NoClientCert"
    min_version: Literal["TLS12", "TLS13"] = "TLS12"

    def problems(self) -> _Problems:
        """What the keys say together."""
        if self.client_auth_type.endswith(("IfGiven", "AndVerifyClientCert")) and self.client_ca_file is None:
            yield "client_ca_file", f"is needed for client_auth_type {self.client_auth_type}"


class Web(Struct, frozen=True, kw_only=True):
    """TLS and basic auth of the HTTP server, in the shape of Prometheus's web configuration file."""

    tls_server_config: TlsServer | None = None
    basic_auth_users: Mapping[Name, scalars.BcryptHash] = msgspec.field(default_factory=_nothing)
    """User -> bcrypt hash of the password."""


# One attribute a detector, of its settings class: a detector is one row in monitor/detectors, not two.
_DETECTORS = msgspec.defstruct(
    "Detectors",
    [(name, row.settings, msgspec.field(default_factory=row.settings)) for name, row in DETECTORS.items()],
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
    runs: Annotated[tuple[Watch, ...], Meta(extra={"unique": "name"})] = ()
    gpu_peak_tflops: scalars.Positive | None = None
    """TFLOP/s of one GPU at its data sheet's dense peak. None: from the GPU's name in the log, else no MFU."""
    detectors: Detectors = _DETECTORS()
    patterns: Annotated[tuple[Pattern, ...], Meta(extra={"unique": "name"})] = ()
    notifiers: Annotated[tuple[NotifierConfig, ...], Meta(extra={"unique": "name"})] = ()
    outputs: Annotated[tuple[OutputConfig, ...], Meta(extra={"unique": "name"})] = ()
    web: Web = Web()
    follow: Follow = Follow()
    repeat_interval: PositiveSeconds = 4 * 3600.0
    """An incident that still fires is told again after this: Alertmanager's default, often enough to be remembered."""
    hold: Mapping[IncidentKind, PositiveSeconds] = msgspec.field(default_factory=_nothing)
    """Incident kind -> how long its trouble must stand before it is told; none: at once."""
    run_retention: Seconds = 3600.0
    """How long a finished run's series stay: long enough for every scrape to see its end."""
    max_runs: Annotated[int, Meta(ge=1)] = 1000
    """Runs known at once; each has some 70 series, and a scrape of 70,000 takes a second."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"

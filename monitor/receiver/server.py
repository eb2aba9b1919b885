"""The receiver's HTTP server: credentials, tenants and their quotas, bodies and answers.

204 or 200: all lines are on disk. 429, 503: try again. 400, 413, 415: this body can never be read. 400 is also the
answer if a run was refused and all other lines are on disk (OTLP: a partial success): one run never delays others.
Lines that name no run are accepted and counted, because a refusal would delay the lines after them.
"""

import base64
import hashlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from megatron_monitor.config import Config, ConfigError, host_and_port, spool_directory
from megatron_monitor.config.inputs import ReceiverSettings
from megatron_monitor.parsers.redaction import masked
from megatron_monitor.pushed import REFUSED
from megatron_monitor.receiver.agents import Agents
from megatron_monitor.receiver.labels import StreamFile, origin_of
from megatron_monitor.receiver.messages import PROTOCOLS, Push, Stream, bounded
from megatron_monitor.receiver.spool import QuotaError, Spool
from megatron_monitor.receiver.wire import TooLargeError, WireError, unpack, varint
from megatron_monitor.serve.auth import Hosts, is_loopback
from megatron_monitor.serve.exchange import Limits, Reply, Request, text_reply
from megatron_monitor.serve.http import Exposition, Probes
from megatron_monitor.serve.server import HttpServer
from megatron_monitor.serve.tls import Tls
from megatron_monitor.snapshot import MonitorCounts, Snapshot
from megatron_monitor.system.clock import Clock, SystemClock
from megatron_monitor.system.flag import Flag
from megatron_monitor.system.systemd import ServiceManager

_log = logging.getLogger(__name__)

MAX_BODY_BYTES = 8 << 20  # packed and unpacked: agents send 1 to 4 MiB; parsed it takes up to 64 MiB
_STREAMS_PER_RUN = 10  # on average; each is a file and costs the daemon some 20 kB
_MAX_NEW_STREAMS = 500  # of a body, then it must come again: to create a file takes 0.5 ms
_ACTIVE = 3600.0  # seconds since its last line for which a stream counts to the quota of its tenant
_LATEST = 2**63  # Unix nanoseconds; later ones are no time, and cannot be written
_MAX_UNNAMED_LOGGED = 20  # sets of labels that name no run
_REPORT_INTERVAL = 1.0  # seconds between two reports of the agents
_PROTOBUF = ("application/x-protobuf", "application/protobuf")
_LIMITS = Limits(connections=4096, idle=300.0, threads=8, body=MAX_BODY_BYTES, bodies=128 << 20)
"""Agents keep their connections open, and a sync to a slow disk takes long."""
_READY = ("/-/ready", "/ready")  # of all programs, and Loki's
_PUBLIC = frozenset({"/metrics", "/-/healthy", *_READY})
_MAX_PAUSE = 30.0  # seconds without a report: only a disk that hangs takes so long


class Credentials:
    """The SHA-256 of each token, and its tenant."""

    def __init__(self, tenants: Mapping[str, tuple[str, ...]]) -> None:
        self._tenants = {digest: tenant for tenant, digests in tenants.items() for digest in digests}

    async def allows(self, header: str | None) -> bool:
        """Return True if the header `Authorization` holds a known token."""
        return self.tenant(header) is not None

    def tenant(self, header: str | None) -> str | None:
        """Return the tenant of the bearer token or the user's password; None if it is unknown."""
        scheme, _, token = (header or "").strip().partition(" ")
        secret = token.strip().encode("latin-1", "replace")
        if scheme.lower() == "basic":
            try:
                secret = base64.b64decode(secret, validate=True).partition(b":")[2]
            except ValueError:
                return None
        elif scheme.lower() != "bearer":
            return None
        return self._tenants.get(hashlib.sha256(secret).hexdigest())  # the time of a look-up shows no token


@dataclass(slots=True)
class _Tenant:
    """How much of its quota a tenant has used."""

    streams: dict[str, float] = field(default_factory=dict)  # name -> monotonic time of its last line, the oldest first
    runs: dict[str, float] = field(default_factory=dict)
    paid_until: float = float("-inf")  # monotonic time; the quota of each second pays for its bytes
    requests: int = 0  # that are being answered

    def charge(self, size: int, quota: int, now: float) -> None:
        """Charge `size` bytes. Ten seconds' quota may come at once. QuotaError."""
        self.paid_until = max(self.paid_until, now - 10.0)
        if (wait := min(size / quota, 1.0) - (now - self.paid_until)) > 0.0:
            raise QuotaError("more than receiver.max_bytes_per_second", wait)
        self.paid_until += size / quota

    def is_within_quota(self, file: StreamFile, quota: ReceiverSettings, now: float) -> bool:
        """Note a write to the stream. False: the tenant has too many streams or runs."""
        written = (self.streams, file.name, quota.max_runs * _STREAMS_PER_RUN), (self.runs, file.run, quota.max_runs)
        for active, name, limit in written:
            if name not in active and len(active) >= limit:
                while active and now - active[oldest := next(iter(active))] > _ACTIVE:
                    del active[oldest]
                if len(active) >= limit:
                    return False
        for active, name, _ in written:
            active.pop(name, None)
            active[name] = now
        return True


class Receiver:
    """The server and its spool. Binds the address at once. Raises OSError if it is in use, and TlsError."""

    def __init__(self, config: Config, clock: Clock) -> None:
        directory = spool_directory(config)
        assert directory is not None
        assert config.receiver.listen is not None
        self._clock = clock
        self._spool = Spool(Path(directory), config.receiver.spool_size)
        self.agents = Agents(Path(directory) / "agents.json", clock)
        self._tenants: dict[str, _Tenant] = {}
        self._lock = threading.Lock()
        self._counts = MonitorCounts()
        self._unnamed = set[str]()  # logged labels of lines that name no run
        self._reported_at = clock.monotonic()
        self.server = HttpServer(*host_and_port(config.receiver.listen), self, _LIMITS)
        self.server.public = _PUBLIC
        self.server.tls = Tls(config.web.tls_server_config) if config.web.tls_server_config is not None else None
        metrics = Exposition(self._snapshot, clock)
        self._probes = Probes(metrics, lambda: clock.monotonic() - self._reported_at, _MAX_PAUSE)
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Use this configuration from the next push on; address and directory stay."""
        self._settings, self._watches = config.receiver, config.runs
        self._spool.size, self._spool.streams = self._settings.spool_size, self._settings.max_runs * _STREAMS_PER_RUN
        self._credentials = Credentials(self._settings.tenants)
        self.agents.tenants = max(1, len(self._settings.tenants))
        self.server.auth = self._credentials.allows if self._settings.tenants else None
        self.server.owner_of = self._credentials.tenant
        host = host_and_port(self._settings.listen or "localhost:0")[0]
        self.server.hosts = Hosts(host, self.server.address[0])
        tls = config.web.tls_server_config
        authenticated = self._settings.tenants or (tls is not None and tls.client_ca_file is not None)
        if not (is_loopback(self.server.address[0]) or authenticated):
            _log.warning("receiver.listen=%s: anyone who reaches this address can push: set receiver.tenants", host)

    def start(self) -> None:
        """Open the spool and serve. Raises StateInUseError and OSError."""
        self._spool.open(self._clock.wall())
        self.agents.load()
        self.write_report()
        self.server.start()

    def write_report(self) -> None:
        """Write the report of the agents, which also shows that the receiver is alive."""
        self.agents.save(self._clock.wall())
        self._reported_at = self._clock.monotonic()

    def stop(self, seconds: float) -> None:
        """Close every socket and file."""
        self.server.stop(seconds)
        self._spool.close()

    def _snapshot(self) -> Snapshot:
        with self._lock:
            self._counts.set("receiver_spool_bytes", float(self._spool.held))
            return Snapshot(at=self._clock.wall(), monitor=self._counts.frozen())

    def __call__(self, request: Request) -> Reply:
        """Answer one request."""
        if request.path in _PUBLIC:
            is_ready = request.path in _READY and request.method in ("GET", "HEAD")  # it answers once it can store
            return text_reply(200, "ready\n") if is_ready else self._probes(request)
        try:
            reply = self._route(request)
        except QuotaError as error:
            quota, seconds = error.args
            reply = text_reply(429, f"{quota}: try again\n", ("Retry-After", str(max(1, round(seconds)))))
        except TooLargeError as error:
            reply = text_reply(413, f"{error}\n")
        except WireError as error:
            reply = text_reply(400, f"{error}\n")
        except Exception as error:  # noqa: BLE001 - senders drop lines that are answered by 500
            if not isinstance(error, OSError):
                _log.exception("a push failed")
            reply = text_reply(503, f"the lines cannot be stored now: {error}\n", ("Retry-After", "5"))
        self._count("requests_total", str(reply.status))
        return reply

    def _route(self, request: Request) -> Reply:
        if request.path not in PROTOCOLS:
            return text_reply(404, f"push to {', '.join(PROTOCOLS)}\n")
        protocol, parse_json, parse_protobuf = PROTOCOLS[request.path]
        if request.method != "POST":
            return text_reply(405, "only POST is accepted here\n", ("Allow", "POST"))
        if "origin" in request.headers:
            return text_reply(403, "a web page may not push\n")
        tenant = self._credentials.tenant(request.headers.get("authorization")) if self._settings.tenants else ""
        if tenant is None:
            return text_reply(401, "a token is needed\n")
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        as_json = kind == "application/json"
        if not as_json and kind not in _PROTOBUF:
            return text_reply(415, "Content-Type is neither application/json nor application/x-protobuf\n")
        packing = request.headers.get("content-encoding", "").strip().lower()
        if protocol == "loki" and not as_json and not packing:
            packing = "snappy"  # Loki's own clients send no Content-Encoding
        with self._turn_of(tenant) as own:
            body = unpack(request.body, packing, MAX_BODY_BYTES)
            with self._lock:
                own.charge(len(body), self._settings.max_bytes_per_second, self._clock.monotonic())
            push = bounded(parse_json(body) if as_json else parse_protobuf(body))
            why = self._store(push, tenant)
        if protocol == "otlp":
            return _otlp_reply(kind, push.refused, why or "no dated text")
        return text_reply(400, f"{why}\n") if why else Reply(204, "text/plain", b"")

    @contextmanager
    def _turn_of(self, tenant: str) -> Iterator[_Tenant]:
        """Give the tenant. Leave half of the threads to other tenants, if there are any. QuotaError."""
        most = _LIMITS.threads // 2 if len(self._settings.tenants) > 1 else _LIMITS.threads
        with self._lock:
            own = self._tenants.setdefault(tenant, _Tenant())
            if own.requests >= most:
                raise QuotaError(f"more than {most} requests at once", 1.0)
            own.requests += 1
        try:
            yield own
        finally:
            with self._lock:
                own.requests -= 1

    def _store(self, push: Push, tenant: str) -> str:
        """Write the lines. Returns which run was refused because of the tenant's quota; empty: none."""
        self._count("lines_total", "invalid", by=push.refused)
        why, streams = "", self._tenants[tenant].streams
        before = len(streams)
        now, seen = self._clock.wall(), list[tuple[str, float, bool, bool]]()
        for stream in push.streams:
            file, agent, is_heartbeat = origin_of(stream.labels, tenant, self._watches)
            if agent and stream.entries:
                until = min(max(0, *(at for at, _ in stream.entries)), _LATEST) / 1e9 or now
                seen.append((agent, until, is_heartbeat, stream.labels.get("heartbeat") == REFUSED))
            if file is not None:
                if len(streams) - before > _MAX_NEW_STREAMS:
                    raise QuotaError(f"more than {_MAX_NEW_STREAMS} new streams at once", 1.0)
                if not self._write(stream, file, tenant, agent, now):
                    push.refused += len(stream.entries)
                    self._count("lines_total", "refused", by=len(stream.entries))
                    why = (
                        f"refused: the run {file.run} is above the quota of its tenant (receiver.max_runs is "
                        f"{self._settings.max_runs}, with {_STREAMS_PER_RUN} streams per run); other lines are stored"
                    )
            elif not is_heartbeat:
                self._count_unnamed(stream, tenant)
        # Only now, with its lines on disk, a later silence of the agent counts.
        for agent, until, is_heartbeat, refused in seen:
            self.agents.note(agent, until, now, heartbeat=is_heartbeat, refused=refused)
        return why

    def _count(self, name: str, label: str, by: int = 1) -> None:
        if by:
            with self._lock:
                self._counts.add(f"receiver_{name}", label, by=by)

    def _write(self, stream: Stream, file: StreamFile, tenant: str, agent: str, now: float) -> bool:
        """Write the stream's lines. False: the tenant has too many runs or streams."""
        with self._lock:
            within = self._tenants[tenant].is_within_quota(file, self._settings, self._clock.monotonic())
        if not within:
            return False
        arrived = int((now - self.agents.offset(agent)) * 1e9)

        def date(newest: int) -> None:
            self._count("lines_total", "ahead", by=stream.date(arrived, newest))

        new, duplicates = self._spool.append(file, stream.entries, now, date)
        self._count("lines_total", "new", by=new)
        self._count("lines_total", "duplicate", by=duplicates)
        return True

    def _count_unnamed(self, stream: Stream, tenant: str) -> None:
        self._count("lines_total", "unnamed", by=len(stream.entries))
        labels = masked(", ".join(f"{name}={value}" for name, value in sorted(stream.labels.items())))[:300]
        with self._lock:
            if labels in self._unnamed or len(self._unnamed) >= _MAX_UNNAMED_LOGGED:
                return
            self._unnamed.add(labels)
        _log.warning(
            "tenant=%r labels {%s} name no run, so that they are not monitored: docs/pushed-logs.md", tenant, labels
        )


def _otlp_reply(kind: str, refused: int, why: str) -> Reply:
    """Return an ExportLogsServiceResponse; empty without refused lines."""
    if kind != "application/json":
        text = why.encode()[:1000]
        partial = b"\x08" + varint(refused) + b"\x12" + varint(len(text)) + text
        return Reply(200, "application/x-protobuf", b"\x0a" + varint(len(partial)) + partial if refused else b"")
    reply = {"partialSuccess": {"rejectedLogRecords": str(refused), "errorMessage": why}} if refused else {}
    return Reply(200, "application/json", msgspec.json.encode(reply))


def serve(config: Config, configure: Callable[[], Config]) -> None:
    """Serve until SIGTERM or SIGINT. SIGHUP reloads the configuration. Raises OSError, TlsError."""
    receiver = Receiver(config, SystemClock())
    stopping, reload, manager = Flag(), Flag(), ServiceManager(os.environ)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    signal.signal(signal.SIGHUP, lambda *_: reload.set())
    receiver.start()
    manager.ready()
    _log.info("logs may be pushed to %s:%d", *receiver.server.address)
    while not stopping.wait(_REPORT_INTERVAL):
        receiver.write_report()
        manager.turned(SystemClock.monotonic())
        if reload.is_set():
            reload.clear()
            try:
                receiver.configure(configure())
            except ConfigError as error:
                _log.error("configuration not reloaded, the old one stays in use: %s", error)
            manager.ready()
    receiver.stop(_REPORT_INTERVAL)

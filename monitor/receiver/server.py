"""HTTP for senders: who may push, what a body holds, what the answer is; tenants and their quotas.

204 or 200: all of it is on the disk. 429, 503: try again. 400, 413, 415: this body can never be read. Lines that name
no run are taken and counted: to refuse them would hold up what comes behind them.
"""

import base64
import hashlib
import hmac
import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from megatron_monitor.config import Config, ConfigError, host_and_port, spool_directory
from megatron_monitor.config.inputs import ReceiverSettings
from megatron_monitor.parsers.redaction import masked
from megatron_monitor.receiver import labels as naming
from megatron_monitor.receiver.agents import Agents
from megatron_monitor.receiver.messages import PROTOCOLS, Push, Stream
from megatron_monitor.receiver.spool import FullError, Spool
from megatron_monitor.receiver.wire import TooLargeError, WireError, unpacked
from megatron_monitor.serve.auth import Hosts, is_loopback
from megatron_monitor.serve.exchange import Limits, Reply, Request, text_reply
from megatron_monitor.serve.http import Exposition
from megatron_monitor.serve.server import HttpServer
from megatron_monitor.serve.tls import Tls
from megatron_monitor.snapshot import MonitorCounts, Snapshot
from megatron_monitor.system.clock import Clock, SystemClock
from megatron_monitor.system.systemd import ServiceManager

_log = logging.getLogger(__name__)

LARGEST = 8 << 20  # bytes of a body, packed and unpacked: agents send 1 to 4 MiB; it takes up to 64 MiB once it is read
_STREAMS = 10  # of a run, in the mean: 1,000 pods have two each. A stream is a file, and costs the judge some 20 kB
_ACTIVE = 3600.0  # seconds since its last line for which a stream is part of the quota of its tenant
_UNNAMED = 20  # sets of labels that name no run, in the log
_TURN = 1.0  # seconds between two reports of the agents
_PROTOBUF = ("application/x-protobuf", "application/protobuf")
_LIMITS = Limits(connections=4096, idle=300.0, answer=60.0, threads=8, body=LARGEST, bodies=128 << 20)
"""Agents keep their connections, and a flush to a slow disk takes its time."""
_PUBLIC = frozenset({"/metrics", "/-/healthy", "/-/ready", "/ready"})


class Credentials:
    """Tokens, by their SHA-256, and the tenant that each is of."""

    def __init__(self, tenants: Mapping[str, tuple[str, ...]]) -> None:
        self._tenants = {digest: tenant for tenant, digests in tenants.items() for digest in digests}

    async def allows(self, header: str | None) -> bool:
        """Does the header `Authorization` hold a known token?"""
        return self.tenant(header) is not None

    def tenant(self, header: str | None) -> str | None:
        """The tenant of the bearer token, or of the password of a user; None if it is unknown."""
        scheme, _, token = (header or "").strip().partition(" ")
        secret = token.strip().encode("latin-1", "replace")
        if scheme.lower() == "basic":
            try:
                secret = base64.b64decode(secret, validate=True).partition(b":")[2]
            except ValueError:
                return None
        elif scheme.lower() != "bearer":
            return None
        found = hashlib.sha256(secret).hexdigest()
        return next((one for digest, one in self._tenants.items() if hmac.compare_digest(found, digest)), None)

    def close(self) -> None:
        """There is nothing to end."""


@dataclass(slots=True)
class _Tenant:
    """What a tenant has used of its quota."""

    streams: dict[str, float] = field(default_factory=dict)
    runs: dict[str, float] = field(default_factory=dict)
    """When each was last written to, monotonic seconds."""
    left: float = 0.0
    """Bytes that it may push now."""
    at: float = float("-inf")

    def takes(self, size: int, quota: int, now: float) -> float:
        """Seconds after which it may push so much; 0 if now. Ten seconds' quota may come at once."""
        self.left = quota * 10.0 if self.at == float("-inf") else min(quota * 10.0, self.left + (now - self.at) * quota)
        self.at = now
        if self.left < min(size, quota):
            return (min(size, quota) - self.left) / quota
        self.left -= size
        return 0.0

    def note(self, written: naming.Written, quota: ReceiverSettings, now: float) -> bool:
        """A stream is written to. False: it must not be, for the tenant has too many."""
        most = (
            (self.streams, written.name, quota.max_runs * _STREAMS),
            (self.runs, written.run, quota.max_runs),
        )
        for known, name, count in most:
            if name not in known and len(known) >= count:
                for old in [one for one, at in known.items() if now - at > _ACTIVE]:
                    del known[old]
                if len(known) >= count:
                    return False
        self.streams[written.name] = self.runs[written.run] = now
        return True


class _RefusedError(Exception):
    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


class Receiver:
    """The port and the directory. Bound at once: OSError if the address is taken, TlsError."""

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
        self._unnamed = set[str]()  # labels of lines that name no run, which are in the log
        self._ready = False
        self.server = HttpServer(*host_and_port(config.receiver.listen), self, _LIMITS)
        self.server.public = _PUBLIC
        self.server.tls = Tls(config.web.tls_server_config) if config.web.tls_server_config is not None else None
        self._metrics = Exposition(self._snapshot, clock)
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Go on by this configuration from the next push on; the address and the directory stay."""
        self._settings, self._watches = config.receiver, config.runs
        self._spool.size = self._settings.spool_size
        self._credentials = Credentials(self._settings.tenants)
        self.server.auth = self._credentials if self._settings.tenants else None
        host = host_and_port(self._settings.listen or "localhost:0")[0]
        self.server.hosts = Hosts(host, self.server.address[0])
        tls = config.web.tls_server_config
        asked = self._settings.tenants or (tls is not None and tls.client_ca_file is not None)
        if not (is_loopback(self.server.address[0]) or asked):
            _log.warning("receiver.listen=%s: whoever reaches it can push: see receiver.tenants", host)

    def start(self) -> None:
        """Take the directory and answer. SpoolError."""
        self._spool.open(self._clock.wall())
        self.agents.load()
        self.agents.save(self._clock.wall())
        self._ready = True
        self.server.start()

    def turn(self) -> None:
        """Write the report of the agents, which says that the receiver is alive."""
        self.agents.save(self._clock.wall())

    def stop(self, seconds: float) -> None:
        """Close every socket and file."""
        self._ready = False
        self.server.stop(seconds)
        self._spool.close()

    def _snapshot(self) -> Snapshot:
        with self._lock:
            self._counts.set("receiver_spool_bytes", float(self._spool.held))
            return Snapshot(at=self._clock.wall(), monitor=self._counts.frozen())

    def __call__(self, request: Request) -> Reply:
        """Route one request."""
        if request.path in _PUBLIC:
            return self._of_own(request)
        try:
            reply = self._route(request)
        except _RefusedError as error:
            reply = error.reply
        except FullError:
            reply = _later("receiver.spool_size is used up by lines that are not read yet", 5.0)
        except TooLargeError as error:
            reply = text_reply(413, f"{error}\n")
        except WireError as error:
            reply = text_reply(400, f"{error}\n")
        except Exception as error:  # noqa: BLE001 - senders throw away what is answered by 500
            if not isinstance(error, OSError):
                _log.exception("a push failed")
            reply = text_reply(503, f"cannot be kept now: {error}\n", ("Retry-After", "5"))
        self._count("requests_total", str(reply.status))
        return reply

    def _of_own(self, request: Request) -> Reply:
        """What probes and Prometheus ask for; no sender has a say in it, and no credential is asked."""
        if request.method not in ("GET", "HEAD"):
            return text_reply(405, "only GET and HEAD are served here\n")
        if request.path == "/metrics":
            return self._metrics.reply(request)
        ready = self._ready or request.path == "/-/healthy"
        return text_reply(200, "ready\n") if ready else text_reply(503, "starting\n")

    def _route(self, request: Request) -> Reply:
        if request.path not in PROTOCOLS:
            return text_reply(404, f"push to {', '.join(PROTOCOLS)}\n")
        protocol, read_json, read_protobuf = PROTOCOLS[request.path]
        if request.method != "POST":
            return text_reply(405, "only POST is taken here\n", ("Allow", "POST"))
        if "origin" in request.headers:
            return text_reply(403, "a web page may not push\n")
        tenant = ""
        if self._settings.tenants:
            found = self._credentials.tenant(request.headers.get("authorization"))
            if found is None:
                return text_reply(401, "a token is needed\n")
            tenant = found
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        as_json = kind == "application/json"
        if not as_json and kind not in _PROTOBUF:
            return text_reply(415, "Content-Type is neither application/json nor application/x-protobuf\n")
        packing = request.headers.get("content-encoding", "").strip().lower()
        if protocol == "loki" and not as_json and not packing:
            packing = "snappy"  # Loki's own clients do not say so
        body = unpacked(request.body, packing, LARGEST)
        self._charge(tenant, len(body))
        push = read_json(body) if as_json else read_protobuf(body)
        self._take(push, tenant)
        return Reply(204, "text/plain", b"") if protocol == "loki" else _otlp_reply(kind, push.refused)

    def _charge(self, tenant: str, size: int) -> None:
        quota, now = self._settings.max_bytes_per_second, self._clock.monotonic()
        with self._lock:
            seconds = self._tenants.setdefault(tenant, _Tenant()).takes(size, quota, now)
        if seconds > 0.0:
            raise _RefusedError(_later("more than receiver.max_bytes_per_second", seconds))

    def _take(self, push: Push, tenant: str) -> None:
        now, seen = self._clock.wall(), dict[str, tuple[float, bool]]()
        for stream in push.streams:
            written, agent, beats = naming.address(stream.labels, tenant, self._watches)
            if agent and stream.entries:
                until, beaten = seen.get(agent, (0.0, False))
                last = max(at for at, _ in stream.entries) / 1e9 or now
                seen[agent] = max(until, last), beats or beaten
            if written is not None:
                ahead = stream.date(int((now - self.agents.offset(agent)) * 1e9), round(self.agents.shift(agent) * 1e9))
                self._count("lines_total", "ahead", by=ahead)
                self._write(stream, written, tenant, now)
            elif not beats:
                self._count_unnamed(stream, tenant)
        # What it states is on the disk: only now its silence means anything.
        for agent, (until, beats) in seen.items():
            self.agents.note(agent, until, now, heartbeat=beats)
        self._count("lines_total", "invalid", by=push.refused)

    def _count(self, name: str, label: str, by: int = 1) -> None:
        if by:
            with self._lock:
                self._counts.add(f"receiver_{name}", label, by=by)

    def _write(self, stream: Stream, written: naming.Written, tenant: str, now: float) -> None:
        with self._lock:
            is_within = self._tenants[tenant].note(written, self._settings, self._clock.monotonic())
        if not is_within:
            raise _RefusedError(_later("more than receiver.max_runs allows", 30.0))
        new, known = self._spool.append(written, stream.entries, now)
        self._count("lines_total", "new", by=new)
        self._count("lines_total", "duplicate", by=known)

    def _count_unnamed(self, stream: Stream, tenant: str) -> None:
        self._count("lines_total", "unnamed", by=len(stream.entries))
        labels = masked(", ".join(f"{name}={value}" for name, value in sorted(stream.labels.items())))[:300]
        with self._lock:
            if labels in self._unnamed or len(self._unnamed) >= _UNNAMED:
                return
            self._unnamed.add(labels)
        _log.warning("tenant=%r lines of {%s} name no run and are not watched: see docs/pushed-logs.md", tenant, labels)


def _later(why: str, seconds: float) -> Reply:
    return text_reply(429, f"{why}: try again\n", ("Retry-After", str(max(1, round(seconds)))))


def _otlp_reply(kind: str, refused: int) -> Reply:
    """ExportLogsServiceResponse; empty if all is good, as always in protobuf, of which no record is refused alone."""
    if kind != "application/json":
        return Reply(200, "application/x-protobuf", b"")
    reply = {"partialSuccess": {"rejectedLogRecords": str(refused), "errorMessage": "no dated text"}} if refused else {}
    return Reply(200, "application/json", msgspec.json.encode(reply))


def serve(config: Config, configure: Callable[[], Config], parent: int | None) -> None:
    """Receive until SIGTERM or SIGINT, or until the process `parent` has ended. SIGHUP reads the configuration again.
    Raises OSError, TlsError.
    """
    receiver = Receiver(config, SystemClock())
    stopping, asked, manager = threading.Event(), threading.Event(), ServiceManager(os.environ)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    signal.signal(signal.SIGHUP, lambda *_: asked.set())
    receiver.start()
    manager.ready()
    _log.info("logs may be pushed to %s:%d", *receiver.server.address)
    while not stopping.wait(_TURN) and (parent is None or os.getppid() == parent):
        receiver.turn()
        manager.turned(SystemClock.monotonic())
        if asked.is_set():
            asked.clear()
            try:
                receiver.configure(configure())
            except ConfigError as error:
                _log.error("configuration not reloaded, the old one stays: %s", error)
            manager.ready()
    receiver.stop(_TURN)

"""HTTP for what pushes: who may, what a body holds, what the answer is; tenants and their shares.

204 or 200: all of it is on the disk. 429, 503: try again. 400, 413, 415: nobody will ever read this body. Lines that
name no run are taken and counted: to refuse them would hold up what stands behind them.
"""

import logging
import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from megatron_monitor.config import Config
from megatron_monitor.config.inputs import ReceiverSettings
from megatron_monitor.intake import labels as naming
from megatron_monitor.intake.carriers import Carriers
from megatron_monitor.intake.messages import PROTOCOLS, Push, Stream
from megatron_monitor.intake.spool import Spool
from megatron_monitor.intake.wire import TooLargeError, WireError, unpacked
from megatron_monitor.parsers.redaction import masked
from megatron_monitor.pushed import Heard
from megatron_monitor.serve.exchange import Limits, Reply, Request, text_reply
from megatron_monitor.serve.server import HttpServer
from megatron_monitor.snapshot import MonitorCounts
from megatron_monitor.system.clock import Clock

_log = logging.getLogger(__name__)

LARGEST = 8 << 20  # bytes of a body, packed and unpacked: agents send 1 to 4 MiB; it takes up to 64 MiB once it is read
_TENANT = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9!._*'()-]{1,64}")  # what Loki lets be one
_MOST_TENANTS = 1000
_STREAMS = 10  # of a run, in the mean: 1,000 pods have two each. A stream is a file, and costs the judge some 20 kB
_ACTIVE = 3600.0  # seconds since its last line for which a stream is part of a tenant's share
_SHOWN = 600.0  # seconds since a line that names no run for which the page says so
_UNNAMED = 20  # sets of labels that name no run, in the monitor's log
_PROTOBUF = ("application/x-protobuf", "application/protobuf", "application/octet-stream", "")
_LIMITS = Limits(connections=4096, idle=300.0, answer=60.0, threads=16, body=LARGEST)
"""Agents keep their connections, and a flush to a slow disk takes its time."""


@dataclass(slots=True)
class _Tenant:
    """What one has used of its share."""

    streams: dict[str, float] = field(default_factory=dict)
    runs: dict[str, float] = field(default_factory=dict)
    """When each was last written to, monotonic seconds."""
    left: float = 0.0
    """Bytes that it may push now."""
    at: float = float("-inf")

    def takes(self, size: int, share: int, now: float) -> float:
        """Seconds after which it may push so much; 0 if now. Ten seconds' share may come at once."""
        self.left = min(share * 10.0, self.left + (now - self.at) * share)
        self.at = now
        if self.left < min(size, share):
            return (min(size, share) - self.left) / share
        self.left -= size
        return 0.0

    def note(self, written: naming.Written, share: ReceiverSettings, now: float) -> str:
        """A stream is written to; why it must not be, if so."""
        most = (
            (self.streams, written.name, share.max_runs * _STREAMS),
            (self.runs, written.run, share.max_runs),
        )
        for known, name, count in most:
            if name not in known and len(known) >= count:
                for old in [one for one, at in known.items() if now - at > _ACTIVE]:
                    del known[old]
                if len(known) >= count:
                    return "more than receiver.max_runs allows"
        self.streams[written.name] = self.runs[written.run] = now
        return ""


class _RefusedError(Exception):
    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


class Door:
    """The port, the spool and what was heard. Bound at once: OSError if the address is taken."""

    def __init__(self, config: Config, host: str, port: int, directory: str, clock: Clock) -> None:
        self._settings, self._watches, self._clock = config.receiver, config.runs, clock
        self.on_new: Callable[[], None] = lambda: None
        """Called when a file was made, by any thread."""
        self._spool = Spool(Path(directory), self._settings.spool_size, lambda: self.on_new())  # noqa: PLW0108 - whoever is there then
        self.carriers = Carriers(Path(directory) / "carriers.json", clock=clock)
        self._tenants: dict[str, _Tenant] = {}
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, ...]] = Counter()
        self._unnamed: dict[str, float] = {}  # labels -> when a line came with them
        self._ready = False
        self.server = HttpServer(host, port, self, _LIMITS)

    def open(self) -> None:
        """Take the spool, before the follower begins. SpoolError."""
        self._spool.open(self._clock.wall())
        self.carriers.load()
        self._ready = True

    def stop(self, seconds: float) -> None:
        """Close every socket and file."""
        self._ready = False
        self.server.stop(seconds)
        self._spool.close()

    def configure(self, config: Config) -> None:
        """Name runs by another configuration from the next push on; the address and the spool stay."""
        self._settings, self._watches = config.receiver, config.runs

    def heard(self) -> Heard:
        """Which agents are heard now."""
        return self.carriers.heard(self._clock.wall())

    def count(self, counts: MonitorCounts) -> None:
        """Into `counts`: what came since the last call."""
        with self._lock:
            came, self._counts = self._counts, Counter()
        for (name, *labels), many in came.items():
            counts.add(name, *labels, by=many)
        for state, many in self.heard().states.items():
            counts.set("agents", many, state)

    @property
    def unnamed(self) -> str:
        """What people should know of lines that name no run; empty where there are none."""
        now = self._clock.monotonic()
        found = [told for told, at in list(self._unnamed.items()) if now - at < _SHOWN]
        return f"Pushed lines name no run, so nobody watches them: {found[0]} (docs/intake.md)" if found else ""

    def __call__(self, request: Request) -> Reply:
        """Route one request."""
        try:
            reply = self._route(request)
        except _RefusedError as error:
            reply = error.reply
        except TooLargeError as error:
            reply = text_reply(413, f"{error}\n")
        except WireError as error:
            reply = text_reply(400, f"{error}\n")
        except Exception as error:  # noqa: BLE001 - senders throw away what is answered by 500
            if not isinstance(error, OSError):
                _log.exception("intake: a push failed")
            reply = text_reply(503, f"cannot be kept now: {error}\n", ("Retry-After", "5"))
        self._count("receiver_requests_total", str(reply.status))
        return reply

    def _route(self, request: Request) -> Reply:
        if request.path == "/ready":
            return text_reply(200, "ready\n") if self._ready else text_reply(503, "starting\n")
        if request.path not in PROTOCOLS:
            return text_reply(404, f"push to {', '.join(PROTOCOLS)}\n")
        protocol, read_json, read_protobuf = PROTOCOLS[request.path]
        if request.method != "POST":
            return text_reply(405, "only POST is taken here\n", ("Allow", "POST"))
        if not self._ready:
            return text_reply(503, "starting\n", ("Retry-After", "1"))
        if "origin" in request.headers:
            return text_reply(403, "a web page may not push\n")
        tenant = request.headers.get("x-scope-orgid", "").strip()
        if tenant and not _TENANT.fullmatch(tenant):
            return text_reply(400, "X-Scope-OrgID is no tenant's name\n")
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        as_json = kind == "application/json"
        if not as_json and kind not in (
            "application/x-protobuf",
            "application/protobuf",
            "",
            "application/octet-stream",
        ):
            return text_reply(415, "neither application/json nor application/x-protobuf\n")
        packing = request.headers.get("content-encoding", "").strip().lower()
        if protocol == "loki" and not as_json and not packing:
            packing = "snappy"  # Loki's own clients do not say so
        body = unpacked(request.body, packing, LARGEST)
        self._charge(tenant, len(body))
        push = read_json(body) if as_json else read_protobuf(body)
        self._take(push, tenant)
        return Reply(204, "text/plain", b"") if protocol == "loki" else _otlp_reply(kind, push.refused)

    def _charge(self, tenant: str, size: int) -> None:
        share, now = self._settings.max_bytes_per_second, self._clock.monotonic()
        with self._lock:
            if tenant not in self._tenants and len(self._tenants) >= _MOST_TENANTS:
                raise _RefusedError(_later("too many tenants", 60.0))
            used = self._tenants.setdefault(tenant, _Tenant(left=share * 10.0, at=now))
            if (seconds := used.takes(size, share, now)) > 0.0:
                raise _RefusedError(_later("more than receiver.max_bytes_per_second", seconds))

    def _take(self, push: Push, tenant: str) -> None:
        known, now, heard = self.heard(), self._clock.wall(), dict[str, tuple[float, bool]]()
        for stream in push.streams:
            written, carrier, beats = naming.address(stream.labels, tenant, self._watches)
            if carrier and stream.entries:
                until, beaten = heard.get(carrier, (0.0, False))
                last = max(at for at, _ in stream.entries) / 1e9 or now
                heard[carrier] = max(until, last), beats or beaten
            if written is not None:
                ahead = stream.date(int((now - known.behind_us(carrier)) * 1e9))
                self._count("receiver_lines_total", "ahead", by=ahead)
                self._write(stream, written, tenant, now)
            elif not beats:
                self._count_unnamed(stream, tenant)
        # What it told is on the disk: only now its silence means anything.
        for carrier, (until, beats) in heard.items():
            self.carriers.note(carrier, until, now, heartbeat=beats)
        self.carriers.save(now)
        self._count("receiver_refused_lines_total", by=push.refused)

    def _count(self, *name_and_labels: str, by: int = 1) -> None:
        if by:
            with self._lock:
                self._counts[name_and_labels] += by

    def _write(self, stream: Stream, written: naming.Written, tenant: str, now: float) -> None:
        with self._lock:
            share, used = self._settings, self._tenants[tenant]
            if why := used.note(written, share, self._clock.monotonic()):
                raise _RefusedError(_later(why, 30.0))
        new, known = self._spool.append(written, stream.entries, now)
        self._count("receiver_lines_total", "new", by=new)
        self._count("duplicate_lines_total", written.run, by=known)

    def _count_unnamed(self, stream: Stream, tenant: str) -> None:
        self._count("receiver_lines_total", "unnamed", by=len(stream.entries))
        told = masked(", ".join(f"{name}={value}" for name, value in sorted(stream.labels.items())))[:300]
        told = told or "no labels"
        with self._lock:
            new = told not in self._unnamed
            if new and len(self._unnamed) >= _UNNAMED:
                return
            self._unnamed[told] = self._clock.monotonic()
        if new:
            _log.warning("tenant=%r lines of {%s} name no run: nobody watches them; see docs/intake.md", tenant, told)


def _later(why: str, seconds: float) -> Reply:
    return text_reply(429, f"{why}: try again\n", ("Retry-After", str(max(1, round(seconds)))))


def _otlp_reply(kind: str, refused: int) -> Reply:
    """ExportLogsServiceResponse; empty if all is good, as always in protobuf, of which no record is refused alone."""
    if kind != "application/json":
        return Reply(200, "application/x-protobuf", b"")
    told = {"partialSuccess": {"rejectedLogRecords": str(refused), "errorMessage": "no dated text"}} if refused else {}
    return Reply(200, "application/json", msgspec.json.encode(told))

"""/metrics as text, joined from kept pieces: a run that has not changed since the last scrape is not formatted again.

prometheus_client formats every family and chooses the format; here its lines are kept and put in order, and where
only values have changed they alone are put anew, by the library's own function. The page is the library's, byte for
byte (a test compares them).
"""

from __future__ import annotations

import gzip
import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, make_wsgi_app
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from monitor.metrics import CATALOGUE, Histogram, RunSnapshot, Sample, Snapshot
from monitor.serve.collector import MonitorCollector, build_registry, new_family, run_family

_log = logging.getLogger(__name__)
_FORMATS = 4  # kept at a time: a client may ask for any version
_EOF = b"# EOF\n"  # OpenMetrics ends a page so
_GZIP_LEVEL = 1  # ten times as fast as 9, and the page shrinks to a tenth all the same

Encode = Callable[[Collector], bytes]
_number: Callable[[float], str] = floatToGoString


class _Piece(NamedTuple):
    """The lines of one run by row of the catalogue; empty where it has none or they could not be made."""

    run: RunSnapshot
    lines: tuple[bytes, ...]


class _One(Collector):
    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> list[Metric]:
        return [self._family]


class _Rest(Collector):
    """What is no run's: the daemon's own families and the process's."""

    def __init__(self, snapshot: Snapshot, process: CollectorRegistry) -> None:
        self._own, self._process = MonitorCollector(lambda: snapshot), process

    def collect(self) -> Iterator[Metric]:
        yield from self._own.collect()
        yield from self._process.collect()


class _Format:
    """What is kept for one text format. Threads may share it: a page replaces what was kept whole."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._heads = tuple(
            self._text(new_family(row.name, row.kind, row.help, ["run", *row.labels])) for row in CATALOGUE
        )
        self._kept: dict[str, _Piece] = {}

    def _text(self, family: Metric) -> bytes:
        return self._encode(_One(family)).removesuffix(_EOF)

    def page(self, snapshot: Snapshot, rest: Collector) -> bytes:
        """The runs' families, then those of `rest`."""
        kept = self._kept
        pieces = [self._piece(run, kept.get(run.run)) for run in snapshot.runs]
        self._kept = {piece.run.run: piece for piece in pieces}
        out: list[bytes] = []
        for row, head in enumerate(self._heads):
            lines = [piece.lines[row] for piece in pieces if piece.lines[row]]
            if lines:
                out.append(head)
                out += lines
        out.append(self._encode(rest))
        return b"".join(out)

    def _piece(self, run: RunSnapshot, old: _Piece | None) -> _Piece:
        if old is not None and old.run is run:
            return old
        return _Piece(run, tuple(self._lines(run, row, old) for row in range(len(CATALOGUE))))

    def _lines(self, run: RunSnapshot, row: int, old: _Piece | None) -> bytes:
        metric = CATALOGUE[row]
        samples = run.samples.get(metric.name)
        if not samples:
            return b""
        if old is not None:
            before = old.run.samples.get(metric.name)
            if before == samples:
                return old.lines[row]
            if before and old.lines[row] and (again := _renewed(old.lines[row], before, samples)):
                return again
        try:
            family = run_family(metric.name, metric.kind, metric.help, metric.labels, (run,))
            return self._text(family).removeprefix(self._heads[row])
        except Exception:  # noqa: BLE001 - one family that cannot be built must not cost the others
            _log.exception("run=%s: %s could not be built and is left out", run.run, metric.name)
            return b""


def _renewed(lines: bytes, before: tuple[Sample, ...] | Histogram, now: tuple[Sample, ...] | Histogram) -> bytes | None:
    """The lines of a family with other values; None if more than values has changed, or might have."""
    if isinstance(before, Histogram) or isinstance(now, Histogram):
        if not isinstance(before, Histogram) or not isinstance(now, Histogram) or now.sum is None:
            return None
        if [bound for bound, _ in before.buckets] != [bound for bound, _ in now.buckets]:
            return None
        values = [value for _, value in now.buckets]
        values += [values[-1], now.sum]
    else:
        if [sample.labels for sample in before] != [sample.labels for sample in now]:
            return None
        values = [sample.value for sample in now]
    old = lines.decode().split("\n")
    if len(old) != len(values) + 1:  # the last is empty
        return None
    pairs = zip(old, values, strict=False)
    return "".join([f"{line[: line.rindex(' ')]} {_number(value)}\n" for line, value in pairs]).encode()


class Exposition:
    """The WSGI application of /metrics."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot
        self._chosen = make_wsgi_app(build_registry(snapshot))  # `?name[]=`: a few families, made anew
        self._process = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        self._formats: dict[str, _Format] = {}

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        """The page in the format that the client asks for."""
        if "name[]" in parse_qs(environ.get("QUERY_STRING", "")):
            return list(self._chosen(environ, start_response))
        encode, content_type = choose_encoder(environ.get("HTTP_ACCEPT", ""))
        snapshot = self._snapshot()  # one for the whole page
        page = self._format(content_type, encode).page(snapshot, _Rest(snapshot, self._process))
        headers = [("Content-Type", content_type)]
        if gzip_accepted(environ.get("HTTP_ACCEPT_ENCODING", "")):
            page = gzip.compress(page, _GZIP_LEVEL)
            headers.append(("Content-Encoding", "gzip"))
        start_response("200 OK", headers)
        return [page]

    def _format(self, content_type: str, encode: Encode) -> _Format:
        found = self._formats.get(content_type)
        if found is None:
            newest = list(self._formats.items())[1 - _FORMATS :]
            found = _Format(encode)
            self._formats = {**dict(newest), content_type: found}
        return found

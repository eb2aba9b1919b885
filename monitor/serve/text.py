"""A snapshot in Prometheus's text format, for a page that nobody negotiates: `run --once`.

prometheus_client would write the same (a test compares the two, byte for byte), but importing it brings an HTTP server,
TLS and mail headers: more time than a short log takes to read.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator

from monitor.metrics import (
    CATALOGUE,
    MONITOR_CATALOGUE,
    Histogram,
    Metric,
    RunSnapshot,
    Sample,
    Snapshot,
    clean_label,
)

_log = logging.getLogger(__name__)
_Labels = tuple[tuple[str, str], ...]


def page_text(snapshot: Snapshot) -> str:
    """The families of the runs, then the daemon's own, text format 0.0.4. A family that cannot be built is left out."""
    out: list[str] = []
    for row in CATALOGUE:
        made = (line for run in snapshot.runs for line in _lines(row, run))
        _family(out, row.name, row.kind, row.help, made)
    for own in MONITOR_CATALOGUE:
        lines = (_sample(own.name, (), own.labels, sample) for sample in snapshot.monitor.get(own.name, ()))
        _family(out, own.name, own.kind, own.help, lines)
    return "".join(out)


def _family(out: list[str], name: str, kind: str, documentation: str, lines: Iterable[str]) -> None:
    try:
        made = list(lines)
    except Exception:  # noqa: BLE001 - one family that cannot be built must not cost the others
        _log.exception("%s could not be built and is left out", name)
        return
    if made:
        told = documentation.replace("\\", r"\\").replace("\n", r"\n")
        out += (f"# HELP {name} {told}\n# TYPE {name} {kind}\n", *made)


def _lines(row: Metric, run: RunSnapshot) -> Iterator[str]:
    name, samples = row.name, run.samples.get(row.name) or ()
    label = ("run", clean_label(run.run))
    if not isinstance(samples, Histogram):
        for sample in samples:
            yield _sample(name, (label,), row.labels, sample)
        return
    for bound, count in samples.buckets:
        yield _line(f"{name}_bucket", (label, ("le", bound)), count)
    yield _line(f"{name}_count", (label,), samples.buckets[-1][1])
    yield _line(f"{name}_sum", (label,), samples.sum)


def _sample(name: str, before: _Labels, labels: tuple[str, ...], sample: Sample) -> str:
    return _line(name, (*before, *zip(labels, sample.labels, strict=True)), sample.value)


def _line(name: str, labels: Iterable[tuple[str, str]], value: float) -> str:
    told = ",".join(f'{label}="{_escaped(text)}"' for label, text in sorted(labels))
    return f"{name}{{{told}}} {_number(value)}\n" if told else f"{name} {_number(value)}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    """As Go writes it, which goes over to exponents sooner than Python."""
    number = float(value)
    if math.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    if math.isnan(number):
        return "NaN"
    text = repr(number)
    whole, dot, rest = text.partition(".")
    if number > 0 and dot and len(whole) > 6:
        mantissa = f"{whole[0]}.{whole[1:]}{rest}".rstrip("0.")
        return f"{mantissa}e+{len(whole) - 1:02d}"
    return text

"""A run's history as JSON for the charts of the page."""

from array import array
from collections.abc import Iterable, Sequence
from typing import Any
from zlib import crc32

from megatron_monitor.charts.history import (
    ABSENT,
    AXES,
    AXIS,
    PARTS,
    QUAD,
    SERIES,
    SPREADS,
    VALIDATION,
    History,
    Track,
    bucket_of,
)

_PARTS_INTERVAL = 16  # lines with timers between two updates of their chart


def columns(track: Track, names: tuple[str, ...], start: int = 0, zone: float = 0.0) -> dict[str, Any]:
    """Return the buckets from `start` on as lists, the open one last; low and high if a bucket has several rows."""
    axis, series = bytes(track.axis), {name: bytes(column) for name, column in track.series.items()}
    closed = len(track)
    start = min(max(start, 0), closed)
    if track.open:
        last_axis, quads = bucket_of(track.open, names)
        axis += last_axis
        series = {name: series.get(name, ABSENT * closed) + quads.get(name, ABSENT) for name in {**series, **quads}}
    records = list(AXIS.iter_unpack(axis[start * AXIS.size :]))
    return {
        "width": track.width,
        "start": start,
        "closed": closed,
        "first_iteration": [record[0] for record in records],
        "iteration": [record[1] for record in records],
        "attempt": [record[2] for record in records],
        "not_finite": [record[3] for record in records],
        "time": [round(record[4] + zone, 3) if record[4] == record[4] else None for record in records],
        "series": {
            name: _figures(series[name][start * QUAD.size :], track.width > 1) for name in names if name in series
        },
    }


def _figures(column: bytes, many: bool) -> dict[str, list[float | None]]:
    quads = array("f")
    quads.frombytes(column)
    counts = quads[3::4]
    out = {"mean": [_short(total / count) if count else None for total, count in zip(quads[2::4], counts, strict=True)]}
    if many:
        out["low"] = [_short(low) if count else None for low, count in zip(quads[0::4], counts, strict=True)]
        out["high"] = [_short(high) if count else None for high, count in zip(quads[1::4], counts, strict=True)]
    return out


def _short(value: float) -> float:
    """Round to the seven digits of a float32."""
    return float(f"{value:.7g}")


def history_json(history: History, width: int = 0, start: int = 0, key: str = "") -> dict[str, Any]:
    """Return a run's history for the API; `axes` holds the totals at the end of each bucket.

    A client gives the width and the number of closed buckets (`start`) it has, and gets only newer steps. With the
    `key` of its last answer, it gets validation, phases and restarts only if they have changed.
    """
    zone = history.zone
    new_only = start if width == history.steps.width and start <= len(history.steps) else 0
    current_key = _key(history)
    steps = columns(history.steps, SERIES, new_only, zone)
    used = {name: steps["series"].pop(name, None) for name in AXES}
    steps["axes"] = {name: figures.get("high", figures["mean"]) for name, figures in used.items() if figures}
    out: dict[str, Any] = {"key": current_key, "steps": steps}
    if key == current_key:
        return out
    if len(history.parts) or history.parts.open:
        out["parts"] = _parts(history)
    shown = {name: columns(track, VALIDATION, 0, zone) for name, track in sorted(history.validations.items())}
    changes = _dated(zone, history.changes, ("iteration", "time", "arguments"))
    phases = [phase for phase in history.phases if phase[0] is not None]
    return {
        **out,
        **({"changes": changes} if changes else {}),
        "validation": shown,
        "phases": _dated(zone, phases, ("time", "iteration", "phase")),
        "restarts": _dated(zone, history.restarts, ("iteration", "after_iteration", "time")),
    }


def _dated(zone: float, rows: Iterable[Sequence[Any]], names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return rows as objects, with the time in Unix seconds or None."""
    place = names.index("time")
    return [
        dict(zip(names, row, strict=True)) | {"time": None if row[place] is None else row[place] + zone} for row in rows
    ]


def _parts(history: History) -> dict[str, Any]:
    """Return the time of an iteration's parts, and its spread over the ranks."""
    timed = columns(history.parts, PARTS + SPREADS, 0, history.zone)
    spread = {name: timed["series"].pop(name, None) for name in SPREADS}
    timed["spread"] = {name.removeprefix("spread_"): figures for name, figures in spread.items() if figures}
    return timed


def _key(history: History) -> str:
    """Return a key that changes with everything but the steps."""
    tracks = history.validations.values()
    rows = sum(len(track) * track.width + len(track.open) for track in tracks)
    timed = len(history.parts) * history.parts.width + len(history.parts.open)
    timed -= timed % _PARTS_INTERVAL if timed > _PARTS_INTERVAL else 0
    ends = (timed, history.phases[-1:], history.restarts[-1:], [track.open[-1:] for track in tracks], history.zone)
    return f"{len(tracks)}.{rows}.{len(history.phases)}.{len(history.restarts)}.{crc32(repr(ends).encode()):x}"

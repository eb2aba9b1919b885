"""Figures of a run as short texts, for the pages, their API and `top`.

For charts and phases, which the browser draws, static/format.js repeats `number`, `duration` and `instant`;
tests/e2e/test_page.py runs both over one table of cases.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from megatron_monitor.parsers.tables import rows_of
from megatron_monitor.scalars import one_line

DASH = "–"
_JOINED = "\u00a0"  # no-break space
# State and severity by symbol and word, never by colour alone.
SYMBOLS = {
    "starting": "◔", "training": "●", "evaluating": "◑", "saving": "◒", "hung": "■", "crashed": "✖",
    "stopped": "◼", "finished": "✔", "lost": "?", "critical": "■", "warning": "▲", "info": "◆",
}  # fmt: skip


class Figure(NamedTuple):
    """A figure and a note in small print."""

    text: str
    note: str = ""
    tone: str = ""
    """`bad` or `warn` for a figure that needs attention."""


def number(value: Any) -> str:
    """Return a number with four digits and grouped thousands; a dash for None. The API sends nan and inf as text."""
    if value is None or isinstance(value, str):
        return value or DASH
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


def _known(value: Any) -> bool:
    return value is not None and not isinstance(value, str) and abs(value) < float("inf")


def count(value: Any) -> str:
    """Return millions, billions and trillions as M, B and T."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if _known(value) and abs(value) >= size:
            return f"{value / size:.4g} {letter}"
    return number(value)


def percent(ratio: Any) -> str:
    """Return a ratio in percent, with one decimal."""
    return f"{100 * ratio:.1f} %" if _known(ratio) else DASH


def duration(seconds: Any) -> str:
    """Return seconds in their two largest units."""
    if not _known(seconds):
        return DASH
    seconds = max(0.0, seconds)
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if hours < 1:
        return f"{minutes} min {int(seconds % 60)} s"
    if days < 1:
        return f"{hours} h {minutes % 60} min"
    return f"{days:,} d {hours % 24} h"


def instant(at: Any) -> str:
    """Return Unix seconds as UTC."""
    if not _known(at):
        return DASH
    try:
        return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return DASH


def size(count: Any) -> str:
    """Return bytes in GiB."""
    return f"{count / 2**30:.1f} GiB" if _known(count) else DASH


def plain(name: str, value: Any) -> str:
    """Return the text of a fact; its name shows the kind of value."""
    if name.endswith("_at"):
        return instant(value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {plain(str(key), item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(plain("", item) for item in value)
    return str(value).lower() if isinstance(value, bool) else number(value)


def facts(values: Mapping[str, Any], names: Iterable[str]) -> list[tuple[str, str]]:
    """Return names and values as texts without control characters."""
    return [(name.replace("_", " "), one_line(plain(name, values[name]))) for name in names]


_FIGURES = rows_of("megatron_monitor.serve", "labels.csv", tuple[str, str, str])
LABELS = {key: label for key, label, _ in _FIGURES}
METRICS = {key: metric for key, _, metric in _FIGURES}
"""The metric with the same meaning."""
FLEET = (
    "progress_at", "iteration", "eta", "seconds_per_iteration", "over_normal", "tflops", "samples_per_second",
    "lm_loss", "max_memory_bytes", "unsaved_progress_seconds",
)  # fmt: skip
"""Columns of the table of all runs, after name, state and open incidents."""


def _state(run: dict[str, Any]) -> Figure:
    """Return the state, with the failure or a different phase as its note. A failure after the last iteration warns."""
    state, phase = str(run.get("state", "")), str(run.get("phase") or "")
    note = str(run["failure"]).partition(":")[0] if run.get("failure") else phase
    note = "" if note == state else note
    tone = "warn" if state == "finished" and run.get("failure") else ""
    return Figure(f"{SYMBOLS['warning'] if tone else SYMBOLS.get(state, '?')} {state}", note.replace("_", " "), tone)


def _progress(run: dict[str, Any], _now: float) -> Figure:
    iteration, total = run.get("iteration"), run.get("train_iterations")
    if iteration is None or not total:
        return Figure(number(iteration))
    return Figure(number(iteration), f"of {number(total)}, {percent(iteration / total).replace(' ', _JOINED)}")


def _eta(run: dict[str, Any], now: float) -> Figure:
    eta: Any = run.get("eta")
    if not _known(eta) or run.get("state") == "hung" or run.get("phase") == "exiting":
        return Figure(DASH)
    return Figure(duration(eta - now) if eta > now else "overdue", instant(eta))


def _pace(run: dict[str, Any], _now: float) -> Figure:
    normal = run.get("normal_seconds") or run.get("baseline_seconds")
    return Figure(number(run.get("seconds_per_iteration")), f"normal {number(normal)}" if normal else "")


def _over_normal(run: dict[str, Any], _now: float) -> Figure:
    ratio: Any = run.get("slowdown_ratio")
    if not _known(ratio):
        return Figure(DASH)
    slow = any(item["incident"] == "slowdown" and item["severity"] != "info" for item in run.get("incidents", ()))
    change = round(100 * (ratio - 1), 1) + 0.0
    return Figure(f"{change:+.1f}{_JOINED}%", "", "warn" if slow and change > 0 else "")


def _silence(run: dict[str, Any], now: float) -> Figure:
    at, timeout = run.get("progress_at"), run.get("timeout_seconds")
    if at is None:
        return Figure(DASH)
    silence = max(0.0, now - at)
    if timeout is None:
        return Figure(f"{duration(silence)} ago", instant(at))
    tone = "bad" if silence >= timeout else "warn" if silence >= timeout / 2 else ""
    return Figure(f"{duration(silence)} ago", f"of {duration(timeout)} allowed", tone)


def _tflops(run: dict[str, Any], _now: float) -> Figure:
    return Figure(number(run.get("tflops")), "" if run.get("mfu") is None else f"MFU {percent(run['mfu'])}")


def _validation(run: dict[str, Any], _now: float) -> Figure:
    losses = (run.get("validation_loss") or {}).items()
    return Figure(", ".join(f"{name} {number(loss)}" for name, loss in losses) or DASH)


def _unsaved(run: dict[str, Any], _now: float) -> Figure:
    saved = run.get("last_checkpoint_iteration")
    note = "no checkpoint yet" if saved is None else f"since checkpoint {number(saved)}"
    return Figure(duration(run.get("unsaved_progress_seconds")), note)


def _restarts(run: dict[str, Any], _now: float) -> Figure:
    lost = f"{number(run['lost_iterations'])} iterations lost" if run.get("lost_iterations") else ""
    return Figure(number(run.get("restarts")), lost)


_OF_RUN: dict[str, Callable[[dict[str, Any], float], Figure]] = {
    "iteration": _progress, "eta": _eta, "seconds_per_iteration": _pace, "over_normal": _over_normal,
    "tflops": _tflops, "validation_loss": _validation, "progress_at": _silence, "unsaved_progress_seconds": _unsaved,
    "restarts": _restarts,
}  # fmt: skip
"""Figures that need several values of a run; the others are numbers, except for `_FORMS`."""
_FORMS = {"max_memory_bytes": size, "goodput": percent, "consumed_tokens": count}


def figures(run: dict[str, Any], now: float) -> dict[str, Figure]:
    """Return a run's figures by key: `state` and the keys of LABELS."""
    shown = {"state": _state(run)}
    for key in LABELS:
        of_run = _OF_RUN.get(key)
        shown[key] = Figure(_FORMS.get(key, number)(run.get(key))) if of_run is None else of_run(run, now)
    return shown

"""What happened to a run, as the page shows it: the table of incidents and restarts, and the lanes of its phases."""

from typing import Any, NamedTuple

from megatron_monitor.charts.history import AXIS, History, Track
from megatron_monitor.run.phases import ENDED
from megatron_monitor.serve.formats import DASH, SYMBOLS, duration, instant, number
from megatron_monitor.snapshot import RunSnapshot

_LANES = (
    "starting", "loading", "first_iteration", "training", "", "evaluating", "saving", "exiting", "hung", "crashed",
    "finished",
)  # fmt: skip
"""Order of the lanes; phases of other kinds of training take the place of ""."""
_WIDTH = 1000.0  # of a lane, in the units of its SVG
_MIN_WIDTH = 1.5


class Happened(NamedTuple):
    """A row of the table."""

    time: str
    kind: str
    text: str
    where: str
    summary: str


def happened(run: RunSnapshot) -> list[Happened]:
    """Return incidents and restarts, latest first."""
    rows = []
    for item in run.transitions:
        kind = "resolved" if item.status == "resolved" else item.severity
        where = item.iteration if item.onset_iteration is None else item.onset_iteration
        text = f"{SYMBOLS.get(kind, '✔')} {item.incident} {kind}"
        rows.append(Happened(instant(item.time)[:19], kind, text, _plain(where), item.summary))
    zone = run.history.zone
    for iteration, before, time in run.history.restarts:
        again = 0 if before is None else before - iteration + 1
        changes = [one for at, since, every in run.history.changes if (at, since) == (iteration, time) for one in every]
        changed = [f"{name} {old or DASH} → {new or DASH}" for name, old, new in changes]
        summary = f"after iteration {number(before)}" + (f": {number(again)} computed again" if again > 0 else "")
        summary += f"; other arguments: {', '.join(changed)}" if changed else ""
        when = "" if time is None else instant(time + zone)[:19]
        rows.append(Happened(when, "restart", "┆ restart", _plain(iteration), summary))
    return sorted(rows, key=lambda row: row.time)[::-1]


def _plain(value: Any) -> str:
    return DASH if value is None else str(value)


def _last_step(track: Track) -> float:
    last = [record[4] for record in AXIS.iter_unpack(track.axis[-AXIS.size :])] + [row[1] for row in track.open[-1:]]
    return max((time for time in last if time is not None and time == time), default=0.0)


class Lane(NamedTuple):
    """A phase with its parts (x and width in its SVG) and its total in words."""

    name: str
    parts: list[tuple[float, float]]
    text: str


def lanes(history: History, page: dict[str, Any], now: float) -> tuple[str, list[Lane]]:
    """Return the period and the lanes of a run's phases; no lanes if less than two phases are known."""
    zone = history.zone
    phases = [(time + zone, phase) for time, _, phase in history.phases if time is not None]
    if len(phases) < 2:
        return "", []
    first, over = phases[0][0], page["state"] in (*ENDED, "stopped", "lost")
    end = max(phases[-1][0], _last_step(history.steps) + zone) if over else now
    ends = [time for time, _ in phases[1:]] + [end]
    spans = [(phase, at, to) for (at, phase), to in zip(phases, ends, strict=True)]
    if page["state"] == "hung" and page.get("progress_at"):
        phase, at, _ = spans[-1]
        spans[-1] = (phase, at, max(at, page["progress_at"]))
        spans.append(("hung", page["progress_at"], end))
    scale = _WIDTH / max(end - first, 1.0)
    others = [phase for phase, _, _ in spans if phase not in _LANES]
    order = [name for lane in _LANES for name in ([lane] if lane else dict.fromkeys(others))]
    out = []
    for name in order:
        mine = [(at, to) for phase, at, to in spans if phase == name]
        if not mine:
            continue
        boxes = [(at - first) * scale for at, _ in mine]
        widths = [max((to - at) * scale, _MIN_WIDTH) for at, to in mine]
        total = duration(sum(max(0.0, to - at) for at, to in mine)) + (f" in {len(mine)} parts" if mine[1:] else "")
        text = instant(mine[0][0]) if name in ENDED else total
        out.append(Lane(name, [(min(x, _WIDTH - width), width) for x, width in zip(boxes, widths, strict=True)], text))
    return f"{instant(first)} to {instant(end)}", out

"""Builds what is shown of runs and files: samples, page and counts. Unchanged content is reused."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from megatron_monitor.core.runs import Run
from megatron_monitor.core.sources import Sources
from megatron_monitor.core.watched import Watched
from megatron_monitor.detectors import hang
from megatron_monitor.metrics import RunView, samples_of
from megatron_monitor.pages import page_of, transitions_of
from megatron_monitor.run import derived
from megatron_monitor.run.nodes import countable_nodes
from megatron_monitor.snapshot import MonitorCounts, RunSnapshot, ViewRequest

_AGED = 1.0  # seconds after which the page of a run with an open incident is built again

Added: TypeAlias = Callable[[Run, float], Mapping[str, Any]]
"""Returns fields of the run's snapshot from optional parts."""


def show(watched: Watched, run: Run, now: float, asked: ViewRequest, added: Added) -> RunSnapshot | None:
    """Return the run's snapshot with the `added` fields; after a failure the last snapshot, if there is one."""
    try:
        return _shown(watched, run, now, asked, added)
    except Exception as error:  # noqa: BLE001 - a failure is confined to the page of this run
        watched.quarantine.note("page", run.state.name, error)
        return run.shown


def _shown(watched: Watched, run: Run, now: float, asked: ViewRequest, added: Added) -> RunSnapshot:
    """Return the run's snapshot: the last one unless the run has changed and is requested.

    Samples are always built again; page, charts and advice only if they are `asked` for, because a scrape needs none.
    With an open incident the page is built too, because it has the incidents.
    """
    shown, state, settings = run.shown, run.state, watched.config.detectors.hang
    wanted = 2 if asked.whole_of(state.name) else int(shown is None or asked.page_of(state.name))
    condition = derived.run_state(state, run.historical)
    aged = bool(run.book.open) and now - run.shown_at >= _AGED  # durations of open incidents change with time
    changed = wanted > run.made or run.dirty or aged or condition != run.shown_state
    has_incidents = bool(run.book.open) or bool(shown and shown.page["incidents"])
    if shown is not None and not (changed and (has_incidents or asked.any_of(state.name))):
        return shown
    wanted = max(wanted, int(has_incidents))
    deadline = None if run.historical or state.lost or watched.stopped else hang.deadline(state, settings)
    gone = watched.over or run.historical or condition == "finished"  # its nodes now belong to another job
    view = RunView(
        state, run.book, condition, state.unix(deadline), watched.config.gpu_peak_tflops, now, watched.over,
        tuple(run.actions), () if gone else tuple(countable_nodes(state)), run.identity,
    )  # fmt: skip
    made: dict[str, Any] = {"samples": samples_of(view)}
    if wanted:
        made["page"] = page_of(view, settings, watched.config.runbook_url)
    if wanted == 2:
        made |= {"history": state.history.frozen(), "transitions": tuple(transitions_of(state, run.book))}
    if wanted == 2 or run.book.open:
        made |= added(run, now)
    run.made = wanted
    shown = RunSnapshot(state.name, **made) if shown is None else msgspec.structs.replace(shown, **made)
    run.shown, run.shown_state, run.shown_at, run.dirty = shown, condition, now, False
    return shown


def count_sources(counts: MonitorCounts, sources: Sources, unreadable: set[str]) -> None:
    """Add to `counts` the files by state and the unread bytes."""
    states = {"reading": 0, "following": len(sources.dormant), "unreadable": len(unreadable - sources.keys())}
    for name, source in sources.items():
        state = "unreadable" if name in unreadable else "following" if source.caught_up else "reading"
        states[state] += 1
    for state, count in states.items():
        counts.set("sources", count, state)
    counts.set("lag_bytes", sum(source.behind_bytes for source in sources.values()))

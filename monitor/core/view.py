"""Builds what is shown of runs and files: samples, page and counts. Unchanged content is reused."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec

from megatron_monitor.config import Config
from megatron_monitor.core.quarantine import Quarantine
from megatron_monitor.core.runs import Run
from megatron_monitor.core.sources import Sources
from megatron_monitor.detectors import hang
from megatron_monitor.evaluation import MonitoredRun
from megatron_monitor.metrics import RunView, samples_of
from megatron_monitor.pages import page_of, transitions_of
from megatron_monitor.run import derived
from megatron_monitor.run.nodes import countable_nodes
from megatron_monitor.snapshot import EVERYTHING, MonitorCounts, RunSnapshot, ViewRequest

_NO_IDENTITY: Mapping[str, Any] = MappingProxyType({})
_AGED = 1.0  # seconds after which the page of a run with an open incident is built again

Added: TypeAlias = Callable[[Run, float], Mapping[str, Any]]
"""Returns fields of the run's snapshot from optional parts."""


def _nothing(_run: Run, _now: float) -> Mapping[str, Any]:
    return {}


def show(
    run: Run,
    now: float,
    config: Config,
    quarantine: Quarantine,
    added: Added = _nothing,
    asked: ViewRequest = EVERYTHING,
    *,
    stopped: bool = False,
    over: bool = False,
) -> RunSnapshot | None:
    """Return the run's snapshot with the `added` fields; after a failure the last snapshot, if there is one."""
    try:
        return _shown(run, now, config, added, asked, stopped=stopped, over=over)
    except Exception as error:  # noqa: BLE001 - a failure is confined to the page of this run
        quarantine.note("page", run.state.name, error)
        return run.shown


def _shown(
    run: Run, now: float, config: Config, added: Added, asked: ViewRequest, *, stopped: bool, over: bool
) -> RunSnapshot:
    """Return the run's snapshot: the last one unless the run has changed and is requested.

    Samples are always built again; page, charts and advice only if they are `asked` for, because a scrape needs none.
    With an open incident the page is built too, because it has the incidents. `stopped`, `over`: see view_of.
    """
    shown, name = run.shown, run.state.name
    wanted = 2 if shown is None or asked.whole_of(name) else int(asked.page_of(name))
    condition = derived.run_state(run.state, run.historical)
    older = wanted > run.made
    if shown is not None and not (_is_looked_at(run, shown, asked) and (older or _has_changed(run, condition, now))):
        return shown
    wanted = max(wanted, int(bool(run.book.open) or bool(shown and shown.page["incidents"])))
    view = view_of(run, config, run.actions, stopped=stopped, over=over, identity=run.identity, now=now)
    made: dict[str, Any] = {"samples": samples_of(view)}
    if wanted:
        made["page"] = page_of(view, config.detectors.hang, config.runbook_url)
    if wanted == 2:
        made |= {"history": run.state.history.frozen(), "transitions": tuple(transitions_of(run.state, run.book))}
    if wanted == 2 or run.book.open:
        made |= added(run, now)
    run.made = wanted
    shown = RunSnapshot(name, **made) if shown is None else msgspec.structs.replace(shown, **made)
    run.shown, run.shown_state, run.shown_at, run.dirty = shown, condition, now, False
    return shown


def _is_looked_at(run: Run, shown: RunSnapshot, asked: ViewRequest) -> bool:
    """Return True if the run is requested or has an incident."""
    return asked.any_of(run.state.name) or bool(run.book.open) or bool(shown.page["incidents"])


def _has_changed(run: Run, condition: str, now: float) -> bool:
    """Return True if the run has changed since it was shown. Durations of open incidents change with time."""
    aged = bool(run.book.open) and now - run.shown_at >= _AGED
    return run.dirty or condition != run.shown_state or aged


def view_of(
    run: MonitoredRun,
    config: Config,
    actions: Iterable[str] = (),
    *,
    stopped: bool = False,
    over: bool = False,
    identity: Mapping[str, Any] = _NO_IDENTITY,
    now: float | None = None,
) -> RunView:
    """Return what metrics and pages read. `stopped`: the daemon stops in order, so the run has no deadline; `over`: the
    run ends with the daemon.
    """
    state = run.state
    deadline = None if run.historical or state.lost or stopped else hang.deadline(state, config.detectors.hang)
    name = derived.run_state(state, run.historical)
    gone = over or run.historical or name == "finished"  # its nodes now belong to another job
    nodes = () if gone else tuple(countable_nodes(state))
    return RunView(
        state, run.book, name, state.unix(deadline), config.gpu_peak_tflops, now, over, tuple(actions), nodes, identity
    )


def count_sources(counts: MonitorCounts, sources: Sources, unreadable: set[str]) -> None:
    """Add to `counts` the files by state and the unread bytes."""
    states = {"reading": 0, "following": len(sources.dormant), "unreadable": len(unreadable - sources.keys())}
    for name, source in sources.items():
        state = "unreadable" if name in unreadable else "following" if source.caught_up else "reading"
        states[state] += 1
    for state, count in states.items():
        counts.set("sources", count, state)
    counts.set("lag_bytes", sum(source.behind_bytes for source in sources.values()))

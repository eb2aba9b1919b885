"""What of a run and of the files is shown: samples, page and counts, made again only where something has changed."""

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
_AGED = 1.0  # seconds after which the page of a run with an open incident is written anew

Added: TypeAlias = Callable[[Run, float], Mapping[str, Any]]
"""Fields of the run's snapshot that optional parts give."""


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
    """The run as HTTP shows it, with what is `added`; one that cannot be shown as it was last, if it ever was."""
    try:
        return _shown(run, now, config, added, asked, stopped=stopped, over=over)
    except Exception as error:  # noqa: BLE001 - the boundary of what is shown of a run
        quarantine.note("page", run.state.name, error)
        return run.shown


def _shown(
    run: Run, now: float, config: Config, added: Added, asked: ViewRequest, *, stopped: bool, over: bool
) -> RunSnapshot:
    """The run as HTTP shows it: as it was, unless it is dirty or time has made a difference, and somebody asks. Its
    samples are made anew, its page, charts and advice only if they are `asked` for: a scrape draws none. Of a run with
    an incident the page is made too, for incidents stand there. `stopped`, `over`: as view_of says.
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
    """Does somebody ask for it, or does it tell of an incident?"""
    return asked.any_of(run.state.name) or bool(run.book.open) or bool(shown.page["incidents"])


def _has_changed(run: Run, condition: str, now: float) -> bool:
    """Has it, since it was shown last? What an open incident says grows with time."""
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
    """What metrics and pages read of it. `stopped`: the daemon stops in order, and nothing is expected of the run;
    `over`: the run ends with it.
    """
    state = run.state
    deadline = None if run.historical or state.lost or stopped else hang.deadline(state, config.detectors.hang)
    name = derived.run_state(state, run.historical)
    gone = over or run.historical or name == "finished"  # its nodes are another's by now
    nodes = () if gone else tuple(countable_nodes(state))
    return RunView(
        state, run.book, name, state.unix(deadline), config.gpu_peak_tflops, now, over, tuple(actions), nodes, identity
    )


def count_sources(counts: MonitorCounts, sources: Sources, unreadable: set[str]) -> None:
    """Into `counts`: files by their state, bytes still to be read."""
    states = {"reading": 0, "following": len(sources.dormant), "unreadable": len(unreadable - sources.keys())}
    for name, source in sources.items():
        state = "unreadable" if name in unreadable else "following" if source.caught_up else "reading"
        states[state] += 1
    for state, count in states.items():
        counts.set("sources", count, state)
    counts.set("lag_bytes", sum(source.behind_bytes for source in sources.values()))

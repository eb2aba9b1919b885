"""What the core knows of a followed file and of a run, and what of it stands in the state file.

Law: an offset is saved with the state that its lines produced, never alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from monitor.follow.marker import Marker
from monitor.follow.messages import Position
from monitor.incidents import IncidentBook
from monitor.judgement import Judged
from monitor.metrics import RunSnapshot
from monitor.run.state import RunState
from parsers.events import LogEvent
from parsers.reader import SourceReader


@dataclass(slots=True)
class Source:
    """One followed file: its reader, the run it belongs to, and how far the loop has come."""

    name: str
    path: str
    run: str
    reader: SourceReader
    marker: Marker
    caught_up: bool = False
    behind_bytes: int = 0
    mtime: float = 0.0
    counted: tuple[int, int] = (0, 0)
    told_untrained: bool = False
    drives: bool = False
    """It holds lines of the training loop, not only of what surrounds it."""


@dataclass(slots=True)
class Run(Judged):
    """A judged run, and what of it was last shown."""

    deferred: list[tuple[LogEvent, str, float]] = field(default_factory=list)
    """Ends and failures from files that hold no training loop (a job's `.err`), until the loop's file is read."""
    backlog_at: float = 0.0
    judged_at: float = 0.0
    dirty: bool = True
    shown: RunSnapshot | None = None
    page_due: bool = False
    """The page and the charts in `shown` are older than its samples."""
    shown_state: str = ""
    shown_at: float = 0.0


@dataclass(slots=True)
class SavedSource:
    """How far a source had been folded, with the proof of the place and the reader's context."""

    run: str
    position: Position
    reader: dict[str, Any]
    saved_at: float


@dataclass(slots=True)
class SavedRun:
    """A run at the moment its sources stood where SavedSource says."""

    state: RunState
    book: IncidentBook
    history: bool


@dataclass(slots=True)
class Saved:
    """What the state file holds."""

    sources: dict[str, SavedSource] = field(default_factory=dict)
    runs: dict[str, SavedRun] = field(default_factory=dict)
    counts: dict[str, list[tuple[tuple[str, ...], float]]] = field(default_factory=dict)


def forgotten(source: SavedSource, saved: Saved) -> bool:
    """Its run was shown, ended, and is no longer kept."""
    return source.run not in saved.runs and bool(source.reader.get("matched_lines"))

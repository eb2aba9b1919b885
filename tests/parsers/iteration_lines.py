"""A line of every emitter of iteration lines, with what it gives: iteration_lines.yaml."""

from pathlib import Path
from typing import Any

from megatron_monitor.parsers.events import IterationLogged
from megatron_monitor.parsers.reader import SourceReader
from tests.conftest import loaded


def read(text: str) -> list[IterationLogged]:
    """The iterations that a source holding `text` tells."""
    return [event for event in events(text) if isinstance(event, IterationLogged)]


def events(text: str) -> list[Any]:
    """Every event that a source holding `text` tells."""
    reader = SourceReader()
    return [entry.event for entry in [*reader.feed(text.encode()), *reader.flush()]]


FORMS: dict[str, dict[str, Any]] = loaded(Path(__file__).with_suffix(".yaml").read_text())
"""Emitter -> its line as `text`, and what it `gives`."""

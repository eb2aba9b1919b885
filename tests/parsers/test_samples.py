"""Texts of several lines, tracebacks above all, and every event that they give, as samples.yaml has them."""

import json
from pathlib import Path
from typing import Any

import pytest

from megatron_monitor.parsers.events import to_fields
from megatron_monitor.parsers.reader import SourceReader
from tests.conftest import loaded

GROUPS = loaded(Path(__file__).with_name("samples.yaml").read_text())


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group["title"][:60])
def test_a_text_gives_its_events(group: dict[str, Any]) -> None:
    """All of them, with every field; `open`: without what waits for more lines."""
    for sample in group["samples"]:
        reader = SourceReader()
        found = reader.feed(sample["text"].encode())
        found += [] if sample.get("open") else reader.flush()
        assert json.loads(json.dumps([to_fields(entry.event) for entry in found])) == sample["gives"], sample["text"]


def test_a_report_that_was_cut_is_told_when_it_is_silent() -> None:
    """What is held back comes with `settle`; the line that is shown is the exception."""
    whole = next(one["text"] for group in GROUPS for one in group["samples"] if "Root Cause" in one["text"])
    reader = SourceReader()
    assert len(reader.feed(whole[: whole.index("triggered\n") + len("triggered\n")].encode())) == 1
    assert reader.holds_back
    settled = reader.settle()
    assert [entry.event.kind for entry in settled] == ["failure", "process_exit"]
    assert {entry.text for entry in settled} == {"RuntimeError: Triton Error [CUDA]: device-side assert triggered"}

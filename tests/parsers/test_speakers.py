"""What each program prints, and the events that it gives: lines as speakers.yaml has them, texts as samples.yaml."""

import json
from pathlib import Path
from typing import Any

import pytest

from megatron_monitor.parsers.events import to_fields
from megatron_monitor.parsers.reader import SourceReader
from tests.conftest import loaded

_SPEAKERS = loaded(Path(__file__).with_name("speakers.yaml").read_text())
CASES: list[tuple[str, list[dict[str, Any]]]] = [(case["line"], case["gives"]) for case in _SPEAKERS["cases"]]


def events(line: str) -> list[dict[str, Any]]:
    """The events of one line, as `explain` shows them."""
    reader = SourceReader()
    found = [to_fields(entry.event) for entry in reader.feed(line.encode() + b"\n") + reader.flush()]
    reported: list[dict[str, Any]] = json.loads(json.dumps(found))
    return reported


@pytest.mark.parametrize(("line", "expected"), CASES, ids=[case[0].strip()[:60] for case in CASES])
def test_a_line_gives_its_events(line: str, expected: list[dict[str, Any]]) -> None:
    """The line gives as many events as expected, each with the values that are listed."""
    found = events(line)
    assert len(found) == len(expected), found
    for event, values in zip(found, expected, strict=True):
        assert {name: event.get(name) for name in values} == values


@pytest.mark.parametrize("line", _SPEAKERS["nothing"])
def test_false_friends_give_nothing(line: str) -> None:
    """Lines that hold a known word and are none of ours."""
    assert events(line) == []


@pytest.mark.parametrize(
    ("frames", "top_level"),
    [
        (('File "train.py", line 215, in <module>', 'File "train.py", line 90, in train_step'), True),
        (('File "<frozen runpy>", line 198, in _run_module_as_main', 'File "/x/train.py", line 3, in <module>'), True),
        (('File "train.py", line 90, in train_step', 'File "model.py", line 7, in forward'), None),
        (('File "/x/threading.py", line 1045, in _bootstrap_inner', 'File "save.py", line 7, in write'), None),
        ((), None),
    ],
)
def test_a_traceback_that_nobody_caught_begins_at_a_module(frames: tuple[str, ...], top_level: bool | None) -> None:
    """Python prints a caught one from the function that catches it, an uncaught one from the program's top."""
    rows = ["Traceback (most recent call last):", *(f"  {frame}" for frame in frames), "ValueError: bad batch"]
    for prefix in ("", "[rank3]: ", "[default3]:"):
        reported = [event for event in events("\n".join(prefix + row for row in rows)) if event["event"] == "traceback"]
        assert [event.get("top_level") for event in reported] == [top_level]


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

"""One case a line format: what each program prints, and the events that it gives, as speakers.yaml has them."""

import json
from pathlib import Path
from typing import Any

import pytest

from parsers.events import to_fields
from parsers.reader import SourceReader
from tests.conftest import loaded

_SPEAKERS = loaded(Path(__file__).with_name("speakers.yaml").read_text())
CASES: list[tuple[str, list[dict[str, Any]]]] = [(case["line"], case["gives"]) for case in _SPEAKERS["cases"]]


def events(line: str) -> list[dict[str, Any]]:
    """The events of one line, as `parse --json` shows them."""
    reader = SourceReader()
    found = [to_fields(entry.event) for entry in reader.feed(line.encode() + b"\n") + reader.flush()]
    told: list[dict[str, Any]] = json.loads(json.dumps(found))
    return told


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


def test_a_torchrun_report_gives_one_failure() -> None:
    """The root-cause block over several lines, labels of another rank in between."""
    block = """Root Cause (first observed failure):
[0]:
  time      : 2026-03-24_17:34:38
  host      : nid006913
12: another rank speaks
  rank      : 5 (local_rank: 1)
  exitcode  : -9 (pid: 194956)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 194956"""
    failure, end = events(block)
    assert (failure["failure"], failure["rank"], failure["node"]) == ("killed", 5, "nid006913")
    assert (end["event"], end["exit_code"]) == ("process_exit", -9)
    assert (failure["logged_at"], failure["consequence"]) == ("2026-03-24T17:34:38", False)


def test_a_sigterm_victim_is_a_consequence() -> None:
    """A block whose first failure is SIGTERM names a victim."""
    block = "Root Cause (first observed failure):\n  exitcode  : -15 (pid: 1)\n  traceback : Signal 15 (SIGTERM) received by PID 1"
    assert [event.get("consequence") for event in events(block)] == [True, None]


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
        told = [event for event in events("\n".join(prefix + row for row in rows)) if event["event"] == "traceback"]
        assert [event.get("top_level") for event in told] == [top_level]


def test_what_was_caught_and_raised_again_is_uncaught() -> None:
    """The second part of a chain begins at the module; the first does not."""
    text = """Traceback (most recent call last):
  File "train.py", line 90, in train_step
ValueError: bad batch

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "train.py", line 215, in <module>
RuntimeError: giving up"""
    assert [event.get("top_level") for event in events(text)] == [None, True]


@pytest.mark.parametrize("how", ["in:", "while calling deallocator"])
def test_a_finalizers_traceback_is_no_failure(how: str) -> None:
    """Python reports what it ignored in the same form; the next real traceback is told."""
    text = f"""Exception ignored {how} <function _MultiProcessingDataLoaderIter.__del__ at 0x7f>
Traceback (most recent call last):
  File "loader.py", line 1510, in __del__
    self._shutdown_workers()
AttributeError: 'NoneType' object has no attribute 'python_exit_status'
Traceback (most recent call last):
  File "pretrain_gpt.py", line 3, in <module>
ValueError: real"""
    assert [(event["event"], event["exception"]) for event in events(text)] == [("traceback", "ValueError")]


def test_arguments_survive_what_stands_between() -> None:
    """Labels, broken values, gpt-neox's origins, other ranks' lines; a second dump; an end that never comes."""
    dump = """0: ------------------------ arguments ------------------------
0:   num_layers ...................................... 24
3: WARNING: something else
0:   hidden_size .....................................
0: ................................................. 2048
0:   a_name_so_long_that_no_room_is_left_for_any_dots_at_all .. True
0:   empty_value .....................................\x20
0: -------------------- end of arguments ---------------------"""
    (event,) = events(dump)
    assert event["values"] == {
        "num_layers": "24",
        "hidden_size": "2048",
        "a_name_so_long_that_no_room_is_left_for_any_dots_at_all": "True",
        "empty_value": "",
    }
    neox = "-------------------- arguments --------------------\n  hidden_size ..................... 512.........................updated\n"
    neox += (
        "  save ............................ /saved-weights/updated\n---------------- end of arguments ----------------"
    )
    (event,) = events(neox)
    assert event["values"] == {"hidden_size": "512", "save": "/saved-weights/"}

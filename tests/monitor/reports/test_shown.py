"""`report` as people see it: a table that fits a terminal, empty cells, progress."""

import io
import re
import sys

import pytest

from megatron_monitor.commands.progress import progress_bar
from megatron_monitor.commands.report import show_on_terminal
from megatron_monitor.commands.tables import fitted
from megatron_monitor.reports.rows import Row


def rows(count: int = 3) -> list[Row]:
    """Some, each slower than the one before, the last with a note."""
    made = [
        Row(
            run=f"run-{at}", outcome="ok", gpus=384, tensor_parallel_size=4, pipeline_parallel_size=12, nodes=48,
            data_parallel_size=8, micro_batch_size=2, global_batch_size=2048, seconds_per_iteration=100.0 + at,
            tflops=150.0, samples_per_second=20.0, memory_bytes=29 << 30, iterations=7, notes=[],
        )
        for at in range(count)
    ]  # fmt: skip
    made[-1].run, made[-1].notes = "\x9b2Jbad" + "x" * 60, ["OOM at iteration 7 of 9, \x1b[2J\x9b which is long " * 3]
    return made


@pytest.mark.parametrize("width", [80, 100, 200])
def test_it_fits_a_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """Rows no wider than it; which columns have no room is said; notes stand whole; no name commands the terminal."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    show_on_terminal(rows())
    text = re.sub(r"\x1b\[[\d;]*m", "", terminal.getvalue())
    lines = text.splitlines()
    assert all(len(line) <= width for line in lines[:4])
    assert lines[0].split()[0] == "Run"
    assert {"Sec/it", "TFLOPs", "Iterations"} <= set(lines[0].split())
    assert lines[1].split()[-1] == "7"
    assert ("Too narrow for these columns" in text) == (width < 200)
    assert ("MBS" in lines[0]) == (width == 200)
    assert "which is long OOM at iteration 7 of 9" in text
    assert not re.search("[\x1b\x80-\x9f]", text)


def test_columns_go_by_what_matters() -> None:
    """Those named first before others; once one has no room none is put in after it; the order is the table's."""
    row = ["x" * width for width in (5, 20, 5, 5)]
    for first, room, missing in (("da", 12, "bc"), ("da", 34, "c"), ("ba", 21, "acd")):
        assert fitted("abcd", [row], [False] * 4, first, room, name=9)[1] == list(missing)


class Terminal(io.StringIO):
    """A standard error that people look at."""

    def isatty(self) -> bool:
        """It is."""
        return True


def test_long_work_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal alone, and no trace of it at the end."""
    for error, reported in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", error)
        with progress_bar(4) as advance:
            advance(4)
        assert ("100%" in error.getvalue()) == reported
        assert error.getvalue().endswith("\x1b[2K") == reported

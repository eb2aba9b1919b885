"""`top`: fits 80 columns, trouble first, columns for pipes, and no log's text commands the terminal."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from megatron_monitor.commands.top import Choice
from megatron_monitor.commands.top_screen import PLAIN_COLUMNS, in_order, opened, page, plain, screen
from megatron_monitor.simulate import Fault, Scenario
from tests.commands import command, log_of

NOW = 1_700_000_000.0
HOSTILE = "\x1b[2J[bold]name\x07\n[/]"


def run(name: str = "tr11-176B", **values: Any) -> dict[str, Any]:
    """A run as the API gives it."""
    return {
        "run": name, "state": "training", "phase": "training", "iteration": 1234, "train_iterations": 115_311,
        "seconds_per_iteration": 105.4, "baseline_seconds": 105.2, "tflops": 149.3, "mfu": 0.4785, "lm_loss": 2.345,
        "progress_at": NOW - 42.0, "budget_seconds": 315.6, "eta": NOW + 12 * 86400, "at_risk_seconds": 3600.0,
        "last_checkpoint_iteration": 1200, "restarts": 0, "incidents": [], **values,
    }  # fmt: skip


def incident(kind: str, severity: str, name: str = "tr11-176B") -> dict[str, Any]:
    """An open incident."""
    return {
        "run": name, "incident": kind, "severity": severity, "since": NOW - 99, "summary": f"{kind} it is",
        "evidence": {},
    }  # fmt: skip


def drawn(runs: list[dict[str, Any]], width: int, problem: str = "") -> list[str]:
    """The lines of the screen."""
    console = Console(width=width, file=io.StringIO())
    console.print(screen(runs, NOW, "http://h:9843", width, problem))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_it_fits(width: int) -> None:
    """Nothing is wider than the terminal, and no figure is cut off."""
    runs = [
        run("a-very-long-run-name-of-some-team/and-more"),
        run("b", state="hung", incidents=[incident("hang", "critical")]),
    ]
    lines = drawn(runs, width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for words in (
        "1,234",
        "1.1 %",
        "105.4",
        "+0.2 %",
        "2.345",
        "42.0 s",
        "12 d 0 h",
        "■ hung",
        "■ hang tr11-176B, critical",
    ):
        assert words in text
    assert "…" not in text
    assert ("149.3" in text) == ("1 h 0 min" in text) == (width >= 104)


def test_trouble_stands_first() -> None:
    """Critical before warning before none; then by name."""
    runs = [
        run("a"),
        run("b", incidents=[incident("slowdown", "warning")]),
        run("c", incidents=[incident("hang", "critical")]),
    ]
    assert [item["run"] for item in in_order(runs)] == ["c", "b", "a"]


def test_unknown_is_a_dash_and_nan_is_said() -> None:
    """A run that has only begun; a loss that is NaN, which the API gives as text."""
    empty = dict.fromkeys(run(), None) | {"run": "new", "state": "starting", "incidents": [], "lm_loss": "nan"}
    text = "\n".join(drawn([empty], 80))
    assert "◔ starting" in text
    assert "nan" in text
    row = plain([empty], NOW).splitlines()[1].split()
    assert dict(zip(PLAIN_COLUMNS, row, strict=True))["ITERATION"] == "-"


def test_plain_lines_are_columns() -> None:
    """As many words in each row as the heading has: awk may count on it."""
    runs = [run("a b"), run("c", incidents=[incident("hang", "critical"), incident("slowdown", "warning")])]
    rows = [line.split() for line in plain(runs, NOW).splitlines()]
    assert {len(row) for row in rows} == {len(PLAIN_COLUMNS)}
    assert dict(zip(*rows[:2], strict=True)) | {"RUN": "c", "INCIDENTS": "hang:critical,slowdown:warning"} == dict(
        zip(*rows[:2], strict=True)
    )
    assert rows[2][0] == "a_b"
    assert dict(zip(rows[0], rows[2], strict=True))["SILENCE"] == "42"


def test_no_text_of_a_log_commands_the_terminal() -> None:
    """Escape sequences, bells, line feeds and markup are shown, not obeyed."""
    bad = run(HOSTILE, incidents=[incident("hang", "critical", HOSTILE) | {"summary": HOSTILE}])
    for text in ("".join(drawn([bad], 120, problem=HOSTILE)), plain([bad], NOW).replace("\n", "")):
        assert text.isprintable()
        assert "[bold]" in text


def test_from_files_once(tmp_path: Path) -> None:
    """Without a daemon: the logs themselves; exit 1 where there is no training."""
    log = log_of(tmp_path / "crashed.log", Scenario(iterations=40, faults=(Fault("crash_oom", at=30),)))
    done = command("top", log)
    row = dict(zip(*(line.split() for line in done.stdout.splitlines()), strict=True))
    assert (row["RUN"], row["STATE"], row["ITERATION"], row["TOTAL"]) == ("crashed", "crashed", "29", "40")
    (tmp_path / "notes.txt").write_text("no training here\n")
    for path in ("notes.txt", "nothing.log"):
        done = command("top", tmp_path / path, code=1)
        assert done.stdout == ""
        assert "no training run found" in done.stderr


def test_a_daemon_that_is_not_there_is_one_clear_line() -> None:
    """Exit 1; a password in the address is not told."""
    done = command("top", "http://me:secret@127.0.0.1:9", code=1)
    assert "no monitor at http://127.0.0.1:9" in done.stderr
    assert "secret" not in done.stderr
    command("top", "http://a:1", "b.log", code=2)


def pressed(choice: Choice, keys: str, runs: list[dict[str, Any]], room: int = 10) -> list[str]:
    """The names of the rows after these keys, the chosen one in brackets."""
    assert choice.press(keys, runs, room)
    rows = choice.rows(runs)
    return [f"[{row['run']}]" if at == choice.place(rows) else row["run"] for at, row in enumerate(rows)]


def test_keys_choose_filter_and_sort() -> None:
    """Arrows and pages stop at the ends; a filter takes names, states, kinds; q ends, but in a filter."""
    runs = [
        run("a", slowdown_ratio=1.01), run("b", state="hung", incidents=[incident("hang", "critical")]),
        run("c", slowdown_ratio=1.3, progress_at=NOW - 500), run("q", slowdown_ratio=None, seconds_per_iteration=None),
    ]  # fmt: skip
    choice = Choice()
    assert pressed(choice, "", runs) == ["[b]", "a", "c", "q"]
    assert pressed(choice, "\x1b[B\x1b[B", runs) == ["b", "a", "[c]", "q"]
    assert pressed(choice, "j\x1b[6~jj", runs) == ["b", "a", "c", "[q]"]
    assert pressed(choice, "\x1b[5~k", runs) == ["[b]", "a", "c", "q"]
    assert pressed(choice, "/hUNG", runs) == ["[b]"]
    assert pressed(choice, "\x7f\x7f\x7f\x7fq\r", runs) == ["[q]"]
    assert pressed(choice, "\x1b", runs) == ["[b]", "a", "c", "q"]
    assert pressed(choice, "/hang zz\r", runs) == []
    assert pressed(choice, "\x1bsssss", runs) == ["[c]", "a", "b", "q"]  # over normal; what is unknown stands last
    assert choice.sort == "over normal"
    assert pressed(choice, "sG", runs)[0] == "c"  # silent for longest
    assert pressed(choice, "gSSSSS", runs)[1:] == ["b", "c", "q"]  # by name
    assert choice.press("\r", runs, 1)
    assert choice.opened
    assert not choice.press("q", runs, 1)


def test_forty_runs_on_24_lines() -> None:
    """A line a run, at 80 columns too; how many are hidden; below it the incidents of the chosen one."""
    runs = [run(f"a-crash-{at:02}", eta=NOW + 4980, progress_at=NOW - 903) for at in range(40)]
    runs[0]["incidents"] = [incident("crash", "critical", "a-crash-00")]

    def seen(bar: int, width: int = 80) -> list[str]:
        console = Console(width=width, height=24, file=io.StringIO(), legacy_windows=False)
        console.print(page(runs, runs, bar, NOW, "http://h:9843", (width, 24), "", "q end"), height=24)
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue().splitlines()

    lines = seen(0)
    assert (len(lines), max(map(len, lines))) == (24, 80)
    assert [line.split()[0] for line in lines[3:18]] == [f"a-crash-{at:02}" for at in range(15)]
    assert all(word in lines[3] for word in ("● training", "1,234", "105.4", "15 min 3 s"))
    assert "crash it is" in "\n".join(lines)
    assert lines[-1].startswith("40 of 40 runs, 0 above and 25 below hidden")
    assert "25 above and 0 below hidden" in seen(39)[-1]
    assert "a-crash-39" in "\n".join(seen(39))
    assert "crash it is" not in "\n".join(seen(39))


def test_a_run_is_opened() -> None:
    """Its figures, what to do with the command, its last line, and nothing that commands the terminal."""
    told = incident("hang", "critical") | {"advice": "take stacks", "command": "scancel 7", "line": HOSTILE}
    console = Console(width=80, file=io.StringIO())
    console.print(opened(run(incidents=[told], last_line=HOSTILE), NOW))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert all(words in text for words in ("Loss", "2.345", "Do: take stacks", "Command: scancel 7", "Escape"))
    assert text.replace("\n", "").replace("\u00a0", "").isprintable()

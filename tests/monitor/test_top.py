"""`top`: fits 80 columns, trouble first, and no log's text commands the terminal."""

import io
from typing import Any

import pytest
from rich.console import Console, RenderableType

from megatron_monitor.commands.top import Choice, screen, whole_incident
from tests.commands import command

NOW = 1_700_000_000.0
HOSTILE = "\x1b[2J[bold]name\x07\n[/]"


def run(name: str = "tr11-176B", **values: Any) -> dict[str, Any]:
    """A run as the API gives it."""
    return {
        "run": name, "state": "training", "phase": "training", "iteration": 1234, "train_iterations": 115_311,
        "seconds_per_iteration": 105.4, "baseline_seconds": 105.2, "slowdown_ratio": 1.002,
        "tflops": 149.3, "mfu": 0.4785, "lm_loss": 2.345,
        "progress_at": NOW - 42.0, "timeout_seconds": 315.6, "eta": NOW + 12 * 86400, "unsaved_progress_seconds": 3.6e3,
        "last_checkpoint_iteration": 1200, "restarts": 0, "incidents": [], **values,
    }  # fmt: skip


def incident(kind: str, severity: str, name: str = "tr11-176B") -> dict[str, Any]:
    """An open incident."""
    return {
        "run": name, "incident": kind, "severity": severity, "since": NOW - 99, "summary": f"{kind} it is",
        "evidence": {},
    }  # fmt: skip


def drawn(
    runs: list[dict[str, Any]], width: int, problem: str = "", height: int | None = None, chosen: int = 0
) -> list[str]:
    """The lines of the screen."""
    view = {"at": NOW, "summary": f"{len(runs)} runs", "runs": runs}
    return plain(screen(view, "http://h:9843", width, height, problem, chosen), width)


def plain(content: RenderableType, width: int) -> list[str]:
    """The lines of what is shown."""
    console = Console(width=width, file=io.StringIO())
    console.print(content)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_it_fits(width: int) -> None:
    """Nothing is wider than the terminal, no figure is cut off, and of a long name the end is shown."""
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
    assert "team/and-more" in text
    assert ("149.3" in text) == ("1 h 0 min" in text) == (width >= 100)


def test_unknown_is_a_dash_and_nan_is_said() -> None:
    """A run that has only begun; a loss that is NaN, which the API gives as text."""
    empty = dict.fromkeys(run(), None) | {"run": "new", "state": "starting", "incidents": [], "lm_loss": "nan"}
    text = "\n".join(drawn([empty], 80))
    assert "◔ starting" in text
    assert "nan" in text


def test_no_text_of_a_log_commands_the_terminal() -> None:
    """Escape sequences, bells, line feeds and markup are shown, not obeyed."""
    bad = run(HOSTILE, incidents=[incident("hang", "critical", HOSTILE) | {"summary": HOSTILE}])
    text = "".join(drawn([bad], 120, problem=HOSTILE))
    assert text.isprintable()
    assert "[bold]" in text


def test_a_daemon_that_is_not_there_is_one_clear_line() -> None:
    """Exit 1; a password in the address is not told."""
    done = command("top", "http://me:secret@127.0.0.1:9", code=1)
    assert "no monitor at http://127.0.0.1:9" in done.stderr
    assert "secret" not in done.stderr


def test_a_screen_that_refreshes_shows_what_has_room() -> None:
    """Forty runs on 24 lines: a line each, of a long name its end; what has no room is counted."""
    runs = [run(f"a-long-way-to-a-crash-{at:02}", eta=NOW + 4980, progress_at=NOW - 903) for at in range(40)]
    for at in range(30):
        runs[at]["incidents"] = [incident("crash", "critical", runs[at]["run"])]
    lines = drawn(runs, 80, height=24)
    assert (len(lines), max(map(len, lines)) <= 80) == (24, True)
    assert [line.split()[0][-8:] for line in lines[2:12]] == [f"crash-{at:02}" for at in range(10)]
    assert all(word in lines[2] for word in ("● training", "1,234", "105.4", "15 min 3 s"))
    assert lines[12] == "and 30 runs more"
    assert lines[-1].endswith("incident 1 of 30")
    assert "more" not in "".join(drawn(runs[30:], 80, height=24))


def test_no_text_is_cut_while_there_is_room() -> None:
    """Eight incidents below one another, one of them with a summary of a thousand characters."""
    long = " ".join(f"word{at}" for at in range(150))
    several = [incident("crash", "critical", f"run-{at}") for at in range(7)]
    several.append(incident("hang", "critical", "run-8") | {"summary": long})
    lines = drawn([run(incidents=several)], 80, height=48)
    assert long in " ".join(" ".join(lines).split())
    assert "more" not in "".join(lines)
    assert len(drawn([run(incidents=several[-1:])], 80, height=12)) == 12
    assert len(drawn([run(incidents=several)], 80, height=3)) <= 4


def test_keys_choose_an_incident_and_show_it() -> None:
    """Down stops at the last one; Enter shows all of it, Escape the list; what is over is no longer shown."""
    several = [incident("crash", "critical", f"run-{at}") for at in range(12)]
    choice = Choice()
    for _ in range(30):
        choice.press("down", several)
    assert choice.incident == ("run-11", "crash")
    text = "\n".join(drawn([run(incidents=several)], 80, height=24, chosen=choice.at(several)))
    assert "run-11" in text
    assert "run-0," not in text
    assert text.endswith("Enter show  incident 12 of 12")
    choice.press("enter", several)
    assert (choice.at(several), choice.opened) == (11, True)
    choice.press("escape", several)
    assert not choice.opened
    choice.press("enter", several)
    assert (choice.at(several[:5]), choice.opened) == (0, False)


def test_a_whole_incident() -> None:
    """Its advice, facts and the log around its line, from the line that was scrolled to, without control characters."""
    known = incident("crash", "critical") | {"advice": "look", "command": "scancel 7", "evidence": {"exit_code": 7}}
    log = {"incidents": {"crash": {"stream": "/a.log", "lines": ["before", HOSTILE, "after"], "marked": 1}}}
    choice = Choice(opened=True)
    lines = plain(whole_incident(known, log, NOW, 80, 40, choice), 80)
    text = "\n".join(lines)
    for words in (
        "■ crash tr11-176B",
        "advice: look",
        "command: scancel 7",
        "exit code  7",
        "/a.log",
        "before",
        "after",
    ):
        assert words in text
    assert "".join(lines).isprintable()
    choice.first = 99
    short = plain(whole_incident(known, log, NOW, 80, 5, choice), 80)
    assert (len(short), short[-2:]) == (5, ["after", "q quit  up/down scroll  Enter back"])

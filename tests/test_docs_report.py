"""docs/report.md: every command line on it runs, and what it says of the columns is what there is."""

import re
import shlex
from pathlib import Path

import pytest

from tests.commands import command

PAGE = (Path(__file__).parents[1] / "docs" / "report.md").read_text()


def commands() -> list[list[str]]:
    """The arguments of each command line in the page's shell blocks."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines() if line.strip()]


def test_the_pages_commands_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ends well and says something, or writes the file that it names."""
    monkeypatch.chdir(tmp_path)
    lines = commands()
    assert len(lines) == 17
    for program, *arguments in lines:
        assert program == "megatron-monitor"
        result = command(*arguments)
        assert result.exit_code == 0, (arguments, result.output)
        written = next((arguments[arguments.index(to) + 1] for to in ("-o", "--resume") if to in arguments), None)
        assert (tmp_path / written).stat().st_size > 100 if written else result.stdout
    table = command("report", ".", "--baseline", "monday", "--iterations", "9", "--extra").stdout
    assert "OOM at iteration 119" in table
    headers = {cell.strip() for cell in table.splitlines()[0].strip("|").split("|")}
    named = {name for cell in re.findall(r"^\| ([A-Z][^|]*?) \|", PAGE, re.MULTILINE) for name in cell.split(", ")}
    assert named
    assert named <= headers


def test_the_pages_figures_are_right() -> None:
    """84 and 112 TFLOPs of one run."""
    line = next(arguments for arguments in commands() if "--printed" in arguments)
    text = command(*line[1:]).stdout
    assert re.search(r"bigscience +112\.49", text)
    assert re.search(r"megatron_lm_2026 +83\.81", text)

"""The progress bars of long commands on a terminal."""

from pathlib import Path

import pytest

from megatron_monitor.simulate import Scenario
from tests.commands import command, log_of
from tests.e2e.test_top import Terminal

pytestmark = pytest.mark.e2e


def test_replay_shows_how_much_is_read(tmp_path: Path) -> None:
    """Two files of one run are one bar, by their bytes; it is gone when the result stands there."""
    log_of(tmp_path / "a.out", Scenario(iterations=4000))
    (tmp_path / "a.err").write_text("a warning\n" * 200_000)
    terminal = Terminal("replay", str(tmp_path))
    try:
        terminal.wait("100%")
        terminal.wait("= a: finished after iteration 4000")
        assert terminal.ended() == 0
    finally:
        terminal.close()
    assert command("replay", tmp_path).stderr == ""


def test_the_demo_shows_its_iterations() -> None:
    """The bar stops where the training hangs, and the log appears above it."""
    terminal = Terminal("demo", "--iterations", "24", "--listen", "127.0.0.1:0")
    try:
        terminal.wait(" 46%")
        terminal.wait("level=warning", 30.0)
        terminal.wait(" 46%")
        assert terminal.quit() == 0
    finally:
        terminal.close()

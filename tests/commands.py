"""Commands as people give them, run in this process, and simulated logs for them."""

from pathlib import Path

from click.testing import CliRunner, Result

from megatron_monitor.cli import main
from megatron_monitor.simulate import Scenario, write


def command(*arguments: object, code: int | None = 0, stdin: bytes | str | None = None) -> Result:
    """What came of one that ended with that code; None: with any."""
    done = CliRunner().invoke(main, [str(one) for one in arguments], input=stdin, catch_exceptions=False)
    assert code in (None, done.exit_code), done.output
    return done


def log_of(path: Path, scenario: Scenario) -> Path:
    """The scenario's log, at the path."""
    with path.open("wb") as stream:
        write(scenario, stream)
    return path

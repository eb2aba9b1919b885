"""Commands as people give them, run in this process."""

from click.testing import CliRunner, Result

from monitor.cli import main


def command(*arguments: object, code: int | None = 0, stdin: bytes | str | None = None) -> Result:
    """What came of one that ended with that code; None: with any."""
    done = CliRunner().invoke(main, [str(one) for one in arguments], input=stdin, catch_exceptions=False)
    assert code in (None, done.exit_code), done.output
    return done

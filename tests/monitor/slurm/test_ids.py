"""Where the id of a run's job is found, and when it is believed."""

import pytest

from megatron_monitor.identity import StreamIdentity, candidate, key_of, printed_key


def asked(path: str, printed: str | None = None, job_from: str | None = None) -> tuple[str, bool]:
    """The id that Slurm is asked about for a log at `path` whose set-up prints SLURM_JOB_ID=`printed`, and whether it
    is trusted.
    """
    member = StreamIdentity("r", "path")
    member.take_key(key_of(path, job_from))
    if printed is not None and not member.trusted and printed_key(printed).id:
        member.take_key(printed_key(printed))
    found = candidate(member, path, job_from)
    return found.id, found.trusted


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/l/slurm-1234.out", "1234"),
        ("/l/slurm-1234_7.out", "1234_7"),
        ("/l/tr11-176B-1999616.out", "1999616"),
        ("/l/1999616.err", "1999616"),
        ("/l/train.o7712", "7712"),
        ("/l/job_1234_7.log", "1234_7"),
        ("/l/train-1234-node03.out", "1234"),
        ("/l/train-1234-nid006149.out", "1234"),  # --output=%x-%j-%N.out
        ("/l/train-1234-jpbo-034-01.out", "1234"),
        ("/l/gpt-1300-v100-5678.out", "5678"),
        ("/l/main_log.txt", ""),
        ("/l/1234/main_log.txt", ""),
        ("/l/gpt-20b.log", ""),
        ("/l/0012.log", ""),
    ],
)
def test_paths(path: str, expected: str) -> None:
    """A number in a name says what Slurm is asked about, and proves nothing: a copy of the file has it too."""
    assert asked(path) == (expected, False)


def test_what_wins() -> None:
    """The site's pattern, the set-up, Slurm's name of a file, a number; nothing but digits."""
    assert asked("/l/slurm-12.out", "77") == ("77", True)
    assert asked("/l/main.log") == ("", False)
    assert asked("/l/55/slurm-12.out", "77", r"/l/(?P<job>\d+)/") == ("55", True)
    assert asked("/l/slurm-12.out", None, r"/x/(?P<job>\d+)/") == ("", False)
    assert asked("/l/a.log", "12;reboot") == ("", False)
    assert asked("/l/a.log", "١٢") == ("", False)
    assert asked("/l/-rf/x.log", None, r"/l/(?P<job>[^/]+)/") == ("", False)

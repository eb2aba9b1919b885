"""Where the id of a run's job is found."""

from __future__ import annotations

import pytest

from monitor.run.job import Candidate
from monitor.slurm.ids import candidate


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/l/slurm-1234.out", Candidate("1234", True)),
        ("/l/slurm-1234_7.out", Candidate("1234_7", True)),
        ("/l/tr11-176B-1999616.out", Candidate("1999616", False)),
        ("/l/1999616.err", Candidate("1999616", False)),
        ("/l/train.o7712", Candidate("7712", False)),
        ("/l/job_1234_7.log", Candidate("1234_7", False)),
        ("/l/train-1234-node03.out", Candidate("1234", False)),
        ("/l/main_log.txt", None),
        ("/l/1234/main_log.txt", None),
        ("/l/gpt-20b.log", None),
        ("/l/0012.log", None),
    ],
)
def test_paths(path: str, expected: Candidate | None) -> None:
    """Slurm's own name proves it; a number at the end of a name may be one."""
    assert candidate(path, None, None, None) == expected


def test_what_wins() -> None:
    """The site's pattern, the log, Slurm's name of a file, a number, the daemon's own job; nothing but digits."""
    assert candidate("/l/slurm-12.out", "77", "99", None) == Candidate("77", True)
    assert candidate("/l/main.log", None, "99", None) == Candidate("99", True)
    assert candidate("/l/55/slurm-12.out", "77", "99", r"/l/(?P<job>\d+)/") == Candidate("55", True)
    assert candidate("/l/slurm-12.out", "77", "99", r"/x/(?P<job>\d+)/") is None
    assert candidate("/l/a.log", "12;reboot", None, None) is None
    assert candidate("/l/a.log", "١٢", None, None) is None
    assert candidate("/l/-rf/x.log", None, None, r"/l/(?P<job>[^/]+)/") is None

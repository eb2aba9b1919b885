"""What scontrol and sacct print, in the forms of several versions, and what is none of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_monitor.slurm.replies import ReplyError, jobs_shown
from tests.monitor.slurm.site import NOW, read_account, read_show, shown


def test_a_running_job() -> None:
    """Everything that the page shows; a command with blanks and keys with signs stand in its way."""
    job = read_show(shown(), "1234")
    assert (job.id, job.state, job.user, job.uid, job.name) == ("1234", "RUNNING", "ada", 1000, "tr11")
    assert (job.nodes, job.excluded, job.restarts, job.time_limit) == ("n-[01-02]", "", 0, 86400.0)
    assert (job.started_at, job.batch, job.requeue, job.output) == (NOW - 3600, True, True, "/l/slurm-1234.out")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"state": "TIMEOUT", "Reason": "TimeLimit", "ExitCode": "143:0", "TimeLimit": "00:01:00"}, (143, None, 60.0)),
        ({"state": "CANCELLED", "ExitCode": "0:15"}, (0, 15, 86400.0)),
        ({"state": "CANCELLED+", "TimeLimit": "UNLIMITED"}, (0, None, None)),
        ({"state": "FAILED", "ExitCode": "1:0", "TimeLimit": "Partition_Limit"}, (1, None, None)),
        ({"state": "NODE_FAIL", "ExitCode": "(null)"}, (None, None, 86400.0)),
    ],
)
def test_ends(fields: dict[str, str], expected: tuple[int | None, int | None, float | None]) -> None:
    """Exit code, signal and limit."""
    job = read_show(shown(**fields), "1234")  # type: ignore[arg-type]
    assert (job.exit_code, job.signal, job.time_limit) == expected


def test_a_task_of_an_array_is_found_by_either_id() -> None:
    """`slurm-%A_%a.out` names it 8_3; `scontrol show job 8` shows every task, of which only one is 8."""
    text = shown(9, ArrayJobId=8, ArrayTaskId=3) + shown(8, ArrayJobId=8, ArrayTaskId=4)
    assert read_show(text, "8_3").id == "9"
    assert read_show(text, "8").array_id == "8_4"


def test_a_name_that_looks_like_fields_decides_nothing() -> None:
    """A field counts where Slurm prints it: not in a job's name, not in its command; two users are none."""
    job = read_show(shown(JobName="x ArrayJobId=500 ArrayTaskId=3 HetJobId=500 JobState=COMPLETED Comment=y"), "1234")
    assert (job.id, job.array_id, job.components, job.state, job.comment) == ("1234", "", False, "RUNNING", "")
    assert list(jobs_shown(shown(JobName="x ArrayJobId=500 ArrayTaskId=3"))) == ["1234"]
    assert read_show(shown(Command="x StdOut=/l/500.out"), "1234").output == "/l/slurm-1234.out"
    assert read_show(shown(Command="x WorkDir=/ StdOut=/l/500.out"), "1234").output == ""
    for field in ("JobName", "Command"):
        with pytest.raises(ReplyError, match="no user"):
            read_show(shown(**{field: "x UserId=root(0)"}), "1234")  # type: ignore[arg-type]
    assert read_show(shown() + shown(77, JobName="x\x0bJobId=1234"), "1234").uid == 1000  # a line ends at a line feed


@pytest.mark.parametrize(
    "text",
    ["", "no jobs in the system\n", "<html>502 Bad Gateway</html>", "JobId=1234\n", shown(77), shown(state="WONDERING"),
     shown(UserId="1000"), shown(UserId="ada"), shown() + shown(state="FAILED"), "slurm_load_jobs error: Zero Bytes"],
)  # fmt: skip
def test_nonsense_is_refused(text: str) -> None:
    """Half of an answer is none."""
    with pytest.raises(ReplyError):
        read_show(text, "1234")


def test_times_of_an_unknown_zone_are_unknown() -> None:
    """A wrapper that drops the environment prints local times: nothing is concluded from them."""
    assert read_show(shown(StartTime="2026-11-22T06:52:32"), "1234").started_at is None


def test_accounting_tells_who_cancelled() -> None:
    """The newest of several jobs of that id; a name may hold the delimiter."""
    row = "1234|1234|{}|0:15|1699996300|1699996400|1699999000|1000|ada|n-[01-02]|1440|main|tr|11"
    job = read_account(row.format("FAILED") + "\n" + row.format("CANCELLED by 1001") + "\n", "1234")
    assert (job.state, job.cancelled_by, job.name, job.time_limit) == ("CANCELLED", "uid 1001", "tr|11", 86400.0)
    with pytest.raises(ReplyError):
        read_account("Slurm accounting storage is disabled\n", "1234")


@given(st.text(), st.sampled_from(["JobState", "UserId", "NodeList", "StartTime", "TimeLimit", "ExitCode", "JobName"]))
def test_any_value_is_read_or_refused(value: str, field: str) -> None:
    """Whatever stands in a field: a job or a ReplyError."""
    try:
        job = read_show(shown(**{field: value}), "1234")  # type: ignore[arg-type]
    except ReplyError:
        return
    assert job.nodes.isprintable() and job.name.isprintable()  # noqa: PT018 - both or none


def test_a_jobs_comment_is_its_owners_word() -> None:
    """Slurm prints it where there is one; the accounting's answer has none, and a line within it is no field."""
    assert read_show(shown(Comment="mine megatron-monitor"), "1234").comment == "mine megatron-monitor"
    assert read_show(shown(), "1234").comment == ""
    assert read_show(shown(Comment="a Comment=megatron-monitor"), "1234").comment == ""

"""What `scontrol show job -o` (22.05, SLURM_TIME_FORMAT=%s) prints, with the fields that a test asks for."""

from __future__ import annotations

NOW = 1_700_000_000


def shown(job: int = 1234, state: str = "RUNNING", **fields: object) -> str:
    """A line for a job that began an hour ago on two nodes."""
    values: dict[str, object] = {
        "JobId": job, "JobName": "tr11", "UserId": "ada(1000)", "GroupId": "ada(1000)", "Priority": 4294901757,
        "Account": "(null)", "QOS": "(null)", "JobState": state, "Reason": "None", "Dependency": "(null)", "Requeue": 1,
        "Restarts": 0, "BatchFlag": 1, "ExitCode": "0:0", "RunTime": "01:00:00", "TimeLimit": "1-00:00:00",
        "SubmitTime": NOW - 3700, "StartTime": NOW - 3600, "EndTime": NOW + 82800, "SuspendTime": "None",
        "Partition": "main", "ReqNodeList": "(null)", "ExcNodeList": "(null)", "NodeList": "n-[01-02]", "NumNodes": 2,
        "ReqB:S:C:T": "0:0:*:*", "CPUs/Task": 1, "Command": "/home/ada/train.sbatch --size 7b", "WorkDir": "/home/ada",
        "StdErr": "/l/slurm-1234.out", "StdIn": "/dev/null", "StdOut": "/l/slurm-1234.out",
    }  # fmt: skip
    return " ".join(f"{name}={value}" for name, value in (values | fields).items()) + " Power= \n"

"""Parses the output of `scontrol show job -o` and `sacct` into SlurmJob. Pure: every number and state is checked.

With SLURM_TIME_FORMAT=%s times are Unix seconds. The output is a list of pairs without quotes, with text chosen by
users (a job's name, its command) among them. Rule: a field counts only at its place in Slurm's order, and only once. A
reply without id, state or user is refused as a whole.
"""

import re
from typing import Any, Final

from msgspec.structs import replace

from megatron_monitor.run.job import OVER, RUNNING, WAITING
from megatron_monitor.run.records import SlurmJob

_ACCOUNTED: Final = {
    "JobIDRaw": "JobId", "JobID": "", "State": "JobState", "ExitCode": "ExitCode", "Submit": "SubmitTime",
    "Start": "StartTime", "End": "EndTime", "UID": "", "User": "", "NodeList": "NodeList", "TimelimitRaw": "TimeLimit",
    "Partition": "Partition", "JobName": "JobName",
}  # fmt: skip
"""Field of sacct -> the field of scontrol with the same content; empty: none has it."""
SACCT_FIELDS: Final = ",".join(_ACCOUNTED)
_STATES: Final = frozenset({*RUNNING, *WAITING, *OVER, "COMPLETING", "STAGE_OUT", "POWER_UP_NODE"})
# ` JobState=RUNNING`, ` ReqB:S:C:T=0:0:*:*`, ` CPUs/Task=1`
_PAIR: Final = re.compile(r"(?:^| )([A-Z][A-Za-z0-9/:]{0,40})=")
_USER: Final = re.compile(r"([^()\s]{1,64})\((\d{1,10})\)", re.ASCII)
_CODE: Final = re.compile(r"(\d{1,5}):(\d{1,3})", re.ASCII)
_LIMIT: Final = re.compile(r"(?:(\d{1,5})-)?(\d{1,5}):(\d\d):(\d\d)", re.ASCII)
_DIGITS: Final = re.compile(r"\d{1,12}", re.ASCII)
_BY: Final = re.compile(r"CANCELLED by (\d{1,10})", re.ASCII)
_OPTIONS: Final = {
    "JobName": "job-name", "Partition": "partition", "NumNodes": "nodes", "TimeLimit": "time", "Account": "account",
    "QOS": "qos", "Features": "constraint", "ReqNodeList": "nodelist", "Reservation": "reservation",
    "Licenses": "licenses",
}  # fmt: skip
"""Fields that are options of sbatch: a new job can be given the printed value."""
_SECTIONS: Final = {"JobName": 1, "UserId": 2, "WorkDir": 3}
"""Fields of every line in this order -> the section of the line that begins with the field. The first section is 0."""
_PLACES: Final = {
    "JobId": 0, "ArrayJobId": 0, "ArrayTaskId": 0, "HetJobId": 0, "PackJobId": 0, "Comment": 3, "StdErr": 3, "StdOut": 3
}  # fmt: skip
"""Field -> its section; 2 for all others. So a job named `x ArrayJobId=500` is not a task of an array."""
_TEXTS: Final = {
    "Reason": "reason", "JobName": "name", "Partition": "partition", "NodeList": "nodes", "ExcNodeList": "excluded",
    "WorkDir": "directory", "Command": "command", "StdOut": "output", "StdErr": "errors", "Comment": "comment",
}  # fmt: skip
_MAX_TEXT: Final = 4096  # characters kept of a text


class ReplyError(ValueError):
    """The output of a client cannot be parsed."""


def jobs_shown(text: str) -> dict[str, SlurmJob | ReplyError]:
    """Return the jobs of `scontrol show job -o` by id and by array task (`8_3`).

    The value is a ReplyError for a job that cannot be parsed, and for an id that is shown twice.
    """
    found: dict[str, SlurmJob | ReplyError] = {}
    for line in text.split("\n"):
        if not line.startswith("JobId="):
            continue
        fields = _fields(line)
        reply = _job(fields)
        for asked in {fields.get("JobId", ""), _array(fields)} - {""}:
            if found.setdefault(asked, reply) != reply:  # a task is shown with its array and by itself
                found[asked] = ReplyError(f"scontrol shows two jobs {asked}")
    return found


def jobs_accounted(text: str, delimiter: str) -> dict[str, SlurmJob | ReplyError]:
    """Return the newest execution of each job of `sacct -D -X -n -P -o SACCT_FIELDS`, by id.

    A job that waits after a requeue also has the end of the execution before (`ended_as`).
    """
    found: dict[str, SlurmJob | ReplyError] = {}
    for line in text.split("\n"):
        if len(values := line.split(delimiter, len(_ACCOUNTED) - 1)) < len(_ACCOUNTED):
            continue
        row = dict(zip(_ACCOUNTED, values, strict=True))
        fields = {shown: row[name] for name, shown in _ACCOUNTED.items() if shown}
        fields["ArrayJobId"], _, fields["ArrayTaskId"] = row["JobID"].partition("_")
        fields["UserId"] = f"{row['User'] or row['UID']}({row['UID']})"
        job = _job(fields)
        for asked in {row["JobIDRaw"], row["JobID"]}:
            before, found[asked] = found.get(asked), job
            if isinstance(before, SlurmJob) and isinstance(job, SlurmJob) and job.state in WAITING:
                found[asked] = replace(job, ended_as=before.state, ended_on=before.nodes)
    return found


def _job(fields: dict[str, str]) -> SlurmJob | ReplyError:
    try:
        user = _USER.fullmatch(fields.get("UserId", ""))
        if user is None:
            raise ReplyError(f"no user: {str(fields.get('UserId'))[:40]!r}")
        code = _CODE.fullmatch(fields.get("ExitCode", ""))  # `1:0` is exit code 1, `0:15` is signal 15
        by = _BY.fullmatch(fields.get("JobState", "").strip())
        texts: dict[str, Any] = {name: _text(fields.get(key)) for key, name in _TEXTS.items()}
        return SlurmJob(
            id=_id(fields.get("JobId")),
            state=_state(fields.get("JobState")),
            array_id=_array(fields),
            exit_code=int(code[1]) if code else None,
            signal=int(code[2]) or None if code else None,
            user=user[1],
            uid=int(user[2]),
            restarts=int(_number(fields.get("Restarts")) or 0),
            time_limit=_limit(fields.get("TimeLimit")),
            submitted_at=_number(fields.get("SubmitTime")),
            started_at=_number(fields.get("StartTime")),
            ended_at=_number(fields.get("EndTime")),
            ran=_limit(fields.get("RunTime")),
            suspended_at=_number(fields.get("SuspendTime")),
            options=[f"--{name}={value}" for key, name in _OPTIONS.items() if (value := _text(fields.get(key)))],
            batch=fields.get("BatchFlag") not in (None, "0"),
            requeue=fields.get("Requeue") == "1",
            components="HetJobId" in fields or "PackJobId" in fields,
            cancelled_by=f"uid {by[1]}" if by else "",
            **texts,
        )
    except ReplyError as error:
        return error


def _fields(line: str) -> dict[str, str]:
    """Return the fields of a line that are at their place and unique: text chosen by users may look like fields."""
    found = list(_PAIR.finditer(line))
    ends = [match.start() for match in found[1:]] + [len(line)]
    fields: dict[str, str] = {}
    twice: set[str] = set()
    section = 0
    for match, end in zip(found, ends, strict=True):
        key = match[1]
        section = max(section, _SECTIONS.get(key, section))
        if key in _SECTIONS or _PLACES.get(key, 2) == section:
            if key in fields:
                twice.add(key)
            fields[key] = line[match.end() : end].strip()
    return {key: value for key, value in fields.items() if key not in twice}


def _id(text: str | None) -> str:
    if text is None or not _DIGITS.fullmatch(text):
        raise ReplyError(f"no job id: {str(text)[:40]!r}")
    return text


def _array(fields: dict[str, str]) -> str:
    """Return `8_3` for task 3 of array 8; empty for a range of waiting tasks."""
    job, task = fields.get("ArrayJobId", ""), fields.get("ArrayTaskId", "")
    return f"{job}_{task}" if _DIGITS.fullmatch(job) and _DIGITS.fullmatch(task) else ""


def _state(text: str | None) -> str:
    name = (text or "").strip().partition(" ")[0].rstrip("+")
    if name not in _STATES:
        raise ReplyError(f"no state of a job: {str(text)[:40]!r}")
    return name


def _text(text: str | None) -> str:
    clean = "".join(char if char.isprintable() else "�" for char in (text or "")[:_MAX_TEXT])
    return "" if clean in ("(null)", "None assigned", "None", "N/A", "Unknown") else clean


def _number(text: str | None) -> float | None:
    """Return a count or Unix seconds. A time in another form is ignored: its zone is unknown."""
    return float(text) if text is not None and _DIGITS.fullmatch(text) else None


def _limit(text: str | None) -> float | None:
    """Return the seconds of `1-02:00:00`, `00:01:00` or (sacct) `60`, which are minutes; None for UNLIMITED."""
    if (minutes_only := _number(text)) is not None:
        return 60.0 * minutes_only
    match = _LIMIT.fullmatch(text or "")
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return 86400.0 * days + 3600.0 * hours + 60.0 * minutes + seconds

"""The text of `scontrol show job -o` and `sacct` to a Job. Pure; every number and every state is checked.

Slurm prints times as it is told (SLURM_TIME_FORMAT=%s: Unix seconds), lists of pairs without quotes, and what users
chose (a job's name, its command) among them. Law: a field that stands there twice says nothing; a reply without its id,
its state or its user is refused as a whole. Nobody acts on half of one.
"""

import re
from typing import Final

from megatron_monitor.run.job import OVER, RUNNING, WAITING
from megatron_monitor.run.records import Job

SACCT_FIELDS: Final = "JobIDRaw,JobID,State,ExitCode,Submit,Start,End,UID,User,NodeList,TimelimitRaw,Partition,JobName"
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
"""Fields that a job has by options of sbatch which a new job can be given as they are printed."""
_LONGEST: Final = 4096  # characters of a text that is kept


class ReplyError(ValueError):
    """What a client printed is not understood; says what."""


def read_show(text: str, asked: str) -> Job:
    """The job of `scontrol show job -o ID`. Raises ReplyError."""
    lines = [line for line in text.splitlines() if line.startswith("JobId=")]
    shown = [_pairs(line) for line in lines]
    found = [one for one in shown if asked in (one.get("JobId"), _array(one.get("ArrayJobId"), one.get("ArrayTaskId")))]
    if len(found) != 1:
        raise ReplyError(f"scontrol shows job {asked} {len(found)} times: {text.strip()[:80]!r}")
    one = found[0]
    user, uid = _user(one.get("UserId"))
    exit_code, signal = _code(one.get("ExitCode"))
    return Job(
        id=_id(one.get("JobId")),
        array_id=_array(one.get("ArrayJobId"), one.get("ArrayTaskId")),
        state=_state(one.get("JobState")),
        reason=_text(one.get("Reason")),
        exit_code=exit_code,
        signal=signal,
        user=user,
        uid=uid,
        name=_text(one.get("JobName")),
        partition=_text(one.get("Partition")),
        nodes=_text(one.get("NodeList")),
        excluded=_text(one.get("ExcNodeList")),
        restarts=int(_number(one.get("Restarts")) or 0),
        time_limit=_limit(one.get("TimeLimit")),
        submitted_at=_number(one.get("SubmitTime")),
        started_at=_number(one.get("StartTime")),
        ended_at=_number(one.get("EndTime")),
        suspended_at=_number(one.get("SuspendTime")),
        directory=_text(one.get("WorkDir")),
        command=_text(one.get("Command")),
        options=[f"--{name}={value}" for key, name in _OPTIONS.items() if (value := _text(one.get(key)))],
        output=_text(one.get("StdOut")),
        errors=_text(one.get("StdErr")),
        comment=_text(one.get("Comment")),
        batch=one.get("BatchFlag") not in (None, "0"),
        requeue=one.get("Requeue") == "1",
        components="HetJobId" in one or "PackJobId" in one,
    )


def read_account(text: str, asked: str) -> Job:
    """The job of `sacct -D -X -n -P -o SACCT_FIELDS -j ID`: the newest of that id. Of one that waits after a requeue,
    also how it ended before (`ended_as`). Raises ReplyError.
    """
    rows = [line.split("|", SACCT_FIELDS.count(",")) for line in text.splitlines() if line.strip()]
    rows = [row for row in rows if len(row) == SACCT_FIELDS.count(",") + 1 and asked in row[:2]]
    if not rows:
        raise ReplyError(f"sacct shows no job {asked}: {text.strip()[:80]!r}")
    raw, shown, state, code, submit, start, end, uid, user, nodes, limit, partition, name = rows[-1]
    before = rows[-2] if len(rows) > 1 and _state(state) in WAITING else None
    by = _BY.fullmatch(state.strip())
    exit_code, signal = _code(code)
    if not _DIGITS.fullmatch(uid):
        raise ReplyError(f"sacct shows no user: {uid[:40]!r}")
    return Job(
        id=_id(raw),
        array_id=shown if "_" in shown else "",
        state=_state(state),
        exit_code=exit_code,
        signal=signal,
        user=_text(user),
        uid=int(uid),
        name=_text(name),
        partition=_text(partition),
        nodes=_text(nodes),
        time_limit=60.0 * int(limit) if _DIGITS.fullmatch(limit) else None,
        submitted_at=_number(submit),
        started_at=_number(start),
        ended_at=_number(end),
        cancelled_by=f"uid {by[1]}" if by else "",
        ended_as=_state(before[2]) if before is not None else "",
        ended_on=_text(before[9]) if before is not None else "",
    )


def _pairs(line: str) -> dict[str, str]:
    """Fields of one line; what a job's name or command may have written a second time is left out."""
    found = list(_PAIR.finditer(line))
    ends = [match.start() for match in found[1:]] + [len(line)]
    pairs: dict[str, str] = {}
    twice: set[str] = set()
    for match, end in zip(found, ends, strict=True):
        if match[1] in pairs:
            twice.add(match[1])
        pairs[match[1]] = line[match.end() : end].strip()
    return {key: value for key, value in pairs.items() if key not in twice}


def _id(text: str | None) -> str:
    if text is None or not _DIGITS.fullmatch(text):
        raise ReplyError(f"no job id: {str(text)[:40]!r}")
    return text


def _array(job: str | None, task: str | None) -> str:
    """`8_3` for the third task of array 8; a range of tasks that wait is none."""
    if job is None or task is None or not (_DIGITS.fullmatch(job) and _DIGITS.fullmatch(task)):
        return ""
    return f"{job}_{task}"


def _state(text: str | None) -> str:
    name = (text or "").strip().partition(" ")[0].rstrip("+")
    if name not in _STATES:
        raise ReplyError(f"no state of a job: {str(text)[:40]!r}")
    return name


def _user(text: str | None) -> tuple[str, int]:
    match = _USER.fullmatch(text or "")
    if match is None:
        raise ReplyError(f"no user: {str(text)[:40]!r}")
    return match[1], int(match[2])


def _code(text: str | None) -> tuple[int | None, int | None]:
    """`1:0` -> exit code 1; `0:15` -> signal 15."""
    match = _CODE.fullmatch(text or "")
    return (int(match[1]), int(match[2]) or None) if match else (None, None)


def _text(text: str | None) -> str:
    clean = "".join(char if char.isprintable() else "�" for char in (text or "")[:_LONGEST])
    return "" if clean in ("(null)", "None assigned", "None", "N/A", "Unknown") else clean


def _number(text: str | None) -> float | None:
    """A count, or Unix seconds; a time in another form has a zone that nobody knows."""
    return float(text) if text is not None and _DIGITS.fullmatch(text) else None


def _limit(text: str | None) -> float | None:
    """`1-02:00:00`, `00:01:00` in seconds; UNLIMITED is none."""
    match = _LIMIT.fullmatch(text or "")
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return 86400.0 * days + 3600.0 * hours + 60.0 * minutes + seconds

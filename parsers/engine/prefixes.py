"""Strips what launchers and loggers print before a line, nested in any order, and returns what it reports.

`9: [default3]: [2026-04-15 11:25:00.541769]  iteration ...` has srun's label, torchrun's label and Megatron's time.
Prefixes are stripped until the text begins with none. The order of ranks in a merged file means nothing.
"""

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from megatron_monitor.parsers.patterns import lazy
from megatron_monitor.parsers.wrappers import MONTHS, TEXT_FORMS

# `... nan iterations:   0 |[default3]:text`: a tee label in the middle of a line
_TEE = lazy(r"\[(?:default|worker|trainer|rank)\d{1,9}\]:(?=.)")

_MAX_NESTING = 8  # the deepest real nesting is 4; the bounds limit the cost of a hostile line
_MAX_SEGMENTS = 64

# One alternative per prefix, with a sample above it.
_PREFIX = lazy(
    r"""
    # ` 7: ` srun --label, right-aligned; also alone on a line
      (?P<task>[ ]{0,5}\d{1,6}):(?:[ ]|$)
    # `[default7]:` torchrun --tee: role and local rank
    | [ ]{0,4}\[(?:default|worker|trainer)(?P<local>\d{1,9})\]:
    # `[node01:3]:` torchrun --tee with --role HOST: the role, and the local rank
    | [ ]{0,4}\[(?P<role_host>[a-z](?![\w.-]{0,80}\.(?:py|cc|cpp|h|c|cu):)[\w.-]{0,80}):(?P<role_local>\d{1,5})\]:
    # `[rank13]:` PyTorch >= 2.2
    | \[rank(?P<rank>\d{1,9})\]:[ ]?
    # `[1,3]<stdout>:` OpenMPI --tag-output
    | \[\d{1,9},(?P<mpi>\d{1,9})\]<std(?:out|err|diag)>:[ ]?
    # `[2023-10-19 23:07:45,931] [INFO] [logging.py:96:log_dist] [Rank 0] ` DeepSpeed's logger
    | [ ]{0,4}\[(?P<ds_time>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)\][ ]\[[A-Z]+\][ ]
      \[(?P<ds_where>[^\]\s]+)\](?:[ ]\[Rank[ ](?P<ds_rank>-?\d{1,9})\])?[ ]?
    # `[2024-06-21 10:50:42][INFO][training_log:661] - ` Argonne
    | [ ]{0,4}\[(?P<ar_time>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)\]\[[A-Z]+\]
      \[(?P<ar_where>[^\]]+)\](?:[ ]-[ ]|[ ])?
    # `[2026-03-27 15:42:15.545150] ` Megatron-LM 2024 on
    | [ ]{0,4}\[(?P<time>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)\][ ]
    # `INFO:megatron.core.timers:` Python's default logging
    | (?:INFO|WARNING|ERROR|DEBUG|CRITICAL):(?P<logger>[A-Za-z_][\w.]*):
    # `[INFO|trainer.py:1165] 2021-05-25 07:09:47,832 >> ` transformers' logger
    | \[[A-Z]+\|(?P<hf_where>[^\]]+)\][ ](?P<hf_time>\d{4}-\d\d-\d\d[ ]\d\d:\d\d:\d\d,\d+)[ ]>>[ ]?
    # `[INFO|2026-04-02 14:00:00] trainer.py:2519 >> ` LLaMA-Factory's
    | \[[A-Z]+\|(?P<lf_time>\d{4}-\d\d-\d\d[ ]\d\d:\d\d:\d\d)\][ ]
      (?P<lf_where>[\w.]{1,80}:\d{1,6})[ ]>>[ ]?
    # `2023-10-26 21:31:16,318 [Rank 15]: ` a vendor's logger
    | (?P<vd_time>\d{4}-\d\d-\d\d[ ]\d\d:\d\d:\d\d(?:[.,]\d+)?)[ ]\[Rank[ ](?P<vd_rank>\d{1,9})\]:[ ]?
    # `[20251202 06:56:28][rank-7/8][INFO ] [--------trainer.py:2560] : ` AMD Primus, its colours already gone;
    # `[[32m20251202 06:56:28[0m][[36mrank-7/8[0m][[1mINFO [0m] [1m[...` the same where only the escape byte was lost
    | \[(?:\[\d{1,2}m)?(?P<pr_time>\d{8}[ ]\d\d:\d\d:\d\d)(?:\[0m)?\]
      \[(?:\[\d{1,2}m)?rank-(?P<pr_rank>\d{1,9})/\d{1,9}(?:\[0m)?\]
      \[(?:\[\d{1,2}m)?[A-Z]+[ ]{0,4}(?:\[0m)?\][ ]?
      (?:\[\d{1,2}m)?(?:\[(?P<pr_where>[^\]]+)\][ ]?)?:?[ ]?
    | """
    + TEXT_FORMS
    + r"""
    # `2024-05-01T12:00:00.123456Z ` container runtimes; `stdout F ` may follow
    | (?P<iso_time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[-+]\d\d:?\d\d))[ ](?:std(?:out|err)[ ][FP][ ])?
    # `(RayTrainWorker pid=1234, ip=10.0.0.1) `
    | \([A-Za-z_]\w*[ ]pid=\d+(?:,[ ]ip=(?P<ray_ip>[\d.]+))?\)[ ]
    # `mbs_128gbs/0 ` torchx and NeMo-Run: the job's name, cut, and the replica; only before a line of a training
    | (?=[\w.-]{0,60}[A-Za-z])[\w.-]{1,60}/\d{1,4}[ ]
      (?=Training[ ]epoch[ ]|Validation|Epoch[ ]\d|Step[ ]Time[ ]|\[|[ ]?\[\d{4}-|[ ]?iteration[ =])
    # `slurmstepd-node05: ` of a Slurm that runs several daemons on a machine: the node's name
    | slurmstepd-(?P<slurm_host>[\w.-]{1,80}):[ ](?=error:[ ])
    # `node01: `, `192.168.205.202: `, `localhost: ` pdsh; a name without a digit only before a training line
    | (?P<host>localhost|\d{1,3}(?:\.\d{1,3}){3}|[a-z][a-z-]*\d[\w.-]*):[ ]
    | (?P<word_host>[a-z][a-z.-]*):[ ](?=[ ]?iteration[ =]|\[\d{4}-|\[default\d|[ ]?samples/sec:)
    """,
    re.VERBOSE,
)

# First characters of a prefix: most other texts are rejected without trying each alternative
_MAY_BEGIN = lazy(rf"[ ]{{0,5}}[\d\[]|[(<a-zDIWEC]|[\w.-]{{1,60}}/\d|(?:{'|'.join(MONTHS)})[ ]")
# `[E522 03:45:48.123456789 ProcessGroupNCCL.cpp:632] ...`, `W0414 18:38:58.281000 175535 torch/run.py:793] `: glog
# prints no year. The prefix stays in the text, because rules recognise these lines by it.
_GLOG = lazy(r"[ ]{0,4}\[?[IWEF](\d{3,4} \d\d:\d\d:\d\d(?:\.\d{1,6})?)\d{0,3} ")

# `[06:00<34:00,  6.00s/it]`, `[06:00, 6.00s/it, loss=0.5, lr=[1e-5]]`: the end of a tqdm bar
_BAR_END = lazy(r"\[\d{1,4}:\d\d(?::\d\d)?(?:<[\d:?]{1,12})?,(?:[^][]|\[[^][]{0,200}\]){1,400}\]")

# Words that look like `host:` and are not hosts, whatever their digits are: `fp16`, `bfloat16`, `stage0`.
_NOT_HOST = lazy(r"(?:oom|utf|int|stage)\d|b?f(?:p|loat)?\d\d|c\d\dd|h\dpy")


@dataclass(slots=True)
class Prefix:
    """What the prefixes of a line report. `task` is srun's label, `local_rank` torchrun's. `pod` is a container's name,
    and the node's name if no other prefix reports one.
    """

    task: int | None = None
    local_rank: int | None = None
    rank: int | None = None
    node: str | None = None
    logged_at: str | None = None
    location: str | None = None
    pod: str | None = None
    spans: dict[str, tuple[int, str]] = field(default_factory=dict, compare=False, repr=False)
    """Field -> where its text begins in the line, and the text."""

    @property
    def global_rank(self) -> int | None:
        """Return the rank in the world, or None. With torchrun's label a srun label is ignored, because one task is one
        node then.
        """
        if self.rank is not None:
            return self.rank
        return self.task if self.local_rank is None else None

    @property
    def key(self) -> str:
        """Return a key that distinguishes the writers of a merged file."""
        return str((self.task, self.local_rank, self.rank, self.node, self.pod))


def iso_time(text: str) -> str:
    """Return `2023-10-19 23:07:45,931`, `20251202 06:56:28`, `2025/05/31 10:00:00`, `05/31/2025 10:00:00` or, without a
    year, `May  1 12:00:00`, `414 18:38:58.281`, `05/31 10:00:00` and `05-31 10:00:00` as ISO 8601.
    """
    if text[:1].isalpha():
        return f"--{MONTHS.index(text[:3]) + 1:02d}-{text[4:6].replace(' ', '0')}T{text[7:]}"
    if " " in text[3:5]:
        date, _, clock = text.partition(" ")
        return f"--{date[:-2]:0>2}-{date[-2:]}T{clock}"
    if text[2:3] in ("/", "-") and text[5:6] == " ":
        return f"--{text[0:2]}-{text[3:5]}T{text[6:]}"
    if text[2:3] == "/":
        return f"{text[6:10]}-{text[0:2]}-{text[3:5]}T{text[11:]}"
    if text[4:5] == "/" or text[10:11] == ",":  # `2025-05-31,10:00:00`
        text = f"{text[:4]}-{text[5:7]}-{text[8:10]} {text[11:]}"
    if len(text) == 17 and text[8] == " ":
        text = f"{text[:4]}-{text[4:6]}-{text[6:8]} {text[9:]}"
    return text.replace(" ", "T", 1).replace(",", ".")


def strip_prefixes(text: str) -> tuple[Prefix, str]:
    """Return what the prefixes report, and the rest of the line with the program's own leading blanks."""
    prefix = Prefix()
    position = 0
    for _ in range(_MAX_NESTING):
        match = _PREFIX.match(text, position) if _MAY_BEGIN.match(text, position) else None
        if not match or match.end() == position or _NOT_HOST.fullmatch(match["host"] or ""):
            break
        _take(prefix, match)
        position = match.end()
    if prefix.logged_at is None and (glog := _GLOG.match(text, position)):
        prefix.logged_at, prefix.spans["logged_at"] = iso_time(glog[1]), (glog.start(1), glog[1])
    return prefix, text[position:]


_ROLES = {
    "task": "task", "local": "local_rank", "rank": "rank", "mpi": "rank", "time": "logged_at",
    "logger": "location", "where": "location", "ip": "node", "host": "node", "pod": "pod",
}  # fmt: skip
"""Last word of a group's name -> the field that it fills."""
READS: Final[dict[str, Callable[[str], Any]]] = {
    "task": int, "local_rank": int, "rank": int, "logged_at": iso_time, "location": str, "node": str, "pod": str,
}  # fmt: skip
"""Field -> the converter of its text."""


def _take(prefix: Prefix, match: re.Match[str]) -> None:
    for name, value in match.groupdict().items():
        role = _ROLES.get(name.rpartition("_")[2]) if value is not None else None
        if role is None or (role == "rank" and value < "0"):
            continue  # DeepSpeed prints rank -1 before its groups exist
        for field_name in ("pod", "node") if role == "pod" else (role,):
            setattr(prefix, field_name, READS[role](value))
            prefix.spans[field_name] = (match.start(name), value)


def segments(text: str) -> list[str]:
    """Return the parts of a physical line by different writers. A tee label of another writer cuts the line (`...
    |[default3]: ...`). So does the end of a progress bar, where the cursor was left: `... [06:00<34:00,
    6.00s/it]Killed`.
    """
    parts = _by_writer(text) if "]:" in text else [text]
    if "%|" in text or "it [" in text:
        parts = [piece for part in parts for piece in _behind_bars(part)]
    return parts


def _behind_bars(text: str) -> list[str]:
    """Return the line up to the end of its last bar, and the text after it. A dict after a bar belongs to the bar's
    program.
    """
    end = max((match.end() for match in _BAR_END.finditer(text)), default=len(text))
    rest = text[end:].strip()
    return [text] if not rest or rest.startswith("{") else [text[:end], text[end:]]


def _by_writer(text: str) -> list[str]:
    starts = [match.start() for match in _TEE.finditer(text)]
    if not starts or starts == [0]:
        return [text]
    # Cut only after real text: a chain of prefixes at the start is one line.
    begin = len(text) - len(strip_prefixes(text)[1].lstrip())
    bounds = [0, *[start for start in starts if start > begin][:_MAX_SEGMENTS], len(text)]
    return [text[a:b] for a, b in itertools.pairwise(bounds)]

"""LSF says at the end of a job's output why it ended it; PBS's one sentence is data (batch.yaml).

LSF writes a report when the job is over (IBM's documentation of bsub -o; openlava's sbatchd prints the same):
`Sender: LSF System <lsfadmin@batch2>`, `Subject: Job 4242: <gpt3> in cluster <summit> Exited` or `Done`, where and when
it ran, the script between two rules of dashes, the reason if LSF ended it, how it ended, `Resource usage summary:`, and
`The output (if any) is above this job summary.`; where the output was spooled it stands before all of it instead, and
ends in `The output (if any) follows:`.
"""

from collections.abc import Iterator
from typing import Any

from parsers.engine.scan import Gatherer, Line, Rule
from parsers.events import Event, Failure, FailureSeen, ProcessExited, ProcessTerminated
from parsers.formats import TABLES
from parsers.formats.launchers import by_signal, ended_by, failed
from parsers.formats.stamps import date_of
from parsers.patterns import lazy

_REPORT_LINES = 4000  # of LSF's, the job's script in it

# `TERM_RUNLIMIT: job killed after reaching LSF run time limit.`
_LSF = lazy(r"^(TERM_[A-Z_]{2,30}): (.{1,200})")
_LSF_REASONS: dict[str, Failure] = TABLES["lsf"]
# `Exited with exit code 140.`, `Exited by signal 9. The CPU time used is 1 seconds.`, `Exited with signal termination:
# Killed, and core dumped.`, `Exited with signal termination: 12.`, `Exited with unknown status 0400`
_LSF_EXIT = lazy(
    r"^Exited (?:with exit code (\d{1,3})\.|by signal (\d{1,2})\.|with unknown status \d"
    r"|with signal termination: (?:(\d{1,2})|([\w/ ]{3,40}))[.,])"
)
_REQUEUED = "Job was killed by user or admin, and will be re-queued with the same jobid."
_COMPLETED = "Successfully completed."
# `Subject: Job 4242: <gpt3> in cluster <summit> Exited`
_SUBJECT = lazy(r"^Subject: Job \d{1,12}(?:\[\d{1,9}\])?: <.{0,400}> (?:in cluster <[^>]{0,80}> )?(Exited|Done)$")
_SENDER = "Sender: LSF System <"
_OUTPUT = "The output (if any) "
_SCRIPT = "# LSBATCH: User input"
_RULE = lazy(r"^-{40,80}$")
_ENDED_AT = "Terminated at "
# What else stands in a report; the figures of the summary and a long list of hosts are indented
_KNOWN = lazy(
    r"^(?:Job <|Job was executed on host|Started at |Results reported |Your job looked like:|Resource usage summary:"
    r"|PS:|Read file <|<[^>]{1,400}> was used as |-{40,80}$|[ ]{4})"
)


def read_lsf(line: Line) -> Iterator[Event | Gatherer]:
    """LSF ended the job, or saw it end."""
    text = line.text.strip()
    if _SUBJECT.match(text):
        yield LsfReportGatherer(writer=line.prefix.key, subject=text)
    else:
        yield from _reason(text, line.origin)
        yield from _end(text, line.origin)


def _reason(text: str, origin: dict[str, Any]) -> Iterator[Event]:
    """LSF's word for why it ended the job."""
    if match := _LSF.match(text):
        failure: Failure = _LSF_REASONS.get(match[1], "killed")
        yield FailureSeen(failure=failure, message=f"LSF: {match[2]}"[:200], by="lsf", **origin)
        yield ProcessTerminated(**origin)


def _end(text: str, origin: dict[str, Any]) -> Iterator[Event]:
    """How the job ended. What a signal is of stands elsewhere."""
    if text == _COMPLETED:
        yield ProcessExited(exit_code=0, launch=True, **origin)
    elif text == _REQUEUED:
        yield FailureSeen(failure="stopped", message="LSF: killed by user or admin, queued again", by="lsf", **origin)
        yield ProcessExited(launch=True, **origin)
    elif match := _LSF_EXIT.match(text):
        number = match[2] or match[3]
        code = int(match[1]) if match[1] else -int(number) if number else None
        if code is not None and by_signal(code):
            message = f"LSF: the job ended with {f'exit code {code}' if code > 0 else f'signal {-code}'}"
            yield failed(code, message, origin, consequence=True, by="lsf")
        elif match[4]:
            failure = (ended_by(match[4]) or ("unknown", True))[0]
            message = f"LSF: the job ended by signal: {match[4]}"
            yield FailureSeen(failure=failure, message=message, consequence=True, by="lsf", **origin)
        yield ProcessExited(exit_code=code, launch=True, **origin)


class LsfReportGatherer(Gatherer):
    """LSF's report: how the job ended is told where its output ends, once. `writer`: whose lines they are."""

    writer: str
    subject: str
    lines: int = 0
    script: bool = False
    """Inside the job's script, of which no line says anything."""
    follows: bool = False
    """The report is over, and the output stands behind it."""
    reason: str = ""
    end: str = ""
    ended_at: str | None = None

    @property
    def settles(self) -> bool:
        """The subject tells that the job is over, although the rest was not written."""
        return True

    @property
    def shown(self) -> str:
        """What says most of the end."""
        return self.reason or self.end or self.subject

    def offer(self, line: Line) -> tuple[list[Event], bool, bool]:
        """Take the report's lines; another line is the next job's, or of the output that follows."""
        text, bare = line.text, line.text.strip()
        if bare.startswith(_SENDER):
            return self.close(), False, True  # the next job's, in the same file
        if self.follows:
            return [], False, False
        self.lines += 1
        if self.lines > _REPORT_LINES or line.prefix.key != self.writer:
            return self.close(), False, True
        if self.script:
            self.script = not _RULE.match(bare)
        elif bare.startswith(_OUTPUT):
            self.follows = "follows" in bare
            return ([], True, False) if self.follows else (self.close(), True, True)
        elif bare == _SCRIPT:
            self.script = True
        elif bare.startswith(_ENDED_AT):
            self.ended_at = date_of(bare)
        elif _LSF.match(bare):
            self.reason = bare
        elif bare in (_COMPLETED, _REQUEUED) or _LSF_EXIT.match(bare):
            self.end = bare
        elif bare and not _KNOWN.match(text):
            return self.close(), False, True
        return [], True, False

    def close(self) -> list[Event]:
        """The job is over, whatever of the report was written."""
        origin: dict[str, Any] = {"logged_at": self.ended_at}
        code = 0 if self.subject.endswith("Done") else None
        end = list(_end(self.end, origin)) or [ProcessExited(exit_code=code, launch=True, **origin)]
        return [*_reason(self.reason, origin), *end]


RULES: tuple[Rule, ...] = (
    Rule(
        "batch.lsf",
        (b"TERM_", b"Exited with ", b"Exited by signal ", b"Successfully completed.", b"Subject: Job "),
        read_lsf,
        opens=LsfReportGatherer,
    ),
)

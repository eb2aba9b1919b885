"""Reads LSF's report about the end of a job. PBS prints one sentence, which batch.yaml reads.

LSF writes a report when a job ends (IBM's documentation of bsub -o; openlava's sbatchd prints the same): `Sender: LSF
System <lsfadmin@batch2>`, `Subject: Job 4242: <gpt3> in cluster <summit> Exited` or `Done`, place and time, the script
between two lines of dashes, the reason if LSF ended the job, how it ended, `Resource usage summary:` and `The output
(if any) is above this job summary.`. If the output was spooled, the report precedes it and ends with `The output (if
any) follows:`.
"""

from collections.abc import Iterator
from functools import cache

from megatron_monitor.parsers.declared.compiled import expressions_of
from megatron_monitor.parsers.declared.schema import built_in
from megatron_monitor.parsers.declared.targets import date_of
from megatron_monitor.parsers.engine.prefixes import Prefix
from megatron_monitor.parsers.engine.scan import Gatherer, Line, Rule
from megatron_monitor.parsers.events import Event, ProcessExited
from megatron_monitor.parsers.patterns import lazy

_REPORT_LINES = 4000  # maximum lines of a report, the job's script included
# `Subject: Job 4242: <gpt3> in cluster <summit> Exited`
_SUBJECT = lazy(r"^Subject: Job \d{1,12}(?:\[\d{1,9}\])?: <.{0,400}> (?:in cluster <[^>]{0,80}> )?(Exited|Done)$")
_SENDER = "Sender: LSF System <"
_OUTPUT = "The output (if any) "
_SCRIPT = "# LSBATCH: User input"
_RULE = lazy(r"^-{40,80}$")
_ENDED_AT = "Terminated at "
# Other parts of a report. The figures of the summary and long lists of hosts are indented.
_KNOWN = lazy(
    r"^(?:Job <|Job was executed on host|Started at |Results reported |Your job looked like:|Resource usage summary:"
    r"|PS:|Read file <|<[^>]{1,400}> was used as |-{40,80}$|[ ]{4})"
)


@cache
def _rules() -> tuple[Rule, ...]:
    """Return the rules of batch.yaml."""
    return next(expressions_of(log_format) for log_format in built_in() if log_format.name == "batch")


def _end_events(text: str, ended_at: str | None) -> list[Event]:
    """Return the events of a line about why or how a job ended (batch.yaml)."""
    line = Line(text, Prefix(logged_at=ended_at))
    return [event for rule in _rules() for event in rule.items(line) if isinstance(event, Event)]


def read_lsf(line: Line) -> Iterator[Event | Gatherer]:
    """Open a report."""
    text = line.text.strip()
    if _SUBJECT.match(text):
        yield LsfReportGatherer(writer=line.prefix.key, subject=text)


class LsfReportGatherer(Gatherer):
    """LSF's report: the end of a job, reported once. `writer` identifies the writer of its lines."""

    writer: str
    subject: str
    lines: int = 0
    script: bool = False
    """True within the job's script, whose lines are ignored."""
    follows: bool = False
    """True if the report is complete and the output follows it."""
    reason: str = ""
    end: str = ""
    ended_at: str | None = None

    @property
    def settles(self) -> bool:
        """True: the subject reports the end, even if the rest is not written."""
        return True

    @property
    def shown(self) -> str:
        """The line that says most about the end."""
        return self.reason or self.end or self.subject

    def offer(self, line: Line) -> tuple[list[Event], bool, bool]:
        """Take the report's lines. Another line belongs to the next job or to the output after the report."""
        text, bare = line.text, line.text.strip()
        if bare.startswith(_SENDER):
            return self.close(), False, True  # of the next job in the same file
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
        elif _end_events(bare, None):
            self.reason, self.end = (bare, self.end) if bare.startswith("TERM_") else (self.reason, bare)
        elif bare and not _KNOWN.match(text):
            return self.close(), False, True
        return [], True, False

    def close(self) -> list[Event]:
        """Return the end of the job from the written part of the report."""
        code = 0 if self.subject.endswith("Done") else None
        end = _end_events(self.end, self.ended_at) or [
            ProcessExited(exit_code=code, ends_attempt=True, logged_at=self.ended_at)
        ]
        return [*_end_events(self.reason, self.ended_at), *end]


RULES: tuple[Rule, ...] = (Rule("batch.lsf", (b"Subject: Job ",), read_lsf, opens=LsfReportGatherer),)

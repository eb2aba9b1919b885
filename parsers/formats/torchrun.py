"""Reads the report of torchrun's agent: the rank that failed first, its cause, and the ranks that were ended for it.

The report is the text of a ChildFailedError (torch/distributed/elastic/multiprocessing/errors/__init__.py
`format_msg`): a title between `=`, `Failures:` with one entry per failed rank or `  <NO_OTHER_FAILURES>`, `Root Cause
(first observed failure):` with the entry of the earliest time, `=`. An entry is `[index]:` and six named lines: time,
host, rank (local_rank), exitcode (pid), error_file, traceback. If the program is wrapped in `@record`, a rank writes
its exception to a file before it exits (error_handler.py `record_exception`). Then `error_file` is the file's path and
`traceback` is the output of `traceback.format_exc()` with each further line indented by two blanks. Otherwise they are
`<N/A>` and one sentence: `Signal 9 (SIGKILL) received by PID 4242`, or how to enable a traceback.
"""

from collections.abc import Iterator

from msgspec import field

from megatron_monitor.parsers.declared.failures import (
    device_bytes,
    exception_of,
    failure_of,
    is_victim,
    lost_peer,
    named_failure,
)
from megatron_monitor.parsers.engine.fields import integer
from megatron_monitor.parsers.engine.scan import Gatherer, Line, Rule
from megatron_monitor.parsers.events import Event, FailureSeen, ProcessExited
from megatron_monitor.parsers.formats.tracebacks import HEADER, WRAPPER
from megatron_monitor.parsers.patterns import lazy

_ENTRY_LINES = 400  # maximum lines of a report from an entry's first line on, with the lines of other ranks in between
_FAILURES = "Failures:"
_ROOT_CAUSE = "Root Cause (first observed failure):"
_NO_OTHERS = "<NO_OTHER_FAILURES>"
_INDENT = "  "
# `  host      : nid006913`, `  exitcode  : 1 (pid: 194956)`
_FIELD = lazy(r"^[ ]{1,8}(time|host|rank|exitcode|error_file|traceback)[ ]{0,8}:[ ](.{0,1100})$")
_WHEN = lazy(r"(\d{4}-\d\d-\d\d)_(\d\d:\d\d:\d\d)$")
_INDEX = lazy(r"^\[\d{1,7}\]:$")
_BORDER = lazy(r"^[=-]{4,200}$")


def read_torchrun(line: Line) -> Iterator[Event | Gatherer]:
    """Open a report, or its last part if the rest was lost."""
    if _ROOT_CAUSE in line.text:
        yield RootCauseGatherer(writer=line.prefix.key, root=True)
    elif line.text.strip() == _FAILURES:
        yield RootCauseGatherer(writer=line.prefix.key)


class RootCauseGatherer(Gatherer):
    """torchrun's report. The other failures came later and are skipped. From the entry of the root cause it takes the
    named lines, and from its traceback the uncaught exception.
    """

    writer: str
    root: bool = False
    """True if the entry of the root cause has begun."""
    begun: bool = False
    """True if an entry of another rank has begun, or the line that there is none."""
    lines: int = 0
    fields: dict[str, str] = field(default_factory=dict)
    exception: str = ""

    @property
    def shown(self) -> str:
        """The exception's own line."""
        return self.exception

    @property
    def settles(self) -> bool:
        """True: the entry identifies the failed rank, even if its end is not written."""
        return self.root and "exitcode" in self.fields

    def offer(self, line: Line) -> tuple[list[Event], bool, bool]:
        """Take the report's lines from its writer. The border after the root cause is the last line."""
        self.lines += 1
        text, bare = line.text, line.text.strip()
        if line.prefix.key != self.writer:
            return self._other()
        if not self.root:
            return self._before(line)
        if match := _FIELD.match(text):
            if match[1] not in self.fields:
                self.fields[match[1]] = match[2].strip()
                if match[1] != "traceback":
                    return [], True, False
                if HEADER not in match[2]:  # the complete entry
                    self._note(match[2].strip())
                    return self.close(), True, True
            return [], True, False
        if "traceback" not in self.fields:
            return ([], True, False) if _INDEX.match(bare) else self._other()
        if _BORDER.match(bare):
            return self.close(), True, True
        if text.startswith(_INDENT) or not bare:
            self._note(text[len(_INDENT) :].rstrip())
            return [], True, False
        return (self.close(), False, True) if self.exception else self._other()

    def _before(self, line: Line) -> tuple[list[Event], bool, bool]:
        """Skip the entries of the other ranks up to the root cause."""
        text, bare = line.text, line.text.strip()
        if _ROOT_CAUSE in text:
            self.root, self.lines = True, 0
            return [], True, False
        if _INDEX.match(bare) or bare == _NO_OTHERS:
            self.begun, self.lines = True, 0
            return [], True, False
        if not self.begun:
            return [], False, True  # `Failures:` of another program
        return ([], True, False) if text.startswith(_INDENT) or _BORDER.match(bare) else self._other()

    def _other(self) -> tuple[list[Event], bool, bool]:
        """Leave a line of another rank within the report."""
        return (self.close(), False, True) if self.lines > _ENTRY_LINES else ([], False, False)

    def _note(self, text: str) -> None:
        """Note an exception. The last one of a chain is the uncaught one. TorchScript's own line is ignored."""
        found = exception_of(text)
        if found and not found[1].startswith(WRAPPER):
            self.exception = text[:1000]

    def close(self) -> list[Event]:
        """Return the failure of the entry."""
        code_text = self.fields.get("exitcode", "").split(" ", 1)[0]
        code = integer(code_text) if code_text.lstrip("-").isdecimal() else None
        if code is None:
            return []
        rank, when = self.fields.get("rank", "").split(" ", 1)[0], _WHEN.match(self.fields.get("time", ""))
        raised = exception_of(self.exception)
        if raised:
            failure, message = named_failure(*raised) or "python_exception", ": ".join(filter(None, raised))
            consequence = lost_peer(*raised)
        else:
            failure, message = failure_of(code), f"torchrun: first failure on rank {rank or '?'}, exit code {code}"
            consequence = is_victim(code) or "Signal 15" in self.fields.get("traceback", "")
        event = FailureSeen(
            failure=failure,
            message=message,
            consequence=consequence,
            exit_code=code,
            by="launcher",
            raised=raised is not None,
            device_bytes=device_bytes(self.exception),
            rank=integer(rank) if rank.isdecimal() else None,
            node=self.fields.get("host"),
            logged_at=f"{when[1]}T{when[2]}" if when else None,
        )
        return [event, ProcessExited(exit_code=code, rank=event.rank, node=event.node, logged_at=event.logged_at)]


RULES: tuple[Rule, ...] = (
    Rule(
        "launcher.torchrun",
        (b"Root Cause (first", b"Failures:"),
        read_torchrun,
        opens=RootCauseGatherer,
    ),
)

"""torchrun's agent: which rank failed, what it died of, who was ended for it.

Its last word is the text of a ChildFailedError (torch/distributed/elastic/multiprocessing/errors/__init__.py
`format_msg`): a title between `=`, `Failures:` with one entry a failed rank or `  <NO_OTHER_FAILURES>`, `Root Cause
(first observed failure):` with the entry whose time is the earliest, `=`. An entry is `[index]:` and six named lines:
time, host, rank (local_rank), exitcode (pid), error_file, traceback. Where the program is wrapped in `@record` a rank
writes its exception to a file before it dies (error_handler.py `record_exception`): then `error_file` is its path and
`traceback` what `traceback.format_exc()` gave, each further line two blanks deeper. Else they are `<N/A>`, and one
sentence: `Signal 9 (SIGKILL) received by PID 4242`, or where to read how a traceback is enabled.
"""

from collections.abc import Iterator

from msgspec import field

from megatron_monitor.parsers.declared.failures import (
    exception_of,
    failure_of,
    is_victim,
    lost_peer,
    memory_facts,
    named_failure,
)
from megatron_monitor.parsers.engine.fields import integer
from megatron_monitor.parsers.engine.scan import Gatherer, Line, Rule
from megatron_monitor.parsers.events import Event, FailureSeen, ProcessExited
from megatron_monitor.parsers.formats.tracebacks import HEADER, WRAPPER
from megatron_monitor.parsers.patterns import lazy

_ENTRY_LINES = 400  # of a report, those of other ranks that stand between counted; from an entry's first line on
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
    """A report begins, or its last part where the rest was lost."""
    if _ROOT_CAUSE in line.text:
        yield RootCauseGatherer(writer=line.prefix.key, root=True)
    elif line.text.strip() == _FAILURES:
        yield RootCauseGatherer(writer=line.prefix.key)


class RootCauseGatherer(Gatherer):
    """torchrun's report: the other failures are passed over, they came later; of the root cause's entry the named lines
    are taken, and of its traceback the exception that came out.
    """

    writer: str
    root: bool = False
    """The entry of the root cause has begun."""
    begun: bool = False
    """An entry of another has begun, or the word for none."""
    lines: int = 0
    fields: dict[str, str] = field(default_factory=dict)
    exception: str = ""

    @property
    def shown(self) -> str:
        """The exception's own line."""
        return self.exception

    @property
    def settles(self) -> bool:
        """The entry tells who failed, although its end was not written."""
        return self.root and "exitcode" in self.fields

    def offer(self, line: Line) -> tuple[list[Event], bool, bool]:
        """Take the report's lines, of the one who writes it; the border behind the root cause is the last."""
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
                if HEADER not in match[2]:  # the whole of it
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
        """The entries of the others, up to the root cause."""
        text, bare = line.text, line.text.strip()
        if _ROOT_CAUSE in text:
            self.root, self.lines = True, 0
            return [], True, False
        if _INDEX.match(bare) or bare == _NO_OTHERS:
            self.begun, self.lines = True, 0
            return [], True, False
        if not self.begun:
            return [], False, True  # another program's `Failures:`
        return ([], True, False) if text.startswith(_INDENT) or _BORDER.match(bare) else self._other()

    def _other(self) -> tuple[list[Event], bool, bool]:
        """Another rank's line between those of the report."""
        return (self.close(), False, True) if self.lines > _ENTRY_LINES else ([], False, False)

    def _note(self, text: str) -> None:
        """The last exception of a chain is the one that came out; TorchScript's own line is none."""
        found = exception_of(text)
        if found and not found[1].startswith(WRAPPER):
            self.exception = text[:1000]

    def close(self) -> list[Event]:
        """The failure that the entry names."""
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
            **memory_facts(self.exception),
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

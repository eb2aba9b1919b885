"""Reads Python tracebacks of many ranks in one file: each exception of a chain, and the program.

Python prints the exceptions of a chain from the first to the uncaught one, with a sentence between two of them
(traceback.py `_cause_message` and `_context_message`). Each gives an event. A TorchScript operation prints a traceback
within the exception's text (torch/csrc/jit/runtime/interpreter.cpp `handleError`: `The following operation failed in
the TorchScript interpreter.`, frames, `RuntimeError: ` and the failure). That last line is the exception. So is that
of the process in the text of `ProcessRaisedException` (torch/multiprocessing/spawn.py `join`: `-- Process 2 terminated
with the following error:`).
"""

from collections.abc import Iterator
from typing import Any

from msgspec import field
from msgspec.structs import replace

from megatron_monitor.parsers.declared.failures import (
    IMPORTS,
    exception_of,
    lost_peer,
    named_failure,
    role_of,
    signal_name,
    signal_of,
)
from megatron_monitor.parsers.engine.scan import Gatherer, Line, Rule
from megatron_monitor.parsers.events import Event, TracebackSeen
from megatron_monitor.parsers.patterns import lazy

_MAX_PENDING = 10_000
_TRACEBACK_LINES = 400  # lines after a header in which an exception line is searched: many ranks interleave
_IGNORED_LINES = 60
HEADER = "Traceback (most recent call last):"
_IGNORED = ("Exception ignored in", "Exception ignored while")
_CHAINS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
WRAPPER = "The following operation failed in the TorchScript interpreter."
# `  File "/x/pretrain_gpt.py", line 215, in <module>`; with `python -m` the frames of runpy precede it
_FILE = lazy(r'^[ ]{0,8}File "((?!<frozen |[^"]{0,200}/runpy\.py")[^"]{1,400})", line \d{1,7}')
# The first frame of an uncaught exception. A traceback that a handler prints begins at the handler's function.
_TOP_LEVEL = ", in <module>"


def _is_header(line: Line) -> bool:
    """Return True if a traceback begins at the start of the line or directly after another rank's exception
    (`RuntimeError: Traceback ...`).
    """
    text = line.text.strip()
    return text.startswith((HEADER, f": {HEADER}")) or (
        text.endswith(HEADER) and text[:1] not in "[{" and not text.startswith("traceback ")
    )


class TracebackGatherer(Gatherer):
    """Open while `pending` tracebacks have no exception line yet, from any rank. `writers` has the facts from each
    writer's frames so far. A header without an exception gives no event.
    """

    lines: int = 0
    pending: int = 1
    writers: dict[str, dict[str, Any]] = field(default_factory=dict)
    held: TracebackSeen | None = None
    """An exception that ends with its colon: its message is on the next line."""
    headless: bool = False
    """True if it has no header: the exception directly follows the frames. wandb's output.log loses headers, and Python
    prints none for a syntax error of the program itself.
    """

    @property
    def settles(self) -> bool:
        """True while an exception waits for its message."""
        return self.held is not None

    def close(self) -> list[Event]:
        """Return the exception that waits for its message."""
        held, self.held = self.held, None
        return [held] if held is not None else []

    def offer(self, line: Line) -> tuple[list[Event], bool, bool]:
        """End one of the tracebacks at an exception line. The rules may read the line as well."""
        held, self.held = self.held, None
        bare, same = line.text.strip(), held is not None and held.rank == line.origin.get("rank")
        if held is not None and same and bare and not bare.startswith((HEADER, *_CHAINS)):
            failure, peer = named_failure(held.exception, bare), lost_peer(held.exception, bare)
            held = replace(held, message=bare[:300], failure=failure, lost_peer=peer)
        found, taken, done = self._offer(line)
        return [held, *found] if held is not None else found, taken, done

    def _offer(self, line: Line) -> tuple[list[Event], bool, bool]:
        self.lines += 1
        text, bare = line.text, line.text.strip()
        writer = self.writers.setdefault(line.prefix.key, {})
        if HEADER in bare and _is_header(line):
            self.pending, self.lines = min(self.pending + (not writer.pop("carries", False)), _MAX_PENDING), 0
            return [], True, False
        if self._is_frame(text, bare, writer):
            return [], True, False
        if "iteration " in text and "elapsed time per iteration" in text:
            return [], False, True
        found = None if text.startswith(" ") or not self.pending else exception_of(bare)
        if found is None:
            over = not self.pending or self.lines > _TRACEBACK_LINES
            return [], False, over or (self.headless and not text.startswith(" "))
        self.lines = 0
        if found[1].startswith(WRAPPER):
            return [], False, False
        if found[0] == "ProcessRaisedException":
            writer["carries"] = True
            return [], False, False
        self.pending -= 1
        event = _seen(*found, line, writer)
        writer.clear()
        if bare.endswith(":") and event.role != "launcher":
            self.held = event
            return [], False, False
        return [event], False, not self.pending

    def _is_frame(self, text: str, bare: str, writer: dict[str, Any]) -> bool:
        """Note the facts of a frame about the program. Output of a program after the frame is ignored."""
        if writer.get("code") and text.startswith("    "):
            return True
        writer["code"] = bare.startswith('File "')
        if "script" not in writer and (match := _FILE.match(text)):
            writer["script"] = match[1]
        if bare.endswith(_TOP_LEVEL):
            writer["top_level"] = True
            return True
        return False


def _seen(exception: str, message: str, line: Line, writer: dict[str, Any]) -> TracebackSeen:
    """Return the event of an exception line. `writer` has the facts from the frames before it."""
    script, number = writer.get("script"), signal_of(message) if exception == "SignalException" else None
    return TracebackSeen(
        exception=exception,
        message=message if number is None else f"{message} ({signal_name(number)})",
        top_level=writer.get("top_level"),
        role=role_of(exception, message, script, line.text),
        failure=named_failure(exception, message),
        signal=number,
        optional=exception in IMPORTS,
        lost_peer=lost_peer(exception, message),
        **line.origin,
    )


class IgnoredGatherer(Gatherer):
    """`Exception ignored in: <function ...>`, since Python 3.14 `Exception ignored while calling deallocator ...`, and
    the lines after it: Python's clean-up failed, but no program ended.
    """

    lines: int = 0

    def offer(self, line: Line) -> tuple[list[Event], bool, bool]:
        """Take the traceback up to its exception line."""
        self.lines += 1
        text = line.text
        if self.lines == 1 and not _is_header(line):
            return [], False, True
        over = self.lines > _IGNORED_LINES or bool(not text.startswith(" ") and exception_of(text.strip()))
        return [], text.startswith(" ") or over or self.lines == 1, over


def open_traceback(line: Line) -> Iterator[Event | Gatherer]:
    """Open the first traceback of a group."""
    if _is_header(line):
        yield TracebackGatherer()
    elif (frame := _FILE.match(line.text)) and line.text.rstrip()[frame.end() :] in ("", _TOP_LEVEL):
        facts = {"script": frame[1], "top_level": True}
        yield TracebackGatherer(writers={line.prefix.key: facts}, headless=True)


def open_ignored(line: Line) -> Iterator[Event | Gatherer]:
    """Open an exception in a finalizer."""
    if line.text.strip().startswith(_IGNORED):
        yield IgnoredGatherer()


RULES: tuple[Rule, ...] = (
    Rule("pytorch.ignored", (b"Exception ignored ",), open_ignored, opens=IgnoredGatherer),
    Rule(
        "pytorch.traceback", (b"Traceback (most recent call last):", b", in <module>", b'", line '), open_traceback,
        opens=TracebackGatherer,
    ),
)  # fmt: skip

"""PyTorch and Python: CUDA errors, out of memory in every wording, tracebacks of many ranks in one file.

Frame lines (`frame #0: c10::Error::Error(...)`) hold the word Error and say nothing; advice in a traceback is no fact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from parsers.engine.fields import byte_size
from parsers.engine.scan import Gatherer, Line, Rule
from parsers.events import Event, Failure, FailureSeen, TracebackSeen

_MAX_PENDING = 10_000
_TRACEBACK_LINES = 400  # after a header in which an exception line is looked for: many ranks interleave
_IGNORED_LINES = 60
_SIZE = r"(\d{1,9}(?:\.\d{1,9})? ?[KMGT]i?B)"
# `CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total capacity; ...)`
# 2.1 on: `GPU 0 has a total capacty of 23.65 GiB of which ...` (misspelt), `total capacity` since 2.2
_OOM = re.compile(r"(?:CUDA|HIP|XPU) out of memory|(?:CUDA|HIP) error: out of memory|\bOutOfMemoryError\b")
_TRIED = re.compile(r"Tried to allocate " + _SIZE)
_CAPACITY = re.compile(r"(?:total capac\w{1,4} of " + _SIZE + r"|" + _SIZE + r" total capacity)")
# `CUDA error: uncorrectable ECC error encountered`, `cudaErrorECCUncorrectable`
_ECC = re.compile(r"uncorrectable ECC error|cudaErrorECCUncorrectable")
# `CUDA error: an illegal memory access was encountered`, `HIP error: ...`, `cudaErrorLaunchFailure`
_CUDA = re.compile(r"\b(?:CUDA|HIP) error: [^\n]{3,200}|\bcudaError[A-Z]\w{3,60}|CUBLAS_STATUS_(?!SUCCESS)\w{3,40}")
# NCCL's own words for CUDA's: `NCCL WARN Cuda failure 2 'out of memory'`; without the warning under an exception
_INSIDE = re.compile(r"\b(?:Cuda|CUDA|HIP) failure (?:\d{1,4} )?'(.{3,200})'")
_FRAME = re.compile(r"^[ ]{0,4}frame #\d{1,4}:")
_ADVICE = (
    "For debugging consider passing",
    "CUDA kernel errors might be asynchronously",
    "Compile with `TORCH_USE_CUDA_DSA`",
)
# `DataLoader worker (pid 30882) is killed by signal: Bus error.`
_WORKER = re.compile(
    r"DataLoader worker \(pid\(?s?\)? ?[\d, ]{1,80}\) "
    r"(?:is killed by signal|exited unexpectedly)(?:: ([A-Za-z ]{3,40}))?"
)
_WORKER_ENDS: tuple[tuple[str, Failure], ...] = (("bus", "bus_error"), ("seg", "segfault"), ("kill", "killed"))
_BUS = "Unexpected bus error encountered in worker"

_IGNORED = ("Exception ignored in", "Exception ignored while")
_HEADER = "Traceback (most recent call last):"
# `  File "/x/pretrain_gpt.py", line 215, in <module>`
_FILE = re.compile(r'^[ ]{0,8}File "([^"]{1,400})", line \d{1,7}')
# The first frame of what nobody caught; a traceback that a handler prints begins at the handler's function.
_TOP_LEVEL = ", in <module>"
# `RuntimeError: message`, `torch.cuda.OutOfMemoryError: ...`, `KeyboardInterrupt`
_EXCEPTION = re.compile(
    r"^(?:\w{1,60}\.){0,8}(\w{0,60}(?:Error|Exception|Interrupt|Exit|Failure|Timeout|Expired|Iteration))"
    r"(?::[ ]?(.{0,1000}))?$"
)


def read_cuda(line: Line) -> Iterator[Event]:
    """Out of memory, ECC, and every other CUDA error."""
    text = line.text
    if _FRAME.match(text) or any(words in text for words in _ADVICE) or "NCCL INFO" in text:
        return
    message = text.strip()[:500]
    if inside := _INSIDE.search(text):
        kind: Failure = "cuda_oom" if "out of memory" in inside[1] else "ecc" if "ECC" in inside[1] else "cuda_error"
        # a warning may be of a try that NCCL repeats another way
        yield FailureSeen(failure=kind, message=message, fatal="NCCL WARN" not in text, **line.origin)
    elif _OOM.search(text):
        tried, capacity = _TRIED.search(text), _CAPACITY.search(text)
        yield FailureSeen(
            failure="cuda_oom",
            message=message,
            requested_bytes=byte_size(tried[1]) if tried else None,
            device_bytes=byte_size(capacity[1] or capacity[2]) if capacity else None,
            **line.origin,
        )
    elif _ECC.search(text):
        yield FailureSeen(failure="ecc", message=message, **line.origin)
    elif _CUDA.search(text):
        yield FailureSeen(failure="cuda_error", message=message, **line.origin)


def read_worker(line: Line) -> Iterator[Event]:
    """A DataLoader worker died."""
    match = _WORKER.search(line.text)
    if match:
        how = (match[1] or "").strip().lower()
        failure: Failure = next((name for word, name in _WORKER_ENDS if word in how), "unknown")
        yield FailureSeen(failure=failure, message=line.text.strip()[:500], **line.origin)
    elif _BUS in line.text:
        yield FailureSeen(failure="bus_error", message=line.text.strip()[:500], **line.origin)


def _is_header(line: Line) -> bool:
    """At the start of the line, or glued behind an exception of another rank (`RuntimeError: Traceback ...`)."""
    text = line.text.strip()
    return text.startswith((_HEADER, f": {_HEADER}")) or (text.endswith(_HEADER) and text[:1] not in "[{")


@dataclass(slots=True)
class TracebackGatherer:
    """Open while `pending` tracebacks wait for their exception line, whichever rank writes it."""

    script: str | None = None
    lines: int = 0
    pending: int = 1
    top_level: bool = False

    def offer(self, line: Line) -> tuple[list[Event], bool, bool]:
        """An exception line ends one of the tracebacks; the rules may read it too."""
        self.lines += 1
        text = line.text
        if _is_header(line):
            self.pending, self.lines = min(self.pending + 1, _MAX_PENDING), 0
            return [], True, False
        if self.script is None and (match := _FILE.match(text)):
            self.script = match[1]
        if text.rstrip().endswith(_TOP_LEVEL):
            self.top_level = True
        if "iteration " in text and "elapsed time per iteration" in text:
            return [], False, True
        match = None if text.startswith(" ") else _EXCEPTION.match(text.strip())
        if match is None:
            return [], False, self.lines > _TRACEBACK_LINES
        message, script, top_level = (match[2] or "").strip()[:500], self.script, self.top_level or None
        self.script, self.top_level = None, False
        self.pending -= 1
        event = TracebackSeen(exception=match[1], message=message, script=script, top_level=top_level, **line.origin)
        return [event], False, self.pending <= 0

    def close(self) -> list[Event]:
        """A header without its exception is no fact."""
        return []


@dataclass(slots=True)
class IgnoredGatherer:
    """`Exception ignored in: <function ...>`, from Python 3.14 on `Exception ignored while calling deallocator ...`,
    and what follows it: Python's clean-up complained, nothing ended.
    """

    lines: int = 0

    def offer(self, line: Line) -> tuple[list[Event], bool, bool]:
        """Swallow the traceback, to its exception line."""
        self.lines += 1
        text = line.text
        if self.lines == 1 and not _is_header(line):
            return [], False, True
        over = self.lines > _IGNORED_LINES or bool(not text.startswith(" ") and _EXCEPTION.match(text.strip()))
        return [], text.startswith(" ") or over or self.lines == 1, over

    def close(self) -> list[Event]:
        """Nothing is told."""
        return []


def open_traceback(line: Line) -> Iterator[Event | Gatherer]:
    """The first traceback of a group."""
    if _is_header(line):
        yield TracebackGatherer()


def open_ignored(line: Line) -> Iterator[Event | Gatherer]:
    """Python's word for an exception in a finalizer."""
    if line.text.strip().startswith(_IGNORED):
        yield IgnoredGatherer()


def read_signal(line: Line) -> Iterator[Event]:
    """Torchrun's word for a process that it ended itself."""
    if "Signal 15 (SIGTERM) received" in line.text:
        yield FailureSeen(failure="killed", message=line.text.strip()[:300], consequence=True, **line.origin)


RULES: tuple[Rule, ...] = (
    Rule("pytorch.worker", (b"DataLoader worker (pid", b"bus error encountered in worker"), read_worker),
    Rule(
        "pytorch.cuda",
        (
            b" out of memory",
            b"OutOfMemoryError",
            b"CUDA error",
            b"HIP error",
            b"cudaError",
            b"ECC error",
            b"CUBLAS_STATUS_",
            b"Cuda failure",
            b"CUDA failure",
            b"HIP failure",
        ),
        read_cuda,
    ),
    Rule("pytorch.ignored", (b"Exception ignored ",), open_ignored),
    Rule("pytorch.traceback", (b"Traceback (most recent call last):",), open_traceback),
    Rule("pytorch.signal", (b"Signal 15 (SIGTERM)",), read_signal),
)
GATHERERS = {"pytorch.traceback": TracebackGatherer, "pytorch.ignored": IgnoredGatherer}

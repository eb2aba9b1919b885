"""PyTorch and Python: CUDA errors, out of memory in every wording, tracebacks of many ranks in one file.

Frame lines (`frame #0: c10::Error::Error(...)`) hold the word Error and say nothing; advice in a traceback is no fact.
"""

from collections.abc import Iterator

from parsers.engine.scan import Line, Rule
from parsers.events import Event, FailureSeen
from parsers.formats.exceptions import DISK, cuda_failure, memory_told, worker_failure
from parsers.formats.tracebacks import IgnoredGatherer, TracebackGatherer, open_ignored, open_traceback
from parsers.patterns import lazy

_FRAME = lazy(r"^[ ]{0,4}frame #\d{1,4}:")
_ADVICE = (
    "For debugging consider passing",
    "CUDA kernel errors might be asynchronously",
    "Compile with `TORCH_USE_CUDA_DSA`",
)
_BUS = "Unexpected bus error encountered in worker"


def read_cuda(line: Line) -> Iterator[Event]:
    """Out of memory, ECC, and every other CUDA error."""
    text = line.text
    if _FRAME.match(text) or any(words in text for words in _ADVICE) or "NCCL INFO" in text:
        return
    kind = cuda_failure(text)
    if kind is None:
        return
    yield FailureSeen(
        failure=kind,
        message=text.strip()[:500],
        fatal="NCCL WARN" not in text,  # such a warning may be of a try that NCCL repeats another way
        **memory_told(text),
        **line.origin,
    )


def read_worker(line: Line) -> Iterator[Event]:
    """A DataLoader worker died."""
    failure = worker_failure(line.text) or ("bus_error" if _BUS in line.text else None)
    if failure is not None:
        yield FailureSeen(failure=failure, message=line.text.strip()[:500], **line.origin)


def read_disk(line: Line) -> Iterator[Event]:
    """A disk or a quota is full. What `inotify` says in these words is of watches: of those a user may have few."""
    if DISK.search(line.text) and "inotify" not in line.text:
        yield FailureSeen(failure="disk_full", message=line.text.strip()[:500], **line.origin)


RULES: tuple[Rule, ...] = (
    Rule("pytorch.worker", (b"DataLoader worker (pid", b"bus error encountered in worker"), read_worker),
    Rule(
        "pytorch.cuda",
        (b" out of memory", b"OutOfMemoryError", b"CUDA error", b"HIP error", b"cudaError", b"ECC error",
         b"CUBLAS_STATUS_", b"Cuda failure", b"CUDA failure", b"HIP failure", b"Triton Error",
         b"Out of memory error on "),
        read_cuda,
    ),
    Rule("pytorch.ignored", (b"Exception ignored ",), open_ignored, opens=IgnoredGatherer),
    Rule(
        "pytorch.traceback", (b"Traceback (most recent call last):", b", in <module>"), open_traceback,
        opens=TracebackGatherer,
    ),
    Rule(
        "system",
        (b"No space left on device", b"inline_container.cc", b"Disk quota exceeded", b"iostream error"),
        read_disk,
    ),
)  # fmt: skip

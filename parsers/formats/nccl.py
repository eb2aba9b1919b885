"""NCCL and PyTorch's watchdog over it. The same text appears several times a rank: ranks are counted, not lines.

`[Rank N]` inside the text is the rank in its process group, `[rankN]:` before it the global one.
"""

from collections.abc import Iterator

from parsers.engine.fields import number
from parsers.engine.scan import Line, Rule
from parsers.events import Event, FailureSeen, WatchdogTimedOut
from parsers.formats.exceptions import NCCL, cuda_failure
from parsers.patterns import lazy

# `[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=469508, OpType=ALLREDUCE,
#  Timeout(ms)=1800000) ran for 1802212 milliseconds before timing out.`
_WATCHDOG = lazy(r"(?:\[Rank (\d{1,7})\] )?Watchdog caught collective operation timeout: WorkNCCL\(")
_SEQUENCE = lazy(r"SeqNum=(\d{1,15})")
_OPERATION = lazy(r"OpType=(\w{1,40})")
_TIMEOUT = lazy(r"Timeout\(ms\)=(\d{1,12})")
_RAN = lazy(r"ran for (\d{1,12}) milliseconds")
_GROUP = lazy(r"PG (?:ID \d{1,6} )?PG? ?GUID (\S{1,80})")
_FOLLOWERS = ("terminated with exception", "what():", "Exception raised from")
# `Process group watchdog thread terminated with exception`, `Some NCCL operations have failed or timed out.`
_AFTER = lazy(
    r"watchdog thread terminated with exception|NCCL operations have failed or timed out"
    r"|NCCL watchdog thread terminated(?! normally)|Terminating the process after attempting to dump debug info"
)
# gloo: `[..pair.cc:598] Connection closed by peer [10.0.0.1]:1234`; c10d: `sendBytes failed on SocketImpl(...)`
_LOST = lazy(
    r"Connection (?:closed|reset) by peer \[|recvValue failed on|sendBytes failed on SocketImpl"
    r"|RuntimeError: \[\S{1,200}gloo"
)


def read_watchdog(line: Line) -> Iterator[Event]:
    """The first report of a timeout by a rank; what repeats it is a follower."""
    text = line.text
    match = _WATCHDOG.search(text)
    if not match:
        if _AFTER.search(text):
            cause = cuda_failure(text) or "nccl"  # the watchdog is the first that hears of an asynchronous error
            yield FailureSeen(failure=cause, message=text.strip()[:300], consequence=True, **line.origin)
        return
    before = text[: match.start()]
    if any(words in before for words in _FOLLOWERS):
        yield FailureSeen(failure="nccl", message=text[match.start() :][:300], consequence=True, **line.origin)
        return
    details = text[match.start() :]
    timeout, ran = _TIMEOUT.search(details), _RAN.search(details)
    sequence, operation, group = _SEQUENCE.search(details), _OPERATION.search(details), _GROUP.search(before)
    yield WatchdogTimedOut(
        group_rank=int(match[1]) if match[1] else None,
        group=group[1] if group else None,
        sequence=int(sequence[1]) if sequence else None,
        operation=operation[1] if operation else None,
        timeout_seconds=(number(timeout[1]) or 0.0) / 1000 if timeout else None,
        waited_seconds=(number(ran[1]) or 0.0) / 1000 if ran else None,
        **line.origin,
    )


def read_error(line: Line) -> Iterator[Event]:
    """Errors that NCCL or its process group raised. `NCCL INFO` is noise even when it contains the word."""
    text = line.text
    if "NCCL INFO" in text or "NCCL WARN" in text:
        return
    if NCCL.search(text):
        yield FailureSeen(failure="nccl", message=text.strip()[:300], **line.origin)
    elif _LOST.search(text):
        yield FailureSeen(failure="nccl", message=text.strip()[:300], fatal=False, consequence=True, **line.origin)


RULES: tuple[Rule, ...] = (
    Rule(
        "nccl.watchdog",
        (b"Watchdog caught collective", b"watchdog thread terminated", b"NCCL operations have failed",
         b"Terminating the process after"),
        read_watchdog,
    ),
    Rule(
        "nccl.error",
        (b"NCCL error in", b"ncclSystemError", b"ncclInternalError", b"ncclUnhandledCudaError", b"ncclRemoteError",
         b"ncclInvalidUsage", b"DistBackendError", b"by peer [", b"recvValue failed", b"sendBytes failed", b"gloo"),
        read_error,
    ),
)  # fmt: skip

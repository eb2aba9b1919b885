"""The operating system: memory killer, full disks, signals, the NVIDIA driver's Xid lines."""

from __future__ import annotations

import re
from collections.abc import Iterator

from parsers.engine.scan import Line, Rule
from parsers.events import Event, Failure, FailureSeen

# `NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping`
_XID = re.compile(r"NVRM: Xid \(([^)]{1,60})\): (\d{1,4})")
_XID_FAILURES: dict[int, Failure] = {
    48: "ecc",
    63: "ecc",
    64: "ecc",
    92: "ecc",
    94: "ecc",
    95: "ecc",
    79: "node_failure",
}
# `Out of memory: Killed process 1234 (python3)`, `Memory cgroup out of memory: Kill process 1234`
_OOM_KILLER = re.compile(
    r"[Oo]ut of memory: Kill(?:ed)? process (\d{1,10})|invoked oom-killer|oom_reaper: reaped process"
)
# `OSError: [Errno 28] No space left on device`, `[Errno 122] Disk quota exceeded`
# `[enforce fail at inline_container.cc:672] . unexpected pos 2816 vs 2710`, and before it in torch 2.13
# `RuntimeError: basic_ios::clear: iostream error`: torch.save could not write, and does not say why; a full
# disk or quota it is in nearly all reports
DISK = re.compile(
    r"No space left on device|Disk quota exceeded|^RuntimeError: basic_ios::clear: iostream error$"
    r"|inline_container\.cc:\d{1,5}\] ?\.? ?(?:unexpected pos|PytorchStreamWriter failed writing file)"
)
# `Segmentation fault (core dumped)`, `Fatal Python error: Segmentation fault`, `*** Process received signal ***` of MPI
_SEGFAULT = re.compile(
    r"Segmentation fault(?: \(core dumped\)|$|\s*$)|Fatal Python error: Segmentation fault|Signal: Segmentation fault"
    r"|Caught signal 11 \(Segmentation fault"  # `[n1:4242:0:4242] Caught signal 11 (Segmentation fault: ...)` of UCX
)
_BUS = re.compile(
    r"^(?:Fatal Python error: )?Bus error(?: \(core dumped\))?\s*$|Signal: Bus error \(|Caught signal 7 \(Bus error"
)
# `  what():  std::bad_alloc` of C++; `2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed
# due to other reasons at node` of Ray's daemon, which may start them anew
_BAD_ALLOC = re.compile(r"what\(\):[ ]{1,4}std::bad_alloc|an instance of 'std::bad_alloc'")
_RAY = re.compile(r"[1-9]\d{0,5} Workers? \(tasks / actors\) killed due to memory pressure \(OOM\)")


def read_system(line: Line) -> Iterator[Event]:
    """What the system or the driver says of the process."""
    text = line.text
    message = text.strip()[:500]
    if match := _XID.search(text):
        failure = _XID_FAILURES.get(int(match[2]), "cuda_error")
        # the driver reports more than kills a run: the run's own lines say whether it ended
        yield FailureSeen(failure=failure, message=message, fatal=False, by="driver", notice="xid", **line.origin)
    elif _OOM_KILLER.search(text):
        yield FailureSeen(failure="host_oom", message=message, by="kernel", **line.origin)
    elif _BAD_ALLOC.search(text):
        yield FailureSeen(failure="host_oom", message=message, **line.origin)
    elif _RAY.search(text):
        yield FailureSeen(failure="host_oom", message=message, fatal=False, **line.origin)
    elif DISK.search(text):
        yield FailureSeen(failure="disk_full", message=message, **line.origin)
    elif _SEGFAULT.search(text):
        yield FailureSeen(failure="segfault", message=message, **line.origin)
    elif _BUS.search(text):
        yield FailureSeen(failure="bus_error", message=message, **line.origin)


RULES: tuple[Rule, ...] = (
    Rule(
        "system",
        (b"NVRM: Xid", b"ut of memory: Kill", b"oom-killer", b"oom_reaper", b"No space left on device",
         b"inline_container.cc", b"Disk quota exceeded", b"iostream error", b"Segmentation fault", b"Bus error",
         b"std::bad_alloc", b"due to memory pressure (OOM)"),
        read_system,
    ),
)  # fmt: skip

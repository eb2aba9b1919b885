"""Environment variables that dumps and traces show: an allow-list, never a wildcard, since secrets stand beside them.

Advice is no evidence: `For debugging consider passing CUDA_LAUNCH_BLOCKING=1.` stands in every CUDA traceback.
"""

from collections.abc import Iterator

from megatron_monitor.parsers.engine.scan import Line, Rule
from megatron_monitor.parsers.events import EnvironmentVariableSeen, Event
from megatron_monitor.parsers.formats import TABLES
from megatron_monitor.parsers.patterns import lazy

ALLOWED = frozenset[str](TABLES["environment"]["allowed"])
_VALUE = r"""(?:"([^"\n]{0,200})"|'([^'\n]{0,200})'|([^\s;"']{0,200}))"""
# `+ export CUDA_LAUNCH_BLOCKING=1`, `++ NCCL_DEBUG=info`, `export NCCL_DEBUG=INFO`, `declare -x OMP_NUM_THREADS="8"`,
# `NCCL_DEBUG=INFO` alone, launch.py's `0 NCCL_IB_DISABLE=1` (node rank), `SLURM_JOB_ID: 12` is none.
_ASSIGNMENT = lazy(
    r"^[ ]{0,4}(?:\+{1,6}[ ])?(?:\d{1,5}[ ])?(?:export[ ]|declare -x[ ]|setenv[ ])?([A-Z][A-Z0-9_]{2,60})[=]"
    + _VALUE
    + r"[ ]{0,4};?[ ]{0,4}$"
)
# `cmd = pdsh -S -f 1024 -w h1,h2 export NCCL_DEBUG=INFO; export PYTHONPATH=...; cd ...` of DeepSpeed's runner
_EXPORTS = lazy(r"\bexport ([A-Z][A-Z0-9_]{2,60})=" + _VALUE + r"[ ]{0,2};")
# `NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0`
_NCCL = lazy(r"NCCL INFO (NCCL_[A-Z0-9_]{2,50}) set by environment to (\S{1,200})")


def read_variables(line: Line) -> Iterator[Event]:
    """Assignments of allowed names, where they are assignments and not prose."""
    text = line.text
    match = _ASSIGNMENT.match(text)
    if match:
        yield from _seen(line, match[1], match[2] or match[3] or match[4] or "")
        return
    if "cmd = " in text[:40] or text.startswith("cmd ="):
        for found in _EXPORTS.finditer(text[:20_000]):
            yield from _seen(line, found[1], found[2] or found[3] or found[4] or "")
        return
    match = _NCCL.search(text)
    if match:
        yield from _seen(line, match[1], match[2].rstrip("."))


def _seen(line: Line, name: str, value: str) -> Iterator[Event]:
    if name in ALLOWED and "$" not in value:  # an unexpanded variable says nothing
        yield EnvironmentVariableSeen(name=name, value=value, **line.origin)


RULES: tuple[Rule, ...] = (
    Rule(
        "environment",
        (b"CUDA_", b"NCCL_", b"TORCH_", b"PYTORCH_", b"OMP_NUM_THREADS=", b"PYTHONUNBUFFERED=", b"SLURM_", b"NVTE_",
         b"PYTHONFAULTHANDLER=", b"HSA_FORCE", b"GPU_MAX_HW", b" MSIZE=", b" MODEL_SIZE="),
        read_variables,
    ),
)  # fmt: skip

"""The consistency checks by code, and what a check that failed gives.

docs/checks.md is written from `CHECKS` (`make readme`); `check-config` quotes it for `detectors.configuration.ignore`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Severity = Literal["info", "warning", "critical"]
RANK: dict[str, int] = {"info": 0, "warning": 1, "critical": 2}


class Check(NamedTuple):
    """One check: a short name, the rule that must hold, and where a failure is shown."""

    name: str
    rule: str
    shown: str = "incident `configuration`, `report`"


_INCIDENT = Check._field_defaults["shown"]
_BOTH = f"{_INCIDENT}, `compare`"

CHECKS: dict[str, Check] = {
    "K01": Check("columns", "A value stands in the column of its unit", "not needed: values are read by their names"),
    "K02": Check("world size", "TP x PP x DP (x CP) is the world size"),
    "K03": Check("nodes", "Nodes x processes per node are enough for the world size"),
    "K04": Check("batch", "The global batch size is a multiple of micro batch x DP; micro batches fit it"),
    "K05": Check("layers", "The layers divide among the pipeline stages, and no stage is empty"),
    "K06": Check("tensor parallelism", "TP divides heads and hidden size, heads divide hidden size, TP fits a node"),
    "K07": Check("model size", "Arguments and counted parameters agree; the MLP is 2 to 8 times the hidden size"),
    "K08": Check("TFLOPs formula", "Printed TFLOPs follow from the arguments by the newest formula of the program"),
    "K09": Check("samples per second", "Printed samples per second are batch size over time per iteration, within 1 %"),
    "K10": Check("consumed samples", "Consumed samples grow by the batch size in each iteration"),
    "K11": Check("implied size", "The model size that the printed TFLOPs imply is that of the arguments, within 1 %"),
    "K12": Check("TFLOPs ratio", "Printed TFLOPs are not off by a known factor: 2 (sequence), 8 (per node), 1000 (ms)"),
    "K13": Check("exchanged figures", "Seconds and TFLOPs of two equal configurations are not exchanged", "`report`"),
    "K14": Check("repeatability", "Repeats of one configuration differ by 5 % at most", "`report`"),
    "K15": Check("batch scaling", "Time grows with the micro batches as filling the pipeline explains", _BOTH),
    "K16": Check("memory", "End stages need little more memory than the others; a larger micro batch needs no less"),
    "K17": Check("GPU peak", "Printed TFLOPs are below what the GPU can do"),
    "K18": Check("comparability", "Rows of a table share formula, dtype, software, nodes and environment", "`report`"),
    "K20": Check("kernel shapes", "Hidden size is a multiple of 128, head size of 8; the fused softmax can be used"),
    "K21": Check("ramp-up", "Each batch size of a ramp-up is a multiple of micro batch x DP; the last is reached"),
    "K22": Check("aggregate", "PFLOPs of a run are TFLOPs per GPU x GPUs / 1024", "`report`, its column PFLOPs"),
    "K23": Check("time left", "Days are iterations x seconds per iteration", "`report --iterations`, page"),
    "K24": Check("silence", "Progress goes on", "incident `hang`"),
    "K25": Check("precision", "A loss scale of 1.0 is bf16's and no collapse", "incident `loss_scale_collapse`"),
    "K26": Check("absent values", "A field that a line lacks is unknown; a lost loss is NaN", "incident `nan_loss`"),
    "K27": Check("bubble", "Pipeline stages wait less than 10 % of the time"),
    "K28": Check("warm-up", "First iterations of a launch count for no median", "`report`, incident `slowdown`"),
}  # fmt: skip
IGNORABLE: tuple[str, ...] = tuple(code for code, check in CHECKS.items() if check.shown.startswith(_INCIDENT))
"""The checks that the incident `configuration` shows: `detectors.configuration.ignore` may leave them out."""
GONE = frozenset({"K19"})
"""Guesses that were checks once: who leaves them out is right still."""


def described(code: str) -> str:
    """The code with its rule, for a message."""
    check = CHECKS[code]
    return f"{code} ({check.name}): {check.rule}"


def not_ignorable(code: str) -> str:
    """Why `code` cannot be left out, and what can."""
    close = code.strip().upper()
    if close in IGNORABLE:
        return f"expected a code such as {close}, got {code!r}; {described(close)}"
    if close in CHECKS:
        return f"{described(close)}; it is shown by {CHECKS[close].shown} and cannot be left out here"
    known = ", ".join(f"{code} {CHECKS[code].name}" for code in IGNORABLE)
    return f"there is no check {code!r}; known: {known} (docs/checks.md)"


@dataclass(frozen=True, slots=True)
class Finding:
    """A check that failed: its code, how bad it is, a sentence, and the figures behind the sentence.

    `info` is worth knowing, `warning` is wrong or wasteful, `critical` will stop the run later. `about` separates two
    findings of one check.
    """

    check: str
    severity: Severity
    message: str
    about: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Names the finding whatever its figures are now: code and `about`."""
        return f"{self.check} {self.about}".rstrip()

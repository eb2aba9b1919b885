"""The consistency checks by code, and what a check that failed gives.

docs/checks.md is written from `CHECKS` (`make readme`); `check-config` quotes it for `detectors.configuration.ignore`.
"""

from typing import Any, Literal, NamedTuple

from msgspec import Struct, field

from megatron_monitor.model.tables import rows_of

Severity = Literal["info", "warning", "critical"]
RANK: dict[str, int] = {"info": 0, "warning": 1, "critical": 2}


class Check(NamedTuple):
    """One check: a short name, the rule that must hold, and where a failure is shown."""

    name: str
    rule: str
    shown: str


CHECKS = {
    code: Check(*told) for code, *told in rows_of("megatron_monitor.audit", "checks.csv", tuple[str, str, str, str])
}
"""By code; one that is not needed, or belongs to another incident, stands there for whoever looks for it."""
IGNORABLE: tuple[str, ...] = tuple(
    code for code, check in CHECKS.items() if check.shown.startswith("incident `configuration`")
)
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


class Finding(Struct, frozen=True):
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

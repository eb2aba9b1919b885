"""What a consistency check answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["info", "warning", "critical"]
RANK: dict[str, int] = {"info": 0, "warning": 1, "critical": 2}


@dataclass(frozen=True, slots=True)
class Finding:
    """`check` is the rule's number (K02); `about` tells two findings of one rule apart; `message` is for a person.

    `info` is worth knowing, `warning` is wrong or wasteful, `critical` will stop the run later.
    """

    check: str
    severity: Severity
    message: str
    about: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The same finding has the same key, whatever its figures are now."""
        return f"{self.check} {self.about}".rstrip()

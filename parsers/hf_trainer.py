"""Not written yet."""

from __future__ import annotations

from parsers.scan import Rule

RULES: tuple[Rule, ...] = ()

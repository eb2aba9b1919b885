"""The configuration's own patterns as parser rules."""

from __future__ import annotations

from monitor.config import Config
from parsers.engine.scan import Rule


def custom_rules(config: Config) -> tuple[Rule, ...]:
    """One rule a pattern; the configuration has checked them already."""
    if not config.patterns:
        return ()
    from parsers.formats.custom import compile_patterns  # it brings the regex library, which few configurations need

    return compile_patterns(config.patterns)

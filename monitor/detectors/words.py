"""Figures as a person reads them in a sentence."""

from __future__ import annotations


def spoken(seconds: float) -> str:
    """A duration in the one unit that says enough: `38 s`, `12 min`, `2.9 h`, `3.4 days`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86400:.1f} days"

"""Counts as people write them: `104B`, `350M`, `400B` tokens."""

from __future__ import annotations

from typing import Any

import click

_SCALES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


class Count(click.ParamType[int]):
    """`104B`, `1.3B`, `350M`, or a plain count."""

    name = "COUNT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The count."""
        if isinstance(value, int):
            return value
        text = str(value).strip().upper()
        scale = _SCALES.get(text[-1:])
        try:
            number = float(text[:-1]) * scale if scale else float(text)
        except ValueError:
            number = 0.0
        if not 1 <= number < 1e18:
            self.fail(f"{value!r} is no count; write 104B, 350M or 104e9", param, ctx)
        return round(number)

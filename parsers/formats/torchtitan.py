"""torchtitan: that a step was made and that the training is done; its figures are not read."""

from __future__ import annotations

import re
from collections.abc import Iterator

from parsers.engine.prefixes import iso_time
from parsers.engine.scan import Line, Rule
from parsers.events import CustomProgressLogged, Event, MilestoneReached

# `[titan] 2026-05-10 01:53:58,756 - root - INFO - step: 1199  loss:  1.38383  grad_norm:  0.0369  memory: ...`
_LINE = re.compile(
    r"^\[titan\] (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{1,6}) - \w{1,40} - INFO - "
    r"(?:(step:[ ]{1,12}\d{1,12}[ ]{1,4}loss:)|Training completed)"
)


def read_line(line: Line) -> Iterator[Event]:
    """A step, or the end."""
    match = _LINE.match(line.text)
    if match:
        origin = {**line.origin, "logged_at": iso_time(match[1])}
        if match[2]:
            yield CustomProgressLogged(name="torchtitan", **origin)
        else:
            yield MilestoneReached(milestone="training_done", **origin)


RULES: tuple[Rule, ...] = (Rule("torchtitan", (b"[titan] ",), read_line),)

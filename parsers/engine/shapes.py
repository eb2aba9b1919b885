"""Lines that differ in their digits alone: read one with care, the next ones by its plan (plans.py).

A line's shape is the line with every digit as `0`: lines of one shape have their numbers at the same places. A plan
is used only after it gave the same event as the careful reading for the line itself and for two lines with other
digits. Whatever a plan cannot say (NaN, zeros in front, a number beyond its type) is read with care each time. Only
rules whose lines come in thousands have plans: those with spans (speakers.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from parsers.engine.plans import SHAPE, Plan, planned
from parsers.events import Event
from parsers.formats.registry import SPANS

Answer: TypeAlias = list[tuple[str, Event]]
"""(rule, event) of everything that a line says."""

_OTHER_DIGITS = [bytes.maketrans(b"0123456789", digits) for digits in (b"1234567891", b"3141592653")]
_MAX_SHAPES = 2000  # a run has some ten to a hundred, of 1 kB each
_MANY = 100
_MAX_BYTES = 4000  # the longest real iteration line has 700


class Shapes:
    """The plans known so far; None for a shape that has none. A memo: what it holds changes no result."""

    def __init__(self) -> None:
        self._plans: dict[bytes, Plan | None] = {}
        self._seen: dict[bytes, int] = {}

    def plan(self, raw: bytes) -> Plan | None:
        """The plan for a line, if its shape has one."""
        return self._plans.get(raw.translate(SHAPE))

    def read(self, raw: bytes) -> tuple[str, Event] | None:
        """(the rule, the event) of a line whose shape is known. Such a line holds no line end and no NUL."""
        plan = self._plans.get(raw.translate(SHAPE))
        event = plan.read(raw) if plan is not None else None
        return None if plan is None or event is None else (plan.rule, event)

    def learn(self, raw: bytes, answer: Answer, read: Callable[[bytes], Answer]) -> None:
        """`answer` is what the careful reading `read` gave for the line. The second line of a shape makes its plan; the
        more there are, the more lines must ask for one: to prove it takes as long as to read twenty.
        """
        if len(answer) != 1 or answer[0][0] not in SPANS or len(raw) > _MAX_BYTES:
            return
        shape = raw.translate(SHAPE)
        if shape in self._plans:
            return
        seen = self._seen.pop(shape, 0) + 1
        if seen < 2 + len(self._plans) // _MANY:
            if len(self._seen) >= _MAX_SHAPES:
                self._seen.clear()
            self._seen[shape] = seen
            return
        if len(self._plans) >= _MAX_SHAPES:
            self._plans.clear()
        self._plans[shape] = _proved(raw, answer, read)


def _proved(raw: bytes, answer: Answer, read: Callable[[bytes], Answer]) -> Plan | None:
    plan = planned(raw, *answer[0])
    if plan is None or plan.read(raw) is None or not _agrees(plan, raw, answer):
        return None
    others = [raw.translate(digits) for digits in _OTHER_DIGITS]
    return plan if all(_agrees(plan, other, read(other)) for other in others) else None


def _agrees(plan: Plan, raw: bytes, answer: Answer) -> bool:
    event = plan.read(raw)
    if event is None:
        return True
    return [(plan.rule, repr(event))] == [(rule, repr(item)) for rule, item in answer]  # repr knows 1 from 1.0

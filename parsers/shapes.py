"""Lines that differ in their digits alone: read one with care, the next ones by its plan (plans.py).

A line's shape is the line with every digit as `0`: lines of one shape have their numbers at the same places. A plan
is used only after it gave the same event as the careful reading for the line itself and for two lines with other
digits. Whatever a plan cannot say (NaN, zeros in front, a number beyond its type) is read with care each time. Only
rules whose lines come in thousands have plans: those with spans (speakers.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from parsers.events import Event
from parsers.plans import SHAPE, Plan, planned
from parsers.scan import Candidates
from parsers.speakers import SPANS

Answer: TypeAlias = list[tuple[str, Event]]
"""(rule, event) of everything that a line says."""

Aside: TypeAlias = list[tuple[int, bytes, str, Event]]
"""Lines that are kept aside: (where it begins, its bytes, rule, event)."""

_OTHER_DIGITS = [bytes.maketrans(b"0123456789", digits) for digits in (b"1234567891", b"3141592653")]
_NEWLINE = 10
_MAX_SHAPES = 2000  # a run has some ten to a hundred, of 1 kB each
_MANY = 100
_MAX_BYTES = 4000  # the longest real iteration line has 700


class Gathered(NamedTuple):
    """Lines for a stretch: where each begins, its bytes, its plan."""

    starts: list[int]
    lines: list[bytes]
    plans: list[Plan]


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

    def gather(
        self, candidates: Candidates, start: int, end: int, plan: Plan, inert: Callable[[Event], bool]
    ) -> tuple[Gathered, Aside, int]:
        """The line at [start, end), which `plan` reads, and the candidates after it that have plans of its layout;
        lines among them of which another plan gives an inert event, aside; and where the last of all these ends.
        """
        data, hits, plan_of, shape, layout = candidates.data, candidates.hits, self._plans.get, SHAPE, plan.layout
        find, rfind, size = data.find, data.rfind, len(data)
        starts, lines, plans = gathered = Gathered([start], [data[start:end]], [plan])
        aside: Aside = []
        position = end + 1
        before, length, known = 0, size, b""  # of the last row: bytes before its hit, its length, its shape
        for index in range(candidates.next, len(hits)):
            place = hits[index][0]
            if place < position:
                continue
            start = place - before
            end = start + length
            # Most lines have the shape of the one before: then it is known where they begin and end.
            at_start = start == position or (start > position and data[start - 1] == _NEWLINE)
            if at_start and end < size and data[end] == _NEWLINE:
                line = data[start:end]
                if line.translate(shape) == known:
                    starts.append(start)
                    lines.append(line)
                    plans.append(plan)
                    position = end + 1
                    continue
            end = find(b"\n", place)
            if end < 0:
                end = size
            start = rfind(b"\n", position, place) + 1 or position
            line = data[start:end]
            new_shape = line.translate(shape)
            new = plan_of(new_shape)
            if new is None:
                break
            if new.layout is layout:
                plan, known, before, length = new, new_shape, place - start, end - start
                starts.append(start)
                lines.append(line)
                plans.append(plan)
            elif new.layout is None and (event := new.read(line)) is not None and inert(event):
                aside.append((start, line, new.rule, event))
            else:
                break
            position = end + 1
        return gathered, aside, position

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

"""Loss spike over steps in a row: the same memory as line by line, most lines never looked at on their own.

Between two looks level and bars stand still, so the highest of sixteen lines speaks for them. Level and spread are
asked for only where it may exceed what the run has shown before; where it is high, lines are taken one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, compress, pairwise
from operator import sub

from monitor.detectors.loss_normal import (
    BARS_EVERY,
    DECAY,
    LEVEL_EVERY,
    LOSS_SPREAD,
    MINIMUM,
    NORM_SPREAD,
    WINDOW,
    LossSpikeSettings,
    SpikeMemory,
    learn,
    level_after,
    level_of,
    loss_bars,
    mark,
    norm_bars,
    set_bars,
    spread_of,
)
from monitor.detectors.loss_spike import live
from monitor.detectors.memory import recall
from monitor.detectors.window import Trace, median
from monitor.run.state import RunState
from monitor.run.steps import UNFORESEEN, Foreseen, Steps

_MIDDLE = BARS_EVERY // 2
_AT_ONCE, _AT_LEAST = 1024, 64  # rows looked at together: behind something high it was in vain, fewer are next


def on_steps(state: RunState, steps: Steps, settings: LossSpikeSettings) -> Foreseen:
    """So many first steps neither open a spike nor change the stage of the one that is open."""
    memory = recall(state, "loss_spike", SpikeMemory)
    if memory.attempt != state.attempt.number or memory.resume_left:
        return UNFORESEEN
    work, rows = _copy(memory), _Rows(steps)
    taken = _healthy(work, rows, settings) if work.spike is None else _ill(work, rows, settings)

    def take() -> None:
        state.memory_of["loss_spike"] = work

    return Foreseen(taken, take)


def _copy(memory: SpikeMemory) -> SpikeMemory:
    """Whose change leaves `memory` as it is."""
    spike = memory.spike
    return replace(
        memory,
        loss=Trace(memory.loss.values[:], memory.loss.stamps[:]),
        norm=Trace(memory.norm.values[:], memory.norm.stamps[:]),
        levels=memory.levels[:],
        spike=None if spike is None else replace(spike, recent=spike.recent[:]),
    )


class _Rows:
    """The steps as the detector sees them. A grad norm of 0 or -1 was not computed: such a row has none."""

    def __init__(self, steps: Steps) -> None:
        norms, count = steps.grad_norms, len(steps)
        self.iterations, self.samples, self.losses = steps.iterations, steps.samples, steps.losses
        self.normed, self.norms = self.iterations, norms or []
        """Those with a norm."""
        self.upto: Sequence[int] = range(count + 1)
        """So many of them before a row."""
        if norms is None:
            self.normed, self.upto = [], [0] * (count + 1)
        elif min(norms) <= 0.0:
            known = [norm > 0.0 for norm in norms]
            self.norms, self.normed = list(compress(norms, known)), list(compress(self.iterations, known))
            self.upto = list(accumulate(known, initial=0))

    def __len__(self) -> int:
        return len(self.iterations)

    def at(self, row: int) -> tuple[float, float | None]:
        """Logarithms of the loss and the grad norm of one row."""
        index = self.upto[row]
        return math.log(self.losses[row]), math.log(self.norms[index]) if self.upto[row + 1] > index else None

    def samples_at(self, row: int) -> int | None:
        """What `state.latest` says after it."""
        return None if self.samples is None else self.samples[row]


def _ill(work: SpikeMemory, rows: _Rows, settings: LossSpikeSettings) -> int:
    """Take rows while the open spike stays what it is. How many."""
    spike = work.spike
    assert spike is not None
    for row, iteration in enumerate(rows.iterations):
        if live(work, spike, iteration, *rows.at(row), settings):
            return row
    return len(rows)


def _healthy(work: SpikeMemory, rows: _Rows, settings: LossSpikeSettings) -> int:
    """Take rows while no spike opens. How many."""
    row, count, ahead = 0, len(rows), _AT_ONCE
    while row < count:
        if work.high is None:
            last = min(count, row + ahead)
            row = _calm(work, rows, row, last, settings)
            if row == last:
                ahead = min(2 * ahead, _AT_ONCE)
                continue
            ahead = _AT_LEAST
        while row < count:  # something is high: one by one up to the next look
            if learn(work, rows.iterations[row], rows.samples_at(row), *rows.at(row), settings):
                return row
            row += 1
            if work.lines % BARS_EVERY == 0:
                break
    return row


def _calm(work: SpikeMemory, rows: _Rows, first: int, last: int, settings: LossSpikeSettings) -> int:
    """Take rows from `first` on, before `last`, while nothing is high, sixteen at a time. The next row: at a look, or
    `last`.
    """
    upto, lines = rows.upto, work.lines
    ends = list(range(first + BARS_EVERY - lines % BARS_EVERY, last + 1, BARS_EVERY))
    looks = len(ends)
    if not ends or ends[-1] < last:
        ends.append(last)
    loss = _loss(work, rows, first, settings)
    taken = loss.follow([end - first for end in ends], looks)
    norm = _norm(work, rows, first, settings)
    normal = norm.follow([upto[end] - upto[first] for end in ends[:taken]], looks)
    if normal < taken:
        taken, loss = normal, _loss(work, rows, first, settings)
        loss.follow([end - first for end in ends[:taken]], looks)
    if not taken:
        return first
    row, looks = ends[taken - 1], min(looks, taken)
    level = work.loss_level  # the last row was judged by it
    if looks:
        work.loss, work.norm = loss.looked_at(), norm.looked_at()
        work.loss_record, work.norm_record = loss.looked_with, norm.looked_with
        set_bars(work, settings)
        if work.norm_level is None and (own := norm.spread_before()):
            work.norm_spread = max(own, NORM_SPREAD)
        if taken > looks:
            level = work.loss_level
        elif looks > 1:
            level = loss.level_at(looks - 2)
        for look, end in enumerate(ends[:looks]):
            if (lines + end - first) % LEVEL_EVERY == 0 and loss.looks[look] >= LEVEL_EVERY:
                mark(work.levels, rows.iterations[end - 1], loss.middle_at(look))
    work.last_excess = 0.0 if level is None else math.log(rows.losses[row - 1]) - level
    work.samples, work.lines = rows.samples_at(row - 1), lines + row - first
    loss.add_rest(work.loss)
    norm.add_rest(work.norm)
    work.loss_record, work.norm_record = loss.record, norm.record
    return row


def _loss(work: SpikeMemory, rows: _Rows, first: int, settings: LossSpikeSettings) -> _Series:
    return _Series(
        work.loss,
        (rows.losses[first : first + _AT_ONCE], rows.iterations[first : first + _AT_ONCE]),
        (work.loss_level, work.loss_look, work.loss_record),
        lambda own, record: loss_bars(max(own, LOSS_SPREAD), record, settings)[1],
        settings,
    )


def _norm(work: SpikeMemory, rows: _Rows, first: int, settings: LossSpikeSettings) -> _Series:
    begin = rows.upto[first]
    return _Series(
        work.norm,
        (rows.norms[begin : begin + _AT_ONCE], rows.normed[begin : begin + _AT_ONCE]),
        (work.norm_level, work.norm_bar_twice, work.norm_record),
        lambda own, record: norm_bars(max(own, NORM_SPREAD), record, settings)[1] if own else None,
        settings,
    )


class _Series:
    """Loss or grad norm: logarithms of the values known before, and the values that come, as far as they are taken.

    Values that come are sorted as they are: a logarithm keeps their order (its error, half a unit in the last place,
    is less than what lies between two of the numbers that a log prints).
    """

    def __init__(
        self,
        trace: Trace,
        come: tuple[list[float], list[int]],
        judged: tuple[float | None, float, float],
        bar_of: Callable[[float, float], float | None],
        settings: LossSpikeSettings,
    ) -> None:
        """`judged`: level, bar, record. `bar_of(spread, record)`: the bar, None if the spread says that no level is
        known.
        """
        self.trace, (self.come, self.stamps) = trace, come
        self.begin = self.at = len(trace.values)
        level, self.bar, self.record = judged
        self.level, self.bar_of = math.inf if level is None else level, bar_of
        """Nothing exceeds infinity."""
        self.looked_with = self.record
        """The record before the last look let go of some of it."""
        # Excesses up to this share of the record change nothing: no bar is below. A millionth is more than rounding.
        self.share = min(1.0, settings.twice * settings.record_factor * (1 - 1e-6))
        self.parts: list[list[float]] = []
        """The values up to each end, sorted."""
        self.looks: list[int] = []
        """Values that there were at each look."""

    def follow(self, ends: list[int], looks: int) -> int:
        """Take what comes up to each of `ends` while nothing is high; at the first `looks` of them is a look. How many
        of them were reached.
        """
        come, share = self.come, self.share
        self.parts = [sorted(come[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
        self.looks = [self.begin + end for end in ends[:looks]]
        tops = [math.log(part[-1]) if part else -math.inf for part in self.parts]
        most = map(sub, tops, [self.level, *self._lowest()])
        record, enough, reached = self.record, min(self.record, self.bar), 0
        for excess in most:
            if excess > enough:
                if self._exceeds(reached, tops[reached]):
                    break
                record = self.record
            reached += 1
            if reached <= looks:
                self.looked_with = record
                self.record = record = record * DECAY
                enough = share * record
        del self.looks[reached:]
        self.at = self.begin + (ends[reached - 1] if reached else 0)
        return reached

    def _lowest(self) -> list[float]:
        """What the level is at least, by each look: any value where none is known."""
        looks, parts = self.looks, self.parts
        if not looks or not self.come:
            return [math.inf] * len(looks)
        if looks[-1] - looks[0] < BARS_EVERY * (len(looks) - 1):  # there are lines without a value
            return [math.inf if at < MINIMUM else level_of(self._logs(at - MINIMUM, at)) for at in looks]
        middles = [self._middle(looks[0] - BARS_EVERY), self._middle(looks[0])]
        middles += [math.log(part[_MIDDLE]) for part in parts[1 : len(looks)]]
        # The median of two parts lies between theirs, and no more is taken off it than the second fell.
        return [before if middle > before else middle + (middle - before) for before, middle in pairwise(middles)]

    def _middle(self, at: int) -> float:
        """The median of the sixteen values before `at`; 0 where there are fewer."""
        return median(self._logs(at - BARS_EVERY, at)) if at >= BARS_EVERY else 0.0

    def _exceeds(self, part: int, top: float) -> bool:
        """Whether the highest value of a part is high. If not, it may be a record."""
        level, bar = self.level, self.bar
        if part:
            found = self.level_at(part - 1)
            if found is None or top - found <= self.share * self.record:
                return False
            least = self.bar_of(0.0, self.record)
            if least is None or top - found > least:
                least = self.bar_of(spread_of(self._window(self.looks[part - 1])), self.record)
            if least is None:
                return False
            level, bar = found, least
        if top - level > bar:
            return True
        self.record = max(self.record, top - level)
        return False

    def middle_at(self, look: int) -> float:
        """The median of the last 32 values at a look."""
        at = self.looks[look]
        if look and len(self.parts[look]) == len(self.parts[look - 1]) == BARS_EVERY:
            return math.log(sorted(self.parts[look - 1] + self.parts[look])[BARS_EVERY])
        return median(self._logs(at - 2 * BARS_EVERY, at))

    def level_at(self, look: int) -> float | None:
        """The level that a look found, unless the spread denied it."""
        at, parts = self.looks[look], self.parts
        if at < MINIMUM:
            return None
        if look < 2 or not len(parts[look]) == len(parts[look - 1]) == BARS_EVERY:
            return level_of(self._logs(at - MINIMUM, at))
        level, earlier, later = self.middle_at(look), math.log(parts[look - 1][_MIDDLE]), math.log(parts[look][_MIDDLE])
        before = level if later >= earlier else self.middle_at(look - 2)  # asked for only where there may be a fall
        return level_after(before, level, earlier, later)

    def spread_before(self) -> float:
        """The last spread that was not 0 before the last look; 0 if there was none."""
        begin, end = max(0, self.looks[0] - WINDOW), self.looks[-1]
        values = self._logs(begin, end)
        if end < MINIMUM or min(values) == max(values):
            return 0.0
        for look, after in zip(self.looks[-2::-1], self.looks[:0:-1], strict=True):
            if look != after and look >= MINIMUM:
                own = spread_of(values[max(0, look - WINDOW) - begin : look - begin])
                if own:
                    return own
        return 0.0

    def _window(self, look: int) -> list[float]:
        return self._logs(max(0, look - WINDOW), look)

    def _logs(self, start: int, end: int) -> list[float]:
        begin = self.begin
        if start >= begin:
            return list(map(math.log, self.come[start - begin : end - begin]))
        return self.trace.values[start:end] + list(map(math.log, self.come[: max(0, end - begin)]))

    def looked_at(self) -> Trace:
        """What the last look saw."""
        look = self.looks[-1]
        stamps = self.stamps[max(0, look - self.begin - WINDOW) : look - self.begin]
        return Trace(self._window(look), (self.trace.stamps + stamps)[-WINDOW:])

    def add_rest(self, trace: Trace) -> None:
        """Add what was taken after the last look."""
        since = self.looks[-1] if self.looks else self.begin
        trace.values += self._logs(since, self.at)
        trace.stamps += self.stamps[since - self.begin : self.at - self.begin]

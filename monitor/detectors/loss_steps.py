"""Loss spike over steps in a row: the same memory as line by line, most lines never looked at on their own.

Between two looks level and bars stand still, so the highest of sixteen lines speaks for them. Level and spread are
asked for only where it may exceed what the run has shown before; where it is high, lines are taken one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, compress

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
    """The steps in logarithms. A grad norm of 0 or -1 was not computed: such a row has none."""

    def __init__(self, steps: Steps) -> None:
        norms, count = steps.grad_norms, len(steps)
        self.iterations, self.samples = steps.iterations, steps.samples
        self.losses = list(map(math.log, steps.losses))
        self.normed = self.iterations
        """Those with a norm."""
        self.upto: Sequence[int] = range(count + 1)
        """So many of them before a row."""
        if norms is None:
            self.normed, self.upto = [], [0] * (count + 1)
        elif min(norms) <= 0.0:
            known = [norm > 0.0 for norm in norms]
            norms = list(compress(norms, known))
            self.normed, self.upto = list(compress(self.iterations, known)), list(accumulate(known, initial=0))
        self.norms = list(map(math.log, norms or ()))

    def __len__(self) -> int:
        return len(self.iterations)

    def norm(self, row: int) -> float | None:
        """The grad norm of one row."""
        index = self.upto[row]
        return self.norms[index] if self.upto[row + 1] > index else None

    def samples_at(self, row: int) -> int | None:
        """What `state.latest` says after it."""
        return None if self.samples is None else self.samples[row]


def _ill(work: SpikeMemory, rows: _Rows, settings: LossSpikeSettings) -> int:
    """Take rows while the open spike stays what it is. How many."""
    spike, losses, norm = work.spike, rows.losses, rows.norm
    assert spike is not None
    for row, iteration in enumerate(rows.iterations):
        if live(work, spike, iteration, losses[row], norm(row), settings):
            return row
    return len(rows)


def _healthy(work: SpikeMemory, rows: _Rows, settings: LossSpikeSettings) -> int:
    """Take rows while no spike opens. How many."""
    row = 0
    while row < len(rows):
        if work.high is None:
            row = _calm(work, rows, row, settings)
        while row < len(rows):  # something is high: one by one up to the next look
            if learn(work, rows.iterations[row], rows.samples_at(row), rows.losses[row], rows.norm(row), settings):
                return row
            row += 1
            if work.lines % BARS_EVERY == 0:
                break
    return row


def _calm(work: SpikeMemory, rows: _Rows, first: int, settings: LossSpikeSettings) -> int:
    """Take rows from `first` on while nothing is high, sixteen at a time. The next row: at a look, or past the last."""
    upto, row, lines = rows.upto, first, work.lines
    loss = _Series(work.loss, rows.losses[first:], rows.iterations[first:], work.loss_record, settings)
    norm = _Series(work.norm, rows.norms[upto[first] :], rows.normed[upto[first] :], work.norm_record, settings)
    loss.judge(
        work.loss_level, work.loss_look, lambda own, record: loss_bars(max(own, LOSS_SPREAD), record, settings)[1]
    )
    norm.judge(
        work.norm_level,
        work.norm_bar_twice,
        lambda own, record: norm_bars(max(own, NORM_SPREAD), record, settings)[1],
        differing=True,
    )
    losses_before, norms_before = loss.at - first, norm.at - upto[first]
    while row < len(rows):
        stop = min(row + BARS_EVERY - lines % BARS_EVERY, len(rows))
        at, record = norm.at, norm.record
        if norm.high(norms_before + upto[stop]):
            break
        if loss.high(losses_before + stop):
            norm.at, norm.record = at, record
            break
        lines, row = lines + stop - row, stop
        if lines % BARS_EVERY:
            break
        loss.look()
        norm.look()
        if lines % LEVEL_EVERY == 0 and loss.at >= LEVEL_EVERY:
            mark(work.levels, rows.iterations[row - 1], loss.values[loss.at - LEVEL_EVERY : loss.at])
    if row == first:
        return row
    level = work.loss_level
    if loss.looks:
        work.loss, work.norm = loss.looked_at(), norm.looked_at()
        work.loss_record, work.norm_record = loss.looked_with, norm.looked_with
        set_bars(work, settings)
        if work.norm_level is None and (own := norm.spread_before()):
            work.norm_spread = max(own, NORM_SPREAD)
        if lines % BARS_EVERY:
            level = work.loss_level
        elif len(loss.looks) > 1:
            level = loss.level_at(loss.looks[-2])
    work.last_excess = 0.0 if level is None else rows.losses[row - 1] - level
    work.samples, work.lines = rows.samples_at(row - 1), lines
    loss.add_rest(work.loss)
    norm.add_rest(work.norm)
    work.loss_record, work.norm_record = loss.record, norm.record
    return row


class _Series:
    """Loss or grad norm: the values known before, and those to come, taken as far as `at`."""

    def __init__(
        self, trace: Trace, values: list[float], stamps: list[int], record: float, settings: LossSpikeSettings
    ) -> None:
        self.begin = self.at = len(trace.values)
        self.values, self.stamps = trace.values + values, trace.stamps + stamps
        self.record = self.looked_with = record
        """The largest excess now, and before the last look let go of some of it."""
        # Excesses up to this share of the record change nothing: no bar is below. A millionth is more than rounding.
        self.share = min(1.0, settings.twice * settings.record_factor * (1 - 1e-6))
        self.looks: list[int] = []
        """Values that there were at each look."""
        self.part: list[float] = []
        """The values taken last, sorted."""
        self.middle, self.middle_at = 0.0, -1
        """Median of the last 16 values at a look, and at which."""

    def judge(
        self, level: float | None, bar: float, bar_of: Callable[[float, float], float], differing: bool = False
    ) -> None:
        """By which level and bar, and how the bar of a spread and a record is found. `differing`: values that are all
        the same have no level.
        """
        self.level, self.bar, self.known = math.inf if level is None else level, bar, True
        """Nothing exceeds infinity. While not `known`, the level may be higher than this, the bar is not this one."""
        self.bar_of, self.differing = bar_of, differing
        self.enough = min(self.record, bar)
        """An excess up to this is neither high nor a record."""

    def high(self, end: int) -> bool:
        """Take the values up to `end`. True if one is high: then none is taken."""
        part = self.values[self.at : end]
        if part:
            part.sort()
            if part[-1] - self.level > self.enough and self._exceeds(part[-1]):
                return True
            self.part, self.at = part, end
        return False

    def _exceeds(self, top: float) -> bool:
        if not self.known:
            window = self._window(self.looks[-1])
            self.level = level_of(window)
            if top - self.level <= self.enough:
                return False
            self.known, own = True, spread_of(window)
            self.bar = self.bar_of(own, self.looked_with * DECAY)
            if self.differing and own == 0.0:
                self.level = math.inf
        excess = top - self.level
        if excess > self.bar:
            return True
        self.record = max(self.record, excess)
        return False

    def look(self) -> None:
        """Level and bar are now those of the lines up to here; neither is computed before it is asked for."""
        at = self.at
        self.looks.append(at)
        self.looked_with = self.record
        self.record *= DECAY
        self.enough = self.share * self.record
        if at < MINIMUM:
            self.level, self.known = math.inf, True
            return
        self.known = False
        if self.looks[-2:-1] == [at]:
            return  # nothing came
        if len(self.part) < BARS_EVERY:
            self.part = sorted(self.values[at - BARS_EVERY : at])
        middle, before = self.part[_MIDDLE], self.middle
        if self.middle_at != at - BARS_EVERY:
            before = median(self.values[at - 2 * BARS_EVERY : at - BARS_EVERY])
        # The median of both parts lies between theirs, and no more is taken off it than the second fell.
        self.level = before if middle > before else middle + (middle - before)
        self.middle, self.middle_at = middle, at

    def level_at(self, look: int) -> float | None:
        """The level that a look found, of a series in which it is always known."""
        return level_of(self._window(look)) if look >= MINIMUM else None

    def spread_before(self) -> float:
        """The last spread that was not 0 before the last look; 0 if there was none."""
        values = self.values[max(0, self.looks[0] - WINDOW) :]
        if not values or min(values) == max(values):
            return 0.0
        for look, after in zip(self.looks[-2::-1], self.looks[:0:-1], strict=True):
            if look != after and look >= MINIMUM and (own := spread_of(self._window(look))):
                return own
        return 0.0

    def _window(self, look: int) -> list[float]:
        return self.values[max(0, look - WINDOW) : look]

    def looked_at(self) -> Trace:
        """What the last look saw."""
        look = self.looks[-1]
        return Trace(self._window(look), self.stamps[max(0, look - WINDOW) : look])

    def add_rest(self, trace: Trace) -> None:
        """Add what was taken after the last look."""
        since = self.looks[-1] if self.looks else self.begin
        trace.values += self.values[since : self.at]
        trace.stamps += self.stamps[since : self.at]

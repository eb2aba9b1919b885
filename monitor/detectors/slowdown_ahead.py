"""Slowdown, foreseen: what many steps in a row do to the level and the sums, without a call for each.

`slowdown.on_step` is what counts; this finds the rows at which it would say nothing and what they leave, bit for bit.
Of a row only what may matter is computed: a residual within the slack moves no sum that is at zero; medians and scales
come from one sorted chunk (sliding.py); residuals of old are made again where somebody looks at them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from itertools import accumulate

from monitor.detectors.levels import CLIP, DRIFT_EVERY, FLOOR, LEARN, RECENT, RENEW, SLACK, WINDOW, Level
from monitor.detectors.sliding import Chunk, chunks, outside
from monitor.detectors.slowdown import BACK, FULL, NAME, Memory, SlowdownSettings, key_of, needed, shifted
from monitor.run.state import RunState
from monitor.run.steps import UNFORESEEN, Foreseen, Steps

_SURE = SLACK * 0.9999  # residuals within so many scales are within the slack, however they are rounded
_BLOCK = 50  # values whose median tells a drift
_OUTSIDE_WINDOW, _OUTSIDE_BLOCK = outside(WINDOW), outside(_BLOCK)
_SEGMENT = 64  # values between two renewals of the launch's level


def on_steps(state: RunState, steps: Steps, settings: SlowdownSettings) -> Foreseen:
    """See Detector.on_steps. The row at which a launch shows its level is left to `on_step`."""
    memory, rows = state.memory_of.get(NAME), len(steps)
    if type(memory) is not Memory or memory.attempt != state.attempt.number:
        return UNFORESEEN
    if memory.steps < settings.warm_up:
        return _foreseen(min(rows, settings.warm_up - memory.steps), rows, partial(_count, memory, rows))
    key = key_of(state)
    track = memory.tracks.get(key)
    if key != memory.key or track is None or len(track.values) > WINDOW or settings.sum_limit <= 0:
        return UNFORESEEN
    if track.value is None:
        unlearned = _renewed_after(track.seen) - 1 - track.seen
        return _foreseen(min(rows, unlearned), rows, partial(_learn, memory, track, steps))
    if memory.faster is not None:
        rows = bisect_right(steps.iterations, memory.faster.onset + 50)
    ahead = _Ahead(memory, track, steps.first(rows) if rows < len(steps) else steps, settings)
    return _foreseen(ahead.rows(), len(steps), ahead.take)


def _foreseen(calm: int, rows: int, take: Callable[[], None]) -> Foreseen:
    return Foreseen(calm, take if calm == rows else UNFORESEEN.take)


def _count(memory: Memory, rows: int) -> None:
    """Steps that say nothing yet."""
    memory.steps += rows


def _learn(memory: Memory, track: Level, steps: Steps) -> None:
    """Steps before the level is believed."""
    memory.steps += len(steps)
    for x, iteration in zip(map(math.log, steps.seconds), steps.iterations, strict=True):
        track.add(x, iteration, 0.0)


def _renewed_after(seen: int) -> int:
    """How many values the level has seen when it is renewed next."""
    return max(LEARN, (seen // RENEW + 1) * RENEW)


class _Ahead:
    """A level on its way through steps; the memory stays as it is until `take`.

    A batch is what stands between two renewals of the level: number 0 is up to the first, all others have 8 rows.
    """

    def __init__(self, memory: Memory, track: Level, steps: Steps, settings: SlowdownSettings) -> None:
        assert track.value is not None
        self.memory, self.track, self.iterations, self.settings = memory, track, steps.iterations, settings
        self.logs = list(map(math.log, steps.seconds))
        self.first = _renewed_after(track.seen) - track.seen
        """Rows of batch 0."""
        self.levels, self.scales = [track.value], [track.scale]
        """Of each batch."""
        self.low = 0
        """Where in the order the nearest half of the window begins."""
        self.up, self.down, self.best = track.up, track.down, track.best
        self.up_row: int | None = None
        self.down_row: int | None = None
        self.drift_level = None if memory.shift is None else memory.shift.level
        self.chunk: Chunk | None = None

    def rows(self) -> int:
        """So many first rows change no verdict."""
        for chunk in chunks(self.track.values, self.logs, self.first, RENEW, WINDOW):
            self.chunk = chunk
            self._renew(chunk)
            calm = min(self._sum(chunk), self._drift(chunk), self._settle(chunk))
            if calm < chunk.stop:
                return calm
        return len(self.logs)

    def _batch(self, row: int) -> int:
        """The batch that a row belongs to."""
        return 0 if row < self.first else (row - self.first) // RENEW + 1

    def _scale(self, row: int) -> float:
        """The scale after a row."""
        return self.scales[self._batch(row + 1)]

    # --- level and scale --------------------------------------------------------------------------------------------

    def _renew(self, chunk: Chunk) -> None:
        """Level and scale after each renewal in the chunk, as Level._renew finds them. The nearest half of the window
        moves little from one to the next: it is looked for where it was.
        """
        start, _, values, held, order = chunk
        low = self.low
        for seen in range(held + (RENEW if start else self.first), len(values) + 1, RENEW):
            alive = order.translate(None, _OUTSIDE_WINDOW[seen])
            half = len(alive) // 2
            value, most = values[alive[half]], len(alive) - half - 1
            left, right = value - values[alive[low]], values[alive[low + half]] - value
            while left > right and low < most:
                low += 1
                left, right = value - values[alive[low]], values[alive[low + half]] - value
            deviation = left if left > right else right
            while low:
                left, right = value - values[alive[low - 1]], values[alive[low - 1 + half]] - value
                if left > right:
                    if left < deviation:
                        deviation = left
                    break
                low -= 1
                deviation = right
            scale = 1.4826 * deviation
            self.levels.append(value)
            self.scales.append(scale if scale > FLOOR else FLOOR)
        self.low = low

    # --- shifts -----------------------------------------------------------------------------------------------------

    def _sum(self, chunk: Chunk) -> int:
        """Both sums through the chunk, as Level.add has them; the first row at which a shift is sure, or its end."""
        logs, settings = self.logs, self.settings
        enough, limit, least = settings.sum_limit, FULL * settings.sum_limit, 4 * settings.threshold
        up, down, begin = self.up, self.down, chunk.start
        calm = not (up or down)
        for batch in range(self._batch(begin), self._batch(chunk.stop - 1) + 1):
            level, scale = self.levels[batch], self.scales[batch]
            below, above, far = level - _SURE * scale, level + _SURE * scale, max(least, 6 * scale)
            renewing = self.first + RENEW * batch - 1
            for row, x in enumerate(logs[begin : min(renewing + 1, chunk.stop)], begin):
                if calm and below < x < above:
                    continue
                residual = x - level
                z = residual / scale
                if not -CLIP < z < CLIP:
                    z = CLIP if z > 0.0 else -CLIP
                after = up + z - SLACK
                if after > 0.0:
                    if up <= 0.0:
                        self.up_row = row
                    up = after if after < limit else limit
                elif up:
                    up = 0.0
                after = down - z - SLACK
                if after > 0.0:
                    if down <= 0.0:
                        self.down_row = row
                    down = after if after < limit else limit
                elif down:
                    down = 0.0
                calm = not (up or down)
                if (residual > far or up >= enough or down >= enough) and row != renewing:
                    self.up, self.down = up, down
                    if self._shifted(row):
                        return row
            begin = renewing + 1
            if begin <= chunk.stop:  # the last row is looked at with the level as it is now
                residual = logs[renewing] - level - (self.levels[batch + 1] - level)
                if up >= enough or down >= enough or residual > max(least, 6 * self.scales[batch + 1]):
                    self.up, self.down = up, down
                    if self._shifted(renewing):
                        return renewing
        self.up, self.down = up, down
        return chunk.stop

    def _shifted(self, row: int) -> bool:
        """Whether a shift is sure at a row, the sums being those after it."""
        scale = self._scale(row)
        level = Level(scale=scale, up=self.up, down=self.down, recent=self._recent(row))
        return bool(shifted(level, needed(scale, self.settings.threshold), self.settings))

    def _recent(self, row: int) -> list[float]:
        """Level.recent after a row: what each lay off its level then, moved with each renewal since."""
        begin = row - RECENT + 1
        residuals = self.track.recent[begin:] if begin < 0 else []
        begin = max(0, begin)
        for batch in range(self._batch(begin), self._batch(row) + 1):
            level, end = self.levels[batch], self.first + RENEW * batch
            residuals += [x - level for x in self.logs[begin : min(end, row + 1)]]
            if end <= row + 1:
                moved = self.levels[batch + 1] - level
                residuals = [residual - moved for residual in residuals]
            begin = end
        return residuals

    # --- drift ------------------------------------------------------------------------------------------------------

    def _drift(self, chunk: Chunk) -> int:
        """The row at which a drift is told or is over, or the chunk's end. See Level.drifted and slowdown._watch."""
        start, stop, values, held, order = chunk
        best, shift, least = self.best, self.memory.shift, math.log1p(self.settings.drift)
        drifting = shift is not None and shift.reason == "drift"
        first = start + -(self.track.seen + start + 1) % DRIFT_EVERY
        for row in range(first, stop, DRIFT_EVERY):
            seen = held + row + 1 - start
            if seen < _BLOCK:
                continue
            block = order.translate(None, _OUTSIDE_BLOCK[seen])
            middle = (values[block[_BLOCK // 2 - 1]] + values[block[_BLOCK // 2]]) / 2
            if best is None or middle < best:
                best = middle
            drift = middle - best
            if drifting:
                assert shift is not None
                assert self.drift_level is not None
                self.drift_level = max(self.drift_level, best + drift)
                if drift < (self.drift_level - shift.base) / 2:
                    return row
            elif drift > least and shift is None and drift > 3 * self._scale(row):
                return row
        self.best = best
        return stop

    # --- the way back -----------------------------------------------------------------------------------------------

    def _settle(self, chunk: Chunk) -> int:
        """The row at which a slower level is over, or the chunk's end. See slowdown._watch: the median of the last
        values is near the old level where more than half of them are.
        """
        start, stop, values, held, _ = chunk
        shift = self.memory.shift
        if shift is None or shift.unsure or shift.reason == "drift":
            return stop
        before, half = max(0, held - RECENT), (shift.level - shift.base) / 2
        near = [0, *accumulate(x - shift.base < half for x in values[before:])]
        if near[-1] <= BACK // 2:
            return stop
        for row in range(start, stop):
            count = max(BACK, needed(self._scale(row), self.settings.threshold))
            seen = held + row + 1 - start
            count = min(count, seen)
            near_now = near[seen - before] - near[seen - count - before]
            if near_now > count // 2 and self.iterations[row] - shift.told_at >= count >= BACK:
                return row
        return stop

    # --- what is left -----------------------------------------------------------------------------------------------

    def take(self) -> None:
        """Write what all rows leave."""
        memory, track, rows, chunk = self.memory, self.track, len(self.logs), self.chunk
        assert chunk is not None
        track.recent = self._recent(rows - 1)
        memory.steps += rows
        if memory.segments and memory.segments[-1].attempt == memory.attempt:
            at = self._batch(_SEGMENT - track.seen % _SEGMENT - 1) + 1
            segment = memory.segments[-1]
            segment.level = min([segment.level, *self.levels[at :: _SEGMENT // RENEW]])
        if memory.shift is not None and self.drift_level is not None:
            memory.shift.level = self.drift_level
        track.seen += rows
        track.value, track.scale = self.levels[-1], self.scales[-1]
        track.up, track.down, track.best = self.up, self.down, self.best
        if self.up_row is not None:
            track.up_since = self.iterations[self.up_row]
        if self.down_row is not None:
            track.down_since = self.iterations[self.down_row]
        size = len(chunk.values)
        track.ordered = [chunk.values[at] for at in chunk.order.translate(None, _OUTSIDE_WINDOW[size])]
        track.values = chunk.values[-WINDOW:]
        track.blocks = chunk.values[-_BLOCK:]

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
from operator import length_hint

from monitor.detectors.levels import CLIP, DRIFT_EVERY, FLOOR, LEARN, RECENT, RENEW, SLACK, WINDOW, Level
from monitor.detectors.sliding import Chunk, chunks, outside
from monitor.detectors.slowdown import BACK, FULL, NAME, Memory, SlowdownSettings, key_of, needed, shifted
from monitor.run.state import RunState
from monitor.run.steps import UNFORESEEN, Foreseen, Steps

_SURE = SLACK * 0.9999  # residuals within so many scales are within the slack, however they are rounded
_BLOCK = 50  # values whose median tells a drift
_STRIDE = 200  # rows looked at together: few enough that little is done in vain where one of them is not calm
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
    if key != memory.key or track is None or settings.sum_limit <= CLIP - SLACK:
        return UNFORESEEN
    if len(track.values) > WINDOW or len(track.blocks) != min(_BLOCK, len(track.values)):  # saved by another version
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
        self.low = len(track.values) // 4
        """Where in the order the nearest half of the window begins."""
        self.drift = math.log1p(settings.drift)
        self.up, self.down, self.best = track.up, track.down, track.best
        self.up_row: int | None = None
        self.down_row: int | None = None
        self.drift_level = None if memory.shift is None else memory.shift.level
        self.chunk: Chunk | None = None

    def rows(self) -> int:
        """So many first rows change no verdict."""
        start, rows = 0, len(self.logs)
        for chunk in chunks(self.track.values, self.logs, self.first, RENEW, WINDOW):
            self.chunk, stop = chunk, chunk.stop
            self._renew(chunk)
            calm = self._drift(chunk)
            if calm < stop or stop - start >= _STRIDE or stop == rows:
                calm = min(calm, self._sum(start, stop), self._settle(start, stop))
                if calm < stop:
                    return calm
                start = stop
        return rows

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
        low, take_out = self.low, order.translate
        for gone in outside(WINDOW)[held + (RENEW if start else self.first) : len(values) + 1 : RENEW]:
            alive = take_out(None, gone)
            half = len(alive) // 2
            value = values[alive[half]]
            before = left = value - values[alive[low]]
            right = values[alive[low + half]] - value
            if left > right:
                most = len(alive) - half - 1
                while left > right and low < most:
                    low += 1
                    before, left, right = left, value - values[alive[low]], values[alive[low + half]] - value
            else:
                while low:
                    before = value - values[alive[low - 1]]
                    span = values[alive[low - 1 + half]] - value
                    if before > span:
                        break
                    low -= 1
                    left, right = before, span
            deviation = left if left > right else right
            if low and before < deviation:
                deviation = before
            scale = 1.4826 * deviation
            self.levels.append(value)
            self.scales.append(scale if scale > FLOOR else FLOOR)
        self.low = low

    # --- shifts -----------------------------------------------------------------------------------------------------

    def _sum(self, begin: int, stop: int) -> int:
        """Both sums through whole batches, as Level.add has them; the first row at which a shift is sure, or `stop`."""
        logs, batch = self.logs, self._batch(begin)
        enough, least = self.settings.sum_limit, 4 * self.settings.threshold
        limit, up, down = FULL * enough, self.up, self.down
        calm, end = not (up or down), self.first + RENEW * batch
        level, scale = self.levels[batch], self.scales[batch]
        levels, scales = self.levels[batch + 1 :], self.scales[batch + 1 :]
        if self._batch(stop) == self._batch(stop - 1):  # the last batch is not whole: nothing is renewed after it
            levels.append(level)
            scales.append(math.inf)
        for next_level, next_scale in zip(levels, scales, strict=True):
            if end > stop:
                end = stop
            slack = _SURE * scale
            below, above = level - slack, level + slack
            rest = iter(logs[begin:end])  # what is left of it tells the row where one is asked for
            for x in rest:
                look = False
                if calm:
                    if below < x < above:
                        continue
                    residual = x - level
                    z = residual / scale
                    if -CLIP < z < CLIP:
                        if z > SLACK:
                            up, calm, self.up_row = z - SLACK, False, end - 1 - length_hint(rest)
                        elif z < -SLACK:
                            down, calm, self.down_row = -z - SLACK, False, end - 1 - length_hint(rest)
                        continue
                else:
                    residual = x - level
                    z = residual / scale
                if not -CLIP < z < CLIP:
                    look = residual > least and residual > 6 * scale
                    z = CLIP if z > 0.0 else -CLIP
                after = up + z - SLACK
                if after > 0.0:
                    if up <= 0.0:
                        self.up_row = end - 1 - length_hint(rest)
                    up = after if after < limit else limit
                elif up:
                    up = 0.0
                after = down - z - SLACK
                if after > 0.0:
                    if down <= 0.0:
                        self.down_row = end - 1 - length_hint(rest)
                    down = after if after < limit else limit
                elif down:
                    down = 0.0
                calm = not (up or down)
                if look or up >= enough or down >= enough:
                    left = length_hint(rest)
                    if (left or next_scale == math.inf) and self._shifted(end - 1 - left, up, down):
                        return end - 1 - left
            # the last row of a batch is looked at with level and scale as they are after it
            if (up >= enough or down >= enough or x - next_level > 5 * next_scale) and next_scale < math.inf:
                residual, far = x - level - (next_level - level), max(least, 6 * next_scale)
                if (up >= enough or down >= enough or residual > far) and self._shifted(end - 1, up, down):
                    return end - 1
            begin, end, level, scale = end, end + RENEW, next_level, next_scale
        self.up, self.down = up, down
        return stop

    def _shifted(self, row: int, up: float, down: float) -> bool:
        """Whether a shift is sure at a row. `up` and `down`: the sums after it."""
        scale = self._scale(row)
        level = Level(scale=scale, up=up, down=down, recent=self._recent(row))
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
        best, shift, least, take_out = self.best, self.memory.shift, self.drift, order.translate
        drifting = shift is not None and shift.reason == "drift"
        seen = held + 1 + -(self.track.seen + start + 1) % DRIFT_EVERY
        while seen < _BLOCK:
            seen += DRIFT_EVERY
        row = start + seen - held - 1
        for gone in outside(_BLOCK)[seen : len(values) + 1 : DRIFT_EVERY]:
            block = take_out(None, gone)
            middle = (values[block[24]] + values[block[25]]) / 2
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
            row += DRIFT_EVERY
        self.best = best
        return stop

    # --- the way back -----------------------------------------------------------------------------------------------

    def _settle(self, start: int, stop: int) -> int:
        """The row at which a slower level is over, or `stop`. See slowdown._watch: the median of the last values lies
        near the old level where more than half of them do.
        """
        shift, most = self.memory.shift, max(BACK, RECENT)
        if shift is None or shift.unsure or shift.reason == "drift":
            return stop
        half, before = (shift.level - shift.base) / 2, max(0, start - most)
        values = self.track.values[start - most :] if start < most else []
        seen = len(values)
        values += self.logs[before:stop]
        near = [0, *accumulate(x - shift.base < half for x in values)]
        if near[-1] <= BACK // 2:
            return stop
        count, batch, seen = 0, -1, seen + start - before
        for row in range(start, stop):
            seen += 1
            if near[seen] - near[max(0, seen - most)] <= BACK // 2:
                continue
            if batch != self._batch(row + 1):
                batch = self._batch(row + 1)
                count = max(BACK, needed(self.scales[batch], self.settings.threshold))
            recent = min(count, seen)
            if (
                near[seen] - near[seen - recent] > recent // 2
                and self.iterations[row] - shift.told_at >= recent >= BACK
            ):
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
        track.ordered = [chunk.values[at] for at in chunk.order.translate(None, outside(WINDOW)[size])]
        track.values = chunk.values[-WINDOW:]
        track.blocks = chunk.values[-_BLOCK:]

"""Brings the stamps of one file to one clock. Each clock that writes into the file has an offset of its own."""

from dataclasses import dataclass, field

from megatron_monitor.parsers.events import Event, FailureSeen
from megatron_monitor.run.log_clock import log_clock, yearless
from megatron_monitor.source_clock.steps import StepCounter, seconds_of

SKEW = 60.0
"""Seconds by which the clocks of ranks and nodes may differ without being read as another clock."""
_HOUR = 3600.0
_ZONE_STEP = 1800.0  # zones differ by whole and half hours
_MAX_ZONES = 14 * _HOUR  # the most by which zones differ
_NEAR = 120.0  # seconds from a whole hour within which a scheduler's first stamp is read as another zone
_MAX_SILENCE = 30 * 86400.0  # the longest silence over which a stamp without a year is dated
_CONFIRMED = 20  # stamps in a row after which a clock is steady

_Clock = tuple[str | None, bool, bool]


@dataclass(slots=True)
class StampScale:
    """The clock of one file, Unix seconds."""

    written: float | None = None
    """A time near which the file was written: it gives the year of stamps without one."""
    latest: float = float("inf")
    """No stamp without a year is later than this."""
    steps: StepCounter = field(default_factory=StepCounter)
    now: float | None = None
    """The last known time. Never goes back."""
    dated: bool = False
    """A line has printed a time: `now` is Unix time, else seconds since the first line."""
    unsure: bool = False
    """The last stamp jumped ahead soon after another had gone back. The file may hold two logs."""
    _offsets: dict[_Clock, list[float]] = field(default_factory=dict)
    """Clock -> seconds to be added to its stamps, the offset used last first."""
    _steady: int = _CONFIRMED
    """Stamps since a clock last went back, `_CONFIRMED` at most."""

    def moment(self, event: Event) -> float | None:
        """Return the event's stamp as Unix time by its own clock; None without a usable stamp."""
        text = event.logged_at
        if text is None:
            return None
        if text[:2] == "--":
            if self.dated and self.now is not None:
                moment = yearless(text, self.now)
                return moment if moment is not None and abs(moment - self.now) <= _MAX_SILENCE else None
            return None if self.written is None else yearless(text, self.written, latest=self.latest)
        return log_clock(text)

    def place(self, event: Event, raw: float, printed: float = 0.0) -> float:
        """Return the time of a stamp on the file's clock, never before `now`. `printed`: seconds that undated lines
        have reported since then. After iterations that were counted from 0, the first stamp continues their clock.
        """
        key, now, dated = _clock_of(event), self.now, self.dated
        self.dated = True
        if now is None or not dated:
            self._offsets[key] = [0.0 if now is None else now - raw]
            return raw if now is None else now
        offsets = self._offsets.get(key)
        if offsets is None:
            offsets = self._offsets[key] = [self._first_offset(key, event, raw, printed)]
        best: float | None = offsets[0]
        if len(offsets) > 1 or raw + offsets[0] < now - SKEW:
            best = min((offset for offset in offsets if raw + offset >= now - SKEW), default=None)
        if best is None:
            best = self._gone_back(event, raw + offsets[0]) + offsets[0]
            self._steady = 0
        self._steady = min(self._steady + 1, _CONFIRMED)
        self.unsure = self._steady < _CONFIRMED and raw + best > now + _HOUR
        if best != offsets[0]:
            self._offsets[key] = [best, *(offset for offset in offsets if offset != best)][:4]
        return max(now, raw + best)

    def _first_offset(self, key: _Clock, event: Event, raw: float, printed: float) -> float:
        """Return the offset of a new clock: that of the other clock which makes the least silence."""
        now = self.now or 0.0
        known = sorted({0.0, *(offsets[0] for offsets in self._offsets.values())})
        best = min((offset for offset in known if raw + offset >= now - SKEW), default=0.0)
        ahead = raw + best - now - printed
        if all(other[2] != key[2] for other in self._offsets):  # its zone is unknown
            if raw + best < now - SKEW or ahead + SKEW >= _ZONE_STEP:
                return best - (ahead + SKEW) // _ZONE_STEP * _ZONE_STEP if abs(ahead) <= _MAX_ZONES else best
            return best
        hours = round(ahead / _HOUR) * _HOUR
        zoned = isinstance(event, FailureSeen) and event.node is not None and 0 < ahead <= _MAX_ZONES + _NEAR
        return best - hours if zoned and -SKEW <= ahead - hours <= _NEAR else best

    def _gone_back(self, event: Event, moment: float) -> float:
        """Return the seconds to add to a clock that has gone back: whole hours if they fit the line's duration."""
        now = self.now or 0.0
        hours = -((moment + SKEW - now) // _HOUR) * _HOUR if moment < now else 0.0
        ahead = moment + hours - now
        seconds = seconds_of(event)
        if hours <= _MAX_ZONES and ahead <= _NEAR + 1.5 * (seconds or 0.0) * (self.steps.interval or 1):
            return hours
        return now - moment


def _clock_of(event: Event) -> _Clock:
    """Return the clock that wrote a stamp: (node, prints no year, names its zone)."""
    text = event.logged_at or ""
    tail = text[19:]
    return event.node, text[:2] == "--", tail[-1:] == "Z" or "+" in tail or "-" in tail

"""The stamps of one file on one scale of time: each clock in it is read on an offset of its own."""

from dataclasses import dataclass, field

from megatron_monitor.parsers.events import Event, FailureSeen
from megatron_monitor.run.log_clock import log_clock, yearless
from megatron_monitor.source_clock.steps import ENDS, StepCounter, seconds_of

SKEW = 60.0
"""Seconds by which clocks of ranks and nodes differ: no reason to believe in another clock."""
_HOUR = 3600.0
_ZONE_STEP = 1800.0  # zones differ by whole and half hours
_ZONES = 14 * _HOUR  # and by no more
_NEAR = 120.0  # seconds beside a whole hour within which a first stamp of a scheduler is believed to be in another zone
_LONGEST_SILENCE = 30 * 86400.0  # after which a stamp without a year is believed to be of the same year
_CONFIRMED = 20  # stamps in a row after which the offset before is forgotten

_Writer = tuple[str | None, bool, bool]


@dataclass(slots=True)
class StampScale:
    """Reads stamps. `written` is a time near which the file was written, Unix seconds: it tells the year of stamps that
    print none.
    """

    written: float | None = None
    latest: float = float("inf")
    """No stamp without a year is later than this."""
    steps: StepCounter = field(default_factory=StepCounter)
    now: float | None = None
    """The last time that is known. Never backwards."""
    dated: bool = False
    """Some line printed a time: then `now` is Unix time."""
    unsure: bool = False
    """The last stamp jumped ahead soon after one had gone back: two logs in one file look like that too."""
    _offsets: dict[_Writer, list[float]] = field(default_factory=dict)
    """By writer and form of stamp: seconds to be added, the one used last first."""
    _used: dict[_Writer, int] = field(default_factory=dict)
    _steady: int = _CONFIRMED
    """Stamps since a clock has gone back, as far as they are counted."""

    def moment(self, event: Event) -> float | None:
        """The event's stamp as Unix time by its own clock; None if it has none that can be used."""
        text = event.logged_at
        if text is None:
            return None
        if text[:2] == "--":
            if self.dated and self.now is not None:
                moment = yearless(text, self.now)
                return moment if moment is not None and abs(moment - self.now) <= _LONGEST_SILENCE else None
            return None if self.written is None else yearless(text, self.written, latest=self.latest)
        return log_clock(text)

    def place(self, event: Event, raw: float, printed: float = 0.0) -> float:
        """A stamp on this source's one clock: not before `now` by more than clocks differ. `told` are the seconds since
        that undated lines tell. The first one after iterations that were counted from 0 makes no silence: their scale
        goes on.
        """
        key, now, dated = _writer(event), self.now, self.dated
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
        if best is None and type(event) in ENDS:
            return now  # torchrun prints when the first process failed, at the end of a teardown of minutes
        if best is None:
            best = self._gone_back(event, raw + offsets[0]) + offsets[0]
            self._steady = 0
        self._steady = min(self._steady + 1, _CONFIRMED)
        self.unsure = self._steady < _CONFIRMED and raw + best > now + _HOUR
        self._use(key, best)
        return max(now, raw + best)

    def _use(self, key: _Writer, best: float) -> None:
        """The offset of the writer's last stamp; those before it are forgotten after a while."""
        offsets = self._offsets[key]
        if best != offsets[0]:
            self._offsets[key] = [best, *(offset for offset in offsets if offset != best)][:4]
            self._used[key] = 0
        elif len(offsets) > 1:
            self._used[key] = self._used.get(key, 0) + 1
            if self._used[key] >= _CONFIRMED:
                del offsets[1:]

    def _first_offset(self, key: _Writer, event: Event, raw: float, printed: float) -> float:
        """Of a writer that was not heard before: that of another one which makes the least silence."""
        now = self.now or 0.0
        known = sorted({0.0, *(offsets[0] for offsets in self._offsets.values())})
        best = min((offset for offset in known if raw + offset >= now - SKEW), default=0.0)
        ahead = raw + best - now - printed
        if all(other[2] != key[2] for other in self._offsets):  # which zone it is in is not said
            if raw + best < now - SKEW or ahead + SKEW >= _ZONE_STEP:
                return best - (ahead + SKEW) // _ZONE_STEP * _ZONE_STEP if abs(ahead) <= _ZONES else best
            return best
        hours = round(ahead / _HOUR) * _HOUR
        zoned = isinstance(event, FailureSeen) and event.node is not None and 0 < ahead <= _ZONES + _NEAR
        return best - hours if zoned and -SKEW <= ahead - hours <= _NEAR else best

    def _gone_back(self, event: Event, moment: float) -> float:
        """What to add to a clock that has gone back. Whole hours, where that fits what the line says."""
        now = self.now or 0.0
        hours = -((moment + SKEW - now) // _HOUR) * _HOUR if moment < now else 0.0
        ahead = moment + hours - now
        seconds = seconds_of(event)
        if hours <= _ZONES and ahead <= _NEAR + 1.5 * (seconds or 0.0) * (self.steps.interval or 1):
            return hours
        return now - moment


def _writer(event: Event) -> _Writer:
    """Whose clock a stamp is from: (node, whether it prints no year, whether it names its zone)."""
    text = event.logged_at or ""
    tail = text[19:]
    return event.node, text[:2] == "--", tail[-1:] == "Z" or "+" in tail or "-" in tail

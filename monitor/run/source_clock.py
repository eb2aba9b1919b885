"""The clock of one file: when each of its lines was written, as far as the lines themselves tell.

A line with a stamp is dated. An undated line was written somewhere between the dated ones around it, and is placed by
what it says: an iteration, a save or a watchdog by its own duration, an evaluation or a set-up line in the time that
nothing else explains, a new launch after the end of the last one. What is left open is said (`Placed.proof`): from a
silence that the lines do not prove nothing may be concluded.

Stamps of several clocks stand in one file: each is read on an offset of its own. Where a clock goes back (the end of
summer time, another zone, a doubled or merged log) its offset changes and time goes on; it never runs backwards.
Law: pure; memory does not grow with the log.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import Literal, NamedTuple

from monitor.run.log_clock import in_zone, log_clock, yearless
from monitor.run.phases import EVALUATION, SAVE, SETUP, STEP
from parsers.events import (
    ArgumentsDumped,
    CheckpointLoaded,
    CheckpointLoadStarted,
    CheckpointSaved,
    CheckpointSaveStarted,
    EngineStepLogged,
    Event,
    FailureSeen,
    IterationLogged,
    LogEvent,
    MemoryReported,
    MilestoneReached,
    ProcessExited,
    ProcessTerminated,
    ProgramExited,
    TimeShown,
    TopologyLogged,
    TracebackSeen,
    TrainerLogged,
    TrainerProgressed,
    TrainerSummary,
    WatchdogTimedOut,
)

Proof = Literal["proved", "lawful", "unknown", "beside"]
"""Of the silence right before a line: the lines prove it; they leave it open, within what its phase may need; it means
nothing at all; or the file tells of no step (a job's `.err`), so that it proves nothing by itself."""

_SKEW = 60.0  # seconds by which clocks of ranks and nodes differ: no reason to believe in another clock
_HOUR = 3600.0
_SUNDAY, _SPRINGS, _LATEST_CHANGE = 6, (3, 4, 9, 10), 4  # when clocks are put on, in either hemisphere
_ZONE_STEP = 1800.0  # zones differ by whole and half hours
_ZONES = 14 * _HOUR  # and by no more
_NEAR = 120.0  # seconds beside a whole hour within which a first stamp of a scheduler is believed to be in another zone
_LONGEST_SILENCE = 30 * 86400.0  # after which a stamp without a year is believed to be of the same year
_CONFIRMED = 20  # stamps in a row after which the offset before is forgotten
_LAUNCH = 1800.0  # seconds from a launch's first lines to its first dated one, at the most (hang.starting)
_LONGEST_INTERVAL = 1000  # iterations between two lines that are believed
_INTERVALS = (100, 50, 25, 20, 10, 5, 4, 2, 1)  # that people take
_COPY_BEHIND = 2  # iterations by which a rank's copy lags behind
_LOOK_AHEAD = 100  # events behind a step in which its time is looked for
_MOST_WAITING = 10_000  # undated lines that are kept until a dated one tells more

_ENDS: frozenset[type[Event]] = frozenset(
    {FailureSeen, ProcessExited, ProcessTerminated, ProgramExited, TrainerSummary, TracebackSeen, WatchdogTimedOut}
)
_MILESTONES_OF_LAUNCH = ("launched", "initialized")
_BEGINNINGS: frozenset[type[Event]] = frozenset({CheckpointSaveStarted, CheckpointLoadStarted})
_OPEN: frozenset[type[Event]] = ((SETUP | EVALUATION | SAVE) - {MemoryReported}) - STEP
"""Progress of which nobody knows when it was, if the line does not say it."""
_PROGRESS = SETUP | EVALUATION | SAVE | STEP


class Placed(NamedTuple):
    """A line's event at its time: seconds, Unix time where the source is dated."""

    at: float
    entry: LogEvent
    source: str
    proof: Proof = "proved"
    dated: bool = True
    """The line shows its time."""
    took: float = 0.0
    """Seconds that the first iteration of a launch says it took, with those before it for which it stands."""


@dataclass(slots=True)
class SourceClock:
    """Reads stamps, and what undated lines say of time. `zone` is that of stamps which print none; `written` is a
    time near which it was written, Unix seconds: it tells the year of stamps that print none.
    """

    zone: tzinfo = UTC
    written: float | None = None
    latest: float = float("inf")
    """No stamp without a year is later than this."""
    now: float | None = None
    """The last time that is known. Never backwards."""
    dated: bool = False
    """Some line printed a time: then `now` is Unix time."""
    _offsets: dict[_Writer, list[float]] = field(default_factory=dict)
    """By writer and form of stamp: seconds to be added, the one used last first."""
    _used: dict[_Writer, int] = field(default_factory=dict)
    _last: dict[type[Event], int] = field(default_factory=dict)
    """The last iteration that each kind of line reported."""
    _counted: int | None = None
    """The last iteration of which the time was counted."""
    _untimed: int | None = None
    """An iteration that was reported, but not yet how long it took."""
    _interval: int | None = None
    _started: int = 0
    """The iteration of the checkpoint that was loaded."""
    _bars: dict[int | None, float] = field(default_factory=dict)
    """By a bar's total: when it began."""
    _elapsed: float = 0.0
    """Since the start of the training, as its last line said."""
    _stepped: bool = False
    """The launch has counted iterations."""
    _counting: bool = False
    """Some launch has."""
    _ended: bool = False
    """Something has ended the launch."""
    _waited: bool = False
    """A watchdog has told how long it waited."""
    _steady: int = _CONFIRMED
    """Stamps since a clock has gone back, as far as they are counted."""
    _unsure: bool = False
    """The last stamp jumped ahead soon after one had gone back: two logs in one file look like that too."""
    first_seconds: float = 0.0
    """Of a launch's first step, as a line behind it says."""
    _carried: int = 0
    """Lines of unknown time that were given away before a stamp came."""

    # --- stamps -----------------------------------------------------------------------------------------------------

    def moment(self, event: Event) -> float | None:
        """The event's stamp as Unix time by its own clock; None if it has none that can be used."""
        text = event.logged_at
        if text is None:
            return None
        if text[:2] == "--":
            if self.dated and self.now is not None:
                moment = yearless(text, self.now, self.zone)
                return moment if moment is not None and abs(moment - self.now) <= _LONGEST_SILENCE else None
            return None if self.written is None else yearless(text, self.written, self.zone, latest=self.latest)
        if self.zone is UTC:
            return log_clock(text)
        return in_zone(text, self.zone, None if self.now is None else self.now - _SKEW)

    def _on_own_scale(self, event: Event, raw: float, told: float = 0.0) -> float:
        """A stamp on this source's one clock: not before `now` by more than clocks differ. `told` are the seconds since
        that undated lines tell.
        """
        key = _writer(event)
        if self.now is None:
            self._offsets[key] = [0.0]
            return raw
        now = self.now
        offsets = self._offsets.get(key)
        if offsets is None:
            offsets = self._offsets[key] = [self._first_offset(key, event, raw, told)]
        best = min((offset for offset in offsets if raw + offset >= now - _SKEW), default=None)
        if best is None:
            best = self._gone_back(event, raw + offsets[0]) + offsets[0]
            self._steady = 0
        elif self._summer_began(event, raw + best):
            best -= _HOUR
        self._steady = min(self._steady + 1, _CONFIRMED)
        self._unsure = self._steady < _CONFIRMED and raw + best > now + _HOUR
        if best != offsets[0]:
            self._offsets[key] = [best, *(offset for offset in offsets if offset != best)][:4]
            self._used[key] = 0
        elif len(offsets) > 1:
            self._used[key] = self._used.get(key, 0) + 1
            if self._used[key] >= _CONFIRMED:
                del offsets[1:]
        return max(now, raw + best)

    def _first_offset(self, key: _Writer, event: Event, raw: float, told: float) -> float:
        """Of a writer that was not heard before: that of another one which makes the least silence."""
        now = self.now or 0.0
        known = sorted({0.0, *(offsets[0] for offsets in self._offsets.values())})
        best = min((offset for offset in known if raw + offset >= now - _SKEW), default=0.0)
        ahead = raw + best - now - told
        if all(other[2] != key[2] for other in self._offsets):  # which zone it is in is not said
            if raw + best < now - _SKEW or ahead + _SKEW >= _ZONE_STEP:
                return best - (ahead + _SKEW) // _ZONE_STEP * _ZONE_STEP if abs(ahead) <= _ZONES else best
            return best
        hours = round(ahead / _HOUR)
        if isinstance(event, FailureSeen) and hours and 0 < ahead <= _ZONES + _NEAR:
            over = ahead - hours * _HOUR
            if -_SKEW <= over <= _NEAR and event.node is not None:
                return best - hours * _HOUR
        return best

    def _gone_back(self, event: Event, moment: float) -> float:
        """What to add to a clock that has gone back. Whole hours, where that fits what the line says."""
        now = self.now or 0.0
        hours = -((moment + _SKEW - now) // _HOUR) * _HOUR if moment < now else 0.0
        ahead = moment + hours - now
        seconds = _seconds(event)
        if hours <= _ZONES and ahead <= _NEAR + 1.5 * (seconds or 0.0) * (self._interval or 1):
            return hours
        return now - moment

    def _summer_began(self, event: Event, moment: float) -> bool:
        """The clock was put on by an hour, on a Sunday night of spring: the iteration says it took that much less."""
        if self.now is None or moment - self.now < _HOUR or not self.dated:
            return False
        seconds = _seconds(event)
        if seconds is None:
            return False
        expected = seconds * self._peek(event)
        if abs(moment - self.now - _HOUR - expected) > max(5.0, 0.1 * expected) or expected >= _HOUR:
            return False
        change = datetime.fromtimestamp(self.now // _HOUR * _HOUR + _HOUR, self.zone)
        return (
            change.timestamp() <= self.now + expected + 5.0
            and change.weekday() == _SUNDAY
            and change.month in _SPRINGS
            and change.hour <= _LATEST_CHANGE
        )

    # --- what undated lines say -------------------------------------------------------------------------------------

    def _peek(self, event: Event) -> int:
        """Iterations that the line stands for, if it comes next."""
        number, last = _number(event), self._last.get(type(event))
        if number is not None and last is not None and 0 < number - last <= _LONGEST_INTERVAL:
            return number - last
        return self._first_steps(number, None) if number is not None and not self._stepped else self._interval or 1

    def _steps(self, event: Event, following: int | None) -> int:
        """Iterations that are new with this line; `following` is the next one that is reported."""
        number = _number(event)
        kind = type(event)
        if number is None:
            return 0
        last = self._last.get(kind)
        known = number == self._counted
        other = kind is EngineStepLogged and IterationLogged in self._last
        if last is not None and 0 < last - number <= _COPY_BEHIND and self._stepped:
            return 0
        self._last[kind] = number
        counts_from_0 = kind is IterationLogged
        if number < (0 if counts_from_0 else 1) or (other and self._stepped):
            return 0
        if known and self._stepped:
            timed = self._untimed == number and _seconds(event) is not None
            self._untimed = None if timed else self._untimed
            return (self._interval or 1) if timed else 0
        if kind is EngineStepLogged and event.logged_at is None and _seconds(event) is None:
            self._untimed = number
        self._counted = number
        first = not self._stepped or last is None or number <= last
        self._stepped, self._ended, self._waited, self._counting = True, False, False, True
        if not first and last is not None:
            delta = number - last
            if delta <= _LONGEST_INTERVAL:
                self._interval = delta
                return delta
            return self._interval or 1
        return self._first_steps(number, following)

    def _first_steps(self, number: int, following: int | None) -> int:
        """Iterations that the first line of a launch stands for."""
        if number <= 0:
            return 1
        every = self._interval
        if every is None and following is not None and 0 < following - number <= _LONGEST_INTERVAL:
            every = following - number
        if every is None:
            every = next(every for every in _INTERVALS if number % every == 0) if number <= _LONGEST_INTERVAL else 1
        elif number % every:
            every = 1
        done = number - self._started
        return min(every, done) if done > 0 else every

    def _says(self, event: Event, following: int | None, position: float) -> float | None:
        """Seconds that the event took, as it says; None where it does not say."""
        kind = type(event)
        if kind is IterationLogged or kind is EngineStepLogged:
            steps = self._steps(event, following)
            seconds = _seconds(event)
            since_start = event.elapsed_seconds if isinstance(event, IterationLogged) else None
            if seconds is None and since_start is not None:
                before, self._elapsed = self._elapsed, since_start
                return max(0.0, since_start - before)
            return 0.0 if steps == 0 else None if seconds is None else seconds * steps
        if isinstance(event, TrainerProgressed):
            self._counting = True
            return self._bar(event, position)
        if isinstance(event, CheckpointSaved):
            return event.seconds
        if isinstance(event, WatchdogTimedOut) and event.waited_seconds and not self._waited:
            self._waited = True
            return event.waited_seconds
        return None

    def _bar(self, event: TrainerProgressed, position: float) -> float:
        elapsed = event.elapsed_seconds
        if elapsed is None:
            return 0.0
        if event.total not in self._bars:
            first = not self._bars and not self.dated
            self._bars[event.total] = position if first else position - elapsed
        return max(0.0, self._bars[event.total] + elapsed - position)

    def _note(self, event: Event) -> bool:
        """Remember what the event says of launches. True for the first line of a new one."""
        kind = type(event)
        if kind in _ENDS:
            self._ended = True
        elif isinstance(event, CheckpointLoaded):
            self._started = event.iteration or 0
        elif isinstance(event, ArgumentsDumped):
            interval = event.values.get("log_interval") or event.values.get("logging_steps")
            if (
                interval is not None
                and interval.isdecimal()
                and len(interval) < 19
                and 0 < int(interval) <= _LONGEST_INTERVAL
            ):
                self._interval = int(interval)
        begins = isinstance(event, ArgumentsDumped | TopologyLogged) or (
            isinstance(event, MilestoneReached) and event.milestone in _MILESTONES_OF_LAUNCH
        )
        return begins and (self._stepped or self._ended)

    def _begin(self) -> None:
        self._stepped = self._ended = self._waited = False
        self._started, self._elapsed = 0, 0.0
        self._untimed = self._counted = None
        self._last.clear()
        self._bars.clear()

    # --- placing ----------------------------------------------------------------------------------------------------

    def place(
        self, waiting: list[LogEvent], dated: LogEvent | None, source: str, raw: float | None = None
    ) -> Iterator[Placed]:
        """The undated entries, and the dated one that ends their silence, with its stamp (`moment`): None where the
        source, or patience, has ended.
        """
        begin = self.now
        if not waiting and dated is not None and raw is not None:
            at = self._on_own_scale(dated.event, raw) if self.dated else self._first_stamp(dated.event, raw)
            yield self._dated(dated, at, source, "unknown" if self._unsure else "proved")
            return
        spans = self._spans(waiting, dated)
        if dated is None or raw is None:
            yield from self._forward(waiting, spans, source)
            return
        told = sum(span.seconds for span in spans)
        at = self._on_own_scale(dated.event, raw, told) if self.dated else self._first_stamp(dated.event, raw)
        if begin is None:
            yield from self._backward(waiting, spans, at, source)
        else:
            yield from self._between(waiting, spans, begin, at, dated, source)
        carried, self._carried = self._carried, 0
        loose = any(span.open for span in spans)
        unknown = self._unsure or (carried and not loose)
        yield self._dated(dated, at, source, "unknown" if unknown else "lawful" if loose else "proved")

    def _first_stamp(self, event: Event, raw: float) -> float:
        """The first one after iterations that were counted from 0 makes no silence: their scale goes on."""
        if self.now is None:
            self.dated = True
            return self._on_own_scale(event, raw)
        key = _writer(event)
        if key not in self._offsets:
            self._offsets[key] = [self.now - raw]
        return self._on_own_scale(event, raw)

    def wants_seconds(self, event: Event) -> bool:
        """Whether a launch's first step has come without the time it took, which another form of it may tell."""
        return not self._stepped and isinstance(event, EngineStepLogged) and event.step > 0 and _seconds(event) is None

    def _dated(self, entry: LogEvent, at: float, source: str, proof: Proof) -> Placed:
        event = entry.event
        if self._note(event):
            self._begin()
        first = not self._stepped
        steps = self._steps(event, None)
        took = (_seconds(event) or self.first_seconds) * steps if first and steps else 0.0
        self.now, self.first_seconds = at, 0.0
        return Placed(at, entry, source, proof, True, took)

    def _spans(self, waiting: list[LogEvent], dated: LogEvent | None) -> list[_Span]:
        """What each of the undated entries says of its time."""
        numbers = [number for entry in (*waiting, dated) if entry and (number := _number(entry.event)) is not None]
        numbers.reverse()
        spans: list[_Span] = []
        position = self.now or 0.0
        for entry in waiting:
            event = entry.event
            kind = type(event)
            launch = self._note(event)
            ended = self._ended
            if launch:
                self._begin()
            number = _number(event)
            if number is not None:
                numbers.pop()
            following = next((other for other in reversed(numbers) if other != number), None)
            first = not self._stepped
            says = self._says(event, following, position)
            unknown = kind in STEP and kind not in (TrainerProgressed, TrainerLogged)
            known = says is not None
            seconds = says or 0.0
            position += seconds
            is_open = not known and (kind in _OPEN or unknown or (kind is TrainerLogged and not self._bars))
            took = seconds if first and self._stepped else 0.0
            step = kind is IterationLogged or kind is EngineStepLogged
            spans.append(
                _Span(
                    seconds, known, is_open, kind in _BEGINNINGS, launch, launch and ended, took, step and seconds > 0
                )
            )
        _into_steps(spans)
        return spans

    def _forward(self, waiting: list[LogEvent], spans: list[_Span], source: str) -> Iterator[Placed]:
        """No stamp follows: each at the earliest. What stands before the first one that tells a time gets that time."""
        if self.now is None and not any(span.known for span in spans):
            for entry in waiting:
                yield Placed(float("inf"), entry, source, "proved", False)
            return
        at = self.now
        if at is None:
            first = next(span for span in spans if span.known)
            at = first.seconds
            index = spans.index(first)
            spans[index] = first._replace(seconds=0.0)
        for entry, span in zip(waiting, spans, strict=True):
            at += span.seconds
            self._carried += span.open
            yield Placed(at, entry, source, "lawful" if span.open else "proved", False, span.took)
        self.now = at

    def _backward(self, waiting: list[LogEvent], spans: list[_Span], end: float, source: str) -> Iterator[Placed]:
        """Before the first stamp: as long before it as they say they took."""
        after = sum(span.seconds for span in spans)
        after -= next((span.seconds for span in spans if span.known), 0.0)
        timed = False
        for entry, span in zip(waiting, spans, strict=True):
            if timed:
                after -= span.seconds
            timed = timed or span.known
            yield Placed(end - max(after, 0.0), entry, source, "proved", False, span.took)

    def _between(
        self, waiting: list[LogEvent], spans: list[_Span], begin: float, end: float, dated: LogEvent, source: str
    ) -> Iterator[Placed]:
        """Between two stamps: by what they say, and what is left over where a line leaves it open."""
        told = sum(span.seconds for span in spans)
        last = (_seconds(dated.event) or 0.0) * self._peek(dated.event) if _number(dated.event) is not None else 0.0
        if _number(dated.event) == self._counted:
            last = 0.0  # a copy of one that has come
        slack = end - begin - told - last
        if slack < 0:
            slack = max(0.0, end - begin - told)
            if told > 0 and last > 0 and slack < last:  # the times printed are longer than the clock allows
                scale = (end - begin) / (told + last)
                spans = [span._replace(seconds=span.seconds * scale) for span in spans]
                slack = 0.0
        at = begin
        if self._carried:
            share = slack * self._carried / (self._carried + sum(span.open for span in spans))
            at, slack = begin + share, slack - share
        shares = _shares(spans, slack)
        if slack > 0 and not any(shares) and not self._counting:  # a job's `.err`: its ends are at its end
            ending = next((index for index, entry in enumerate(waiting) if type(entry.event) in _ENDS), None)
            if ending is not None:
                shares[ending] = slack
        jumped, counting = at > begin, self._counting
        for entry, span, share in zip(waiting, spans, shares, strict=True):
            at = min(at + span.seconds + share, end)
            proof: Proof = "lawful" if span.open and not span.launch else "proved"
            if jumped or span.after_end:
                proof = "unknown"
            elif not counting and type(entry.event) in _ENDS:
                proof = "beside"
            jumped = False
            yield Placed(at, entry, source, proof, False, span.took)


class _Span(NamedTuple):
    """What an undated line says of its time."""

    seconds: float
    known: bool
    """It says how long it took, or that it took no time."""
    open: bool
    """It is progress, and does not say when."""
    begins: bool
    """It begins what a later line ends: it comes at once."""
    launch: bool
    after_end: bool
    """The first line of a launch, after something had ended the one before."""
    took: float
    step: bool
    """It is a step that took time."""


def _into_steps(spans: list[_Span]) -> None:
    """An evaluation or save between two steps took what the second says more than the first: it is in its time."""
    usual: float | None = None
    between: list[int] = []
    for index, span in enumerate(spans):
        if span.launch:
            usual, between = None, []
        elif span.step:
            more = span.seconds - usual if usual is not None else 0.0
            if between and more > 0:
                for other in between:
                    spans[other] = spans[other]._replace(seconds=more / len(between))
                spans[index] = span._replace(seconds=span.seconds - more)
            else:
                usual = span.seconds
            between = []
        elif span.open:
            between.append(index)


def _shares(spans: list[_Span], slack: float) -> list[float]:
    """Of the seconds that no line explains, those before each line."""
    shares = [0.0] * len(spans)
    if slack <= 0:
        return shares
    relaunched = [index for index, span in enumerate(spans) if span.after_end]
    if relaunched:  # between two launches any time may pass
        for index in relaunched:
            shares[index] = slack / len(relaunched)
        return shares
    launched = next((index for index, span in enumerate(spans) if span.launch), None)
    if launched is not None:  # the launch before ended in silence
        shares[launched] = max(0.0, slack - _LAUNCH)
        slack -= shares[launched]
    begin = 0 if launched is None else launched + 1
    free = [index for index in range(begin, len(spans)) if spans[index].open]
    free = [index for index in free if not spans[index].begins] or free
    for index in free:
        shares[index] = slack / len(free)
    return shares


_Writer = tuple[str | None, bool, bool]


def _writer(event: Event) -> _Writer:
    """Whose clock a stamp is from: (node, whether it prints no year, whether it names its zone)."""
    text = event.logged_at or ""
    return event.node, text.startswith("--"), _zoned(text)


def _zoned(text: str | None) -> bool:
    """Whether the stamp names its zone."""
    return text is not None and len(text) > 19 and (text[-1] == "Z" or "+" in text[19:] or "-" in text[19:])


def _number(event: Event) -> int | None:
    if isinstance(event, IterationLogged):
        return event.iteration
    return event.step if isinstance(event, EngineStepLogged) else None


def _seconds(event: Event) -> float | None:
    if isinstance(event, IterationLogged):
        return event.seconds_per_iteration
    return event.seconds_per_step if isinstance(event, EngineStepLogged) else None


class _Following:
    """An iterator that can look ahead a little."""

    def __init__(self, entries: Iterator[LogEvent]) -> None:
        self._entries = entries
        self._seen: deque[LogEvent] = deque()

    def __iter__(self) -> Iterator[LogEvent]:
        while True:
            entry = self._seen.popleft() if self._seen else next(self._entries, None)
            if entry is None:
                return
            yield entry

    def seconds_of(self, step: Event) -> float:
        """Of the same step, as a line close behind says; 0 if none does."""
        for entry in itertools.islice(self._entries, _LOOK_AHEAD):
            self._seen.append(entry)
            number = _number(entry.event)
            if number is not None:
                return (_seconds(entry.event) or 0.0) if number == _number(step) else 0.0
        return 0.0


class Dating:
    """One source's entries in, the same at their times out. A bare stamp (`TimeShown`) that the next one contradicts is
    none.
    """

    def __init__(self, source: str, clock: SourceClock | None = None) -> None:
        self.clock = clock or SourceClock()
        self._source = source
        self._waiting: list[LogEvent] = []
        self._shown: LogEvent | None = None
        self._since: list[LogEvent] = []

    def feed(self, entry: LogEvent) -> Iterator[Placed]:
        """The next one. What comes out may be earlier ones, or nothing yet."""
        raw = self.clock.moment(entry.event)
        if raw is None:
            waiting = self._waiting if self._shown is None else self._since
            waiting.append(entry)
            if len(self._waiting) + len(self._since) >= _MOST_WAITING:
                yield from self.flush()
            return
        if self._shown is not None:
            yield from self._settle(raw)
        if isinstance(entry.event, TimeShown):
            self._shown = entry
            return
        waiting, self._waiting = self._waiting, []
        yield from self.clock.place(waiting, entry, self._source, raw)

    def flush(self) -> Iterator[Placed]:
        """What waits for a stamp."""
        if self._shown is not None:
            yield from self._settle(None)
        waiting, self._waiting = self._waiting, []
        yield from self.clock.place(waiting, None, self._source)

    def _settle(self, raw: float | None) -> Iterator[Placed]:
        """The bare stamp, now that the next one is known."""
        shown, since = self._shown, self._since
        self._shown, self._since = None, []
        told = self.clock.moment(shown.event) if shown is not None else None
        if shown is not None and told is not None and (raw is None or told <= raw + _SKEW):
            waiting, self._waiting = self._waiting, since
            yield from self.clock.place(waiting, shown, self._source, told)
        else:
            self._waiting += since


def clocked(entries: Iterable[LogEvent], source: str, clock: SourceClock | None = None) -> Iterator[Placed]:
    """Every entry at its time, in order. A source that never shows one stands at the end of the others (infinity)."""
    dating = Dating(source, clock)
    following = _Following(iter(entries))
    for entry in following:
        if dating.clock.wants_seconds(entry.event):
            dating.clock.first_seconds = following.seconds_of(entry.event)
        yield from dating.feed(entry)
    yield from dating.flush()


class Silence:
    """Of one source: how long it has shown no progress, as far as its lines prove it."""

    def __init__(self, source: str) -> None:
        self._dating = Dating(source)
        self.progress_at: float | None = None
        """The last time at which progress may have been."""
        self.last_at: float | None = None
        """The last time that is known."""

    def see(self, entry: LogEvent) -> None:
        """The source's next entry."""
        for placed in self._dating.feed(entry):
            self._take(placed)

    def close(self) -> None:
        """No more will come."""
        for placed in self._dating.flush():
            self._take(placed)

    def _take(self, placed: Placed) -> None:
        if not self._dating.clock.dated or placed.at == float("inf"):
            return
        self.last_at = placed.at
        if type(placed.entry.event) in _PROGRESS or (placed.dated and placed.proof != "proved"):
            self.progress_at = placed.at

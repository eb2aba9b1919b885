"""Finds the steps of a home-made loop, of which no format is known, in one stream.

A line that names a counter and a loss (rule `unread.step`) may be anything: an evaluation, a search, a status. Several
lines with the same words and a growing number are the steps of a training, unless a rule has read steps of the stream.
The numbers of a loop that begins anew, without an end or a set-up before it, count on: it is the next epoch.
"""

import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

from megatron_monitor.parsers import events
from megatron_monitor.parsers.events import IterationLogged, LogEvent, StepInferred

FORMAT = "own-loop"
_LINES = 3  # lines with growing numbers that show a loop, or that it has gone back
_SERIES = 4  # sorts of lines that may be the loop's
_NOT_LETTERS = re.compile(r"[^A-Za-z]+|(?i:\b(?:nan|inf)\b)")
_MAX_KEY = 200  # characters
_NO_TRAINING = re.compile(r"(?i)\b(?:eval|val|valid|test|dev|infer|predict|generat)[a-z]{0,8}\b")
_AT_WORK = (
    events.StepInferred, events.EvaluationProgressed, events.ValidationLogged, events.CheckpointSaveStarted,
    events.CheckpointSaved, events.CheckpointFileWritten, events.TrainerProgressed, events.MemoryReported,
    events.Malformed, events.LineDiscarded, events.ThroughputReported, events.PartBegan,
)  # fmt: skip
"""Events between two steps that are no set-up and no end."""
_KNOWN = (events.IterationLogged, events.EngineStepLogged, events.TrainerLogged, events.DocumentSeen)
"""Events of a stream whose steps a rule reads, or that is no log."""


class InferredSteps(Struct, omit_defaults=True):
    """The loop of a stream: plain values, saved with the reader's position."""

    off: bool = False
    """True: a rule reads the steps."""
    wording: str = ""
    """The words of the loop's lines; empty until it is found."""
    rank: int | None = None
    last: tuple[int, int] = (0, -1)
    """(epoch, number) of its last step."""
    before: int = 0
    """Steps of the passes before, if its numbers begin anew."""
    interrupted: bool = False
    """True: an end or a set-up came since the last step."""
    drawn: bool = False
    """True: a bar was drawn since the last line of an epoch, so the epoch is no step."""
    held: dict[str, list[tuple[int, str, StepInferred]]] = field(default_factory=dict)
    """Words -> lines that may be the loop's, or show that it has gone back."""

    def read(self, entries: list[LogEvent]) -> list[LogEvent]:
        """Return the entries with the steps of the loop among them."""
        found: list[LogEvent] = []
        for index, entry in enumerate(entries):
            event = entry.event
            self.off = self.off or isinstance(event, _KNOWN)
            if self.off:
                return [*found, *entries[index:]] if found else entries
            if type(event) is StepInferred:
                found += self._read(entry, event)
            else:
                self.drawn = self.drawn or type(event) is events.TrainerProgressed
                self.interrupted = self.interrupted or not isinstance(event, _AT_WORK)
                found.append(entry)
        return found

    def _read(self, entry: LogEvent, event: StepInferred) -> list[LogEvent]:
        place = _place(event)
        if event.step is None and event.place is None and self.drawn:
            place, self.drawn = None, False
        wording = "" if place is None else _wording(entry.text)
        if place is None or not wording:
            return [entry]
        if wording == self.wording:
            if event.rank != self.rank:
                return []  # another rank's copy
            if place > self.last:
                self.held.clear()
                return [self._step(entry.line, entry.text, event)]
        held = self.held.setdefault(wording, [])
        before = _place(held[-1][2]) if held else None
        if before == place:
            return [entry]
        if before is not None and before > place:
            held.clear()
        held.append((entry.line, entry.text, event))
        if len(self.held) > _SERIES:
            del self.held[next(iter(self.held))]
        if len(held) < _LINES or len({str(one.losses) for _, _, one in held}) < 2:
            del held[: 1 - _LINES]
            return [entry]
        self._begin(wording, [one for _, _, one in held])
        self.held = {}
        return [self._step(*one) for one in held]

    def _begin(self, wording: str, steps: Sequence[StepInferred]) -> None:
        """Begin with the loop, or with its next pass: without an end before it, and from its beginning. Then its first
        number is at most the distance to the second.
        """
        (epoch, first), (_, second) = (_place(step) or (0, 0) for step in steps[:2])
        if wording != self.wording:
            self.wording, self.rank, self.last, self.before = wording, steps[0].rank, (0, -1), 0
        elif epoch or self.interrupted:
            self.before = 0
        elif first <= (every := second - first):
            self.before += self.last[1] + (every if first == 0 else 0)

    def _step(self, line: int, text: str, event: StepInferred) -> LogEvent:
        self.last, self.interrupted = _place(event) or self.last, False
        origin = {"rank": event.rank, "node": event.node, "logged_at": event.logged_at}
        values: dict[str, Any] = {
            "iteration": self.before + self.last[1],
            "lm_loss": event.losses[0],
            "format": FORMAT,
            **origin,
        }
        if event.step is None and event.place is None:
            values["train_iterations"] = event.epochs
        elif event.epoch is None:
            values["train_iterations"] = None if self.before else event.total
        else:
            whole = (event.total or 0) * (event.epochs or 0) or None
            values |= {"epoch": event.epoch, "epoch_steps": event.total, "train_iterations": whole}
        return LogEvent(line, "unread.step", IterationLogged(**values), text)


def _wording(text: str) -> str:
    """Return the words up to the loss, which are the same in all lines of a loop; empty for an evaluation's line."""
    wording = _NOT_LETTERS.sub(" ", text[: text.lower().find("loss") + 4][:_MAX_KEY])
    return "" if _NO_TRAINING.search(wording) else wording


def _place(event: StepInferred) -> tuple[int, int] | None:
    """Return (epoch, number) of the step. Epochs alone count if their number is known, else the end is unknown."""
    step = event.step if event.step is not None else event.place
    if step is not None:
        return event.epoch or 0, step
    return None if event.epoch is None or event.epochs is None else (0, event.epoch)

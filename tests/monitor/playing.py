"""Trainings played to the judgement: each line at the instant at which it is written, no clock, no file."""

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from megatron_monitor.config import load
from megatron_monitor.evaluation import Evaluator, MonitoredRun
from megatron_monitor.incidents import Transition
from megatron_monitor.parsers.reader import SourceReader
from megatron_monitor.run.state import RunState
from megatron_monitor.simulate import Fault, Scenario, timeline
from megatron_monitor.source_clock import TimedEvent
from tests.corpus.inputs import inputs


@dataclass
class Played:
    """What was said, and the run at the end."""

    reported: list[Transition]
    state: RunState

    def of(self, incident: str, *, display_only: bool = False) -> list[Transition]:
        """Transitions of one kind; quiet ones only where asked for."""
        return [item for item in self.reported if item.incident == incident and (display_only or not item.display_only)]

    def firing(self, incident: str) -> Transition:
        """The only firing of a kind."""
        (item,) = [item for item in self.of(incident) if item.status == "firing"]
        return item

    def shown(self, incident: str) -> Transition:
        """The first firing of a kind, told or not."""
        return next(item for item in self.of(incident, display_only=True) if item.status == "firing")

    def kinds(self) -> set[str]:
        """Kinds that a person was told of."""
        return {item.incident for item in self.reported if not item.display_only}


class Playing:
    """Texts at their instants in seconds, as many at a time as there are; what has been played can be kept."""

    def __init__(self, config: str = "") -> None:
        self.reader, self.judge = SourceReader(), Evaluator(load(config), repeats=False)
        self.run = MonitoredRun(RunState(name="run", live=True))
        self.reported: list[Transition] = []
        self.at = 0.0

    def feed(self, timed: Iterable[tuple[float, str]], stream: str = "log") -> None:
        """More of them; another stream's lines stand in a file of their own, and are whole."""
        reader = self.reader if stream == "log" else SourceReader()
        for at, text in timed:
            self.wait(at)
            for entry in reader.feed(text.encode()):
                self.reported.extend(self.judge.take(self.run, [TimedEvent.of(at, entry, stream)], stream, at, True))
            self.at = at

    def wait(self, at: float) -> None:
        """Time passes until that instant."""
        self.reported.extend(self.judge.pass_until(self.run, at))

    def end(self, after: float) -> Played:
        """`after` seconds of silence."""
        self.reported.extend(self.judge.finish(self.run, self.at + after))
        return Played(self.reported, self.run.state)

    def kept(self) -> Callable[[], "Playing"]:
        """Makes others of it, each to be gone on with."""
        mark, held = self.reader.save(), pickle.dumps((self.judge, self.run, self.reported, self.at))

        def another() -> Playing:
            other = Playing.__new__(Playing)
            other.reader = SourceReader()
            other.reader.restore(mark)
            other.judge, other.run, other.reported, other.at = pickle.loads(held)
            return other

        return another


def play(timed: Iterable[tuple[float, str]], after: float = 0.0, config: str = "") -> Played:
    """Texts at their instants in seconds, then `after` seconds of silence."""
    playing = Playing(config)
    playing.feed(timed)
    return playing.end(after)


def given(group: str, name: str) -> list[tuple[float, str]]:
    """The texts of an input of the corpus, for what its facts do not hold."""
    (found,) = (one for one in inputs(group) if one.name == name)
    return [(piece.at, piece.data.decode()) for piece in found.pieces]


def texts(scenario: Scenario) -> Iterator[tuple[float, str]]:
    """A scenario's texts at the instants at which they are written."""
    for emission in timeline(scenario):
        yield emission.at, emission.text


def fault(kind: str, at: int = 300, *, after: float = 0.0, iterations: int = 400, **more: object) -> Played:
    """A training of BLOOM's sizes with one fault; keyword arguments of Fault or Scenario."""
    names = {"factor", "seconds", "length"}
    faults = (Fault(kind, at, **{k: v for k, v in more.items() if k in names}),)  # type: ignore[arg-type]
    sizes = {k: v for k, v in more.items() if k not in names}
    return play(texts(Scenario(iterations=iterations, faults=faults, **sizes)), after)  # type: ignore[arg-type]


def healthy(iterations: int = 400, *, after: float = 0.0, **more: object) -> Played:
    """The same without a fault."""
    return play(texts(Scenario(iterations=iterations, **more)), after)  # type: ignore[arg-type]

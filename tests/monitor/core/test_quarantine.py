"""Nothing that a log makes the monitor do ends the daemon: what fails is put aside, its neighbour goes on."""

import json
import logging
import math
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from megatron_monitor import evaluation
from megatron_monitor.core import view
from megatron_monitor.core.saved import Saved
from megatron_monitor.detectors import RULES
from megatron_monitor.detectors.base import Rule
from megatron_monitor.detectors.loss_spike import LossSpike
from megatron_monitor.follow.messages import Restarted
from megatron_monitor.model.topology import Topology
from megatron_monitor.notifiers.message import payload
from megatron_monitor.parsers.events import EVENT_TYPES, Event, LogEvent, SizesReported
from megatron_monitor.parsers.reader import SourceReader
from megatron_monitor.serve.exchange import Request
from megatron_monitor.serve.http import App
from tests.clock import ManualClock
from tests.commands import command
from tests.lines import line
from tests.monitor.core.following import Following
from tests.plain import decode, encode

NOW = 1_700_000_000.0


class Two(Following):
    """A run that is called bad and one that is called good, each with a file."""

    def __init__(self) -> None:
        super().__init__("runs=[{paths: [/l/*.log]}]")
        self.number = 0
        for path in ("/l/bad.log", "/l/good.log"):
            self.open(path)

    def step(self, text: bytes = b"", seconds: float = 10.0) -> None:
        """Both write the next iteration; the bad one `text` besides."""
        self.number += 1
        self.now += seconds
        for path in self.written:
            self.write(path, line(self.number).encode() + (text if "bad" in path else b""))
        self.reported += self.core.tick(self.now)

    def served(self) -> dict[str, bytes]:
        """What HTTP shows."""
        snapshot, clock = self.core.snapshot(self.now), ManualClock(self.now)
        app = App(lambda _asked: snapshot, clock, clock.monotonic)
        paths = ["/", "/metrics", "/api/v1/runs", "/api/v1/incidents", *(f"/runs/{run.run}" for run in snapshot.runs)]
        replies = {path: app(Request(path=path)) for path in paths}
        assert {reply.status for reply in replies.values()} == {200}
        return {path: reply.body for path, reply in replies.items()}

    def saved(self) -> Saved:
        """What a restart finds."""
        self.kept.save(self.core, self.now)
        return self.kept.saved()

    def quarantine(self) -> dict[str, float]:
        """Room -> how much was put aside."""
        counted = self.core.counted().values.get("megatron_monitor_quarantined_total", {})
        return {labels[0]: count for labels, count in counted.items()}

    def check_good(self) -> None:
        """The neighbour is read, judged, shown and saved; its hang is told."""
        good = self.core.runs["good"]
        assert good.state.attempt.latest.iteration == self.number
        assert not good.book.open
        assert f'megatron_iteration{{run="good"}} {self.number:.1f}'.encode() in self.served()["/metrics"]
        assert self.saved().runs["good"].state.attempt.latest.iteration == self.number
        self.reported += self.core.tick(self.now + 7200.0)
        assert [(one.incident, one.status) for one in self.reported if one.run == "good" and not one.display_only] == [
            ("hang", "firing")
        ]


def raising(real: Callable[..., Any], run: str = "bad") -> Callable[..., Any]:
    """The same, but it raises at that run."""

    def call(*args: Any, **kwargs: Any) -> Any:
        first = args[1] if isinstance(args[0], Rule) else args[0]
        state = getattr(first, "state", first)
        if getattr(state, "name", run) == run:
            raise OverflowError("cannot convert float infinity to integer")
        return real(*args, **kwargs)

    return call


CALLS = [
    (name, call)
    for name, rule in RULES.items()
    for call in ("evaluate", "on_steps", "on_event")
    if getattr(rule, call) is not getattr(Rule, call)
]


@pytest.mark.parametrize(("detector", "call"), CALLS, ids=lambda part: part)
def test_a_detector_that_raises(monkeypatch: pytest.MonkeyPatch, detector: str, call: str) -> None:
    """Its run is put aside, told once and not saved; the neighbour goes on."""
    rule = RULES[detector]
    monkeypatch.setattr(rule, call, raising(getattr(rule, call)))
    two = Two()
    for _ in range(3):
        two.step()
    for kind in rule.listens:
        entry = LogEvent(9, "x", _event(kind), b"")
        two.core.folding.take(two.core.sources["/l/bad.log"], [entry], two.now, two.now)
    two.step()
    two.step()
    assert two.quarantine() == {"run": 1.0}
    assert [(one.incident, one.severity) for one in two.reported if one.run == "bad"] == [("source_lost", "critical")]
    assert "OverflowError" in two.reported[0].summary
    assert set(two.saved().runs) == {"good"}
    assert set(two.saved().sources) == {"/l/good.log"}
    two.check_good()


@pytest.mark.parametrize("room", ["reader", "fold", "page", "metrics", "state", "gather"])
def test_a_room_that_raises(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, room: str) -> None:
    """Told once, logged once with its traceback, and nothing else is touched."""
    two = Two()
    two.step()
    two.step()
    bad = two.core.sources["/l/bad.log"]
    if room == "reader":
        monkeypatch.setattr(bad, "reader", SourceReader())
        monkeypatch.setattr(bad.reader, "feed", raising(bad.reader.feed))
    elif room == "fold":
        monkeypatch.setattr(evaluation, "fold", raising(evaluation.fold))
    elif room == "page":
        monkeypatch.setattr(view, "page_of", raising(view.page_of))
    elif room == "metrics":
        monkeypatch.setattr(view, "samples_of", raising(view.samples_of))
    elif room == "state":
        two.core.runs["bad"].state.attempt.software["x"] = "\ud800"
    else:
        monkeypatch.setattr(bad.reader, "save", raising(bad.reader.save))
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            two.step()
            two.served()
            two.saved()
    names = {"reader": "source", "fold": "run", "metrics": "page", "gather": "state"}
    assert two.quarantine() == {names.get(room, room): 1.0}
    (record,) = [record for record in caplog.records if record.name == "megatron_monitor.core.quarantine"]
    assert record.exc_info is not None
    lost = [one for one in two.reported if one.run == "bad"]
    if room in ("reader", "fold"):
        assert [(one.incident, one.status, one.severity) for one in lost] == [("source_lost", "firing", "critical")]
    else:
        assert lost == []
        assert two.core.runs["bad"].state.attempt.latest.iteration == two.number
    assert ("bad" in two.saved().runs) is (room in ("page", "metrics"))
    two.check_good()


def test_a_source_is_read_again_when_other_content_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a rotation it is a log as any other; what was told is resolved."""
    two = Two()
    two.step()
    bad = two.core.sources["/l/bad.log"]
    monkeypatch.setattr(bad.reader, "feed", raising(bad.reader.feed))
    two.step()
    two.core.handle(Restarted("/l/bad.log", "rotated", "proof"), two.now)
    two.written["/l/bad.log"] = b""
    two.step()
    assert [(one.incident, one.status) for one in two.reported] == [
        ("source_lost", "firing"),
        ("source_lost", "resolved"),
    ]
    assert two.core.runs["bad"].state.attempt.latest.iteration == two.number
    two.check_good()


# --- numbers in every field of every event --------------------------------------------------------------------------

WHOLE = (0, -1, 2**31, 2**53, -(2**53))  # 2,000 times the largest, summed up, are no more than 64 bits
REAL = (math.inf, -math.inf, math.nan, -0.0, 1e308, 5e-324)
BEYOND = (10**18 - 1, 10**400)
NO_TEXT = ("\ud800",)
TEXTS = ("", "²", "١٢", "inf", "nan", "-0", "1" * 400, "\x1b[0m")


def _fitting(kind: Any) -> tuple[Any, ...]:
    """Values that the type of a field allows, as a parser may make them."""
    origin, of = typing.get_origin(kind), typing.get_args(kind)
    if origin is dict:
        return tuple({key: value} for key in ("x", "²", "") for value in _fitting(of[1]))
    if origin is tuple:
        return tuple(zip(*(_fitting(one) for one in of), strict=False))
    if origin is typing.Literal:
        return tuple(of)
    if of:
        return tuple(value for one in of for value in _fitting(one))
    table: dict[Any, tuple[Any, ...]] = {int: WHOLE, float: REAL, str: TEXTS, bool: (True, False), type(None): (None,)}
    return table.get(kind, ())


def _event(kind: type[Event], **values: Any) -> Event:
    """An event of this type with plain values where it needs some."""
    hints = typing.get_type_hints(kind)
    for one in msgspec.structs.fields(kind):
        if one.required and one.name not in values:
            plain = {int: 3, float: 3.0, str: "x"}
            fitting = _fitting(hints[one.name])
            values[one.name] = plain.get(hints[one.name], fitting[0] if fitting else None)
    return kind(**values)


def _variants(kind: type[Event], *, beyond: bool) -> Iterator[Event]:
    if kind is SizesReported:  # its names are a closed set
        sizes = [one.name for one in msgspec.structs.fields(Topology) if one.type == "int | None"]
        yield from (SizesReported(values={name: value}) for name in sizes for value in (BEYOND if beyond else WHOLE))
        return
    for place, (name, hint) in enumerate(typing.get_type_hints(kind).items()):
        if typing.get_origin(hint) is typing.ClassVar or name not in kind.__struct_fields__:
            continue
        fitting = _fitting(hint)
        if not beyond:
            values = fitting
        elif any(isinstance(one, int | float) and not isinstance(one, bool) for one in fitting):
            values = (BEYOND[place % 2],)
        elif any(isinstance(one, str) for one in fitting):
            values = NO_TEXT
        else:
            values = ()
        for value in values:
            yield _event(kind, **{name: value})


@pytest.mark.parametrize("kind", EVENT_TYPES.values(), ids=EVENT_TYPES)
def test_each_field_of_each_event(kind: type[Event]) -> None:
    """What a parser may give is folded, judged, shown, sent and saved, and nothing is put aside; what none may give
    (beyond 64 bits) costs its own run at most.
    """
    two = Two()
    two.step()
    two.step()
    for place, event in enumerate(_variants(kind, beyond=False)):
        two.core.folding.take(two.core.sources["/l/bad.log"], [LogEvent(place, "x", event, b"x")], two.now, two.now)
        two.reported += two.core.tick(two.now)
        if place % 128 == 0:
            two.step()
            two.served()
    for one in two.reported:
        json.loads(json.dumps(payload(one), allow_nan=False))
    encode(decode(encode(two.core.save(two.now)), Saved))
    two.served()
    assert two.quarantine() == {}
    two.step()
    two.reported = [one for one in two.reported if one.run == "good"]
    two.check_good()
    for event in _variants(kind, beyond=True):
        two = Two()
        two.core.folding.take(two.core.sources["/l/bad.log"], [LogEvent(1, "x", event, b"x")], two.now, two.now)
        two.step()
        two.core.snapshot(two.now)
        two.saved()
        assert two.core.runs["good"].state.attempt.latest.iteration == two.number


def test_replay_gives_no_verdict_on_a_quarantined_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A detector that fails at a run: exit 1, and the reason."""
    (tmp_path / "bad.log").write_text("".join(map(line, range(1, 30))))
    monkeypatch.setattr(LossSpike, "evaluate", raising(LossSpike.evaluate))
    result = command("replay", tmp_path / "bad.log", code=1)
    assert "bad is quarantined: " in result.stderr
    assert "an error in the monitor's own code" in result.stderr

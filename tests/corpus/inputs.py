"""Inputs of the corpus: YAML files in inputs/, each a list of logs as timed lines. README.md shows the steps."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from megatron_monitor.simulate import Fault, Scenario, timeline
from tests.simulated import printed

INPUTS = Path(__file__).parent / "inputs"
BEGINS = 1_700_000_000.0  # Unix seconds of the first line, unless an input says otherwise


class Piece(NamedTuple):
    """Bytes and when they are written, in seconds since the beginning."""

    at: float
    file: str
    data: bytes


@dataclass(frozen=True)
class Input:
    """The logs of one or several files."""

    name: str
    pieces: tuple[Piece, ...]
    """In the order of their times."""
    after: float = 0.0
    """Seconds that are watched behind the last line."""
    begins: float = BEGINS
    settings: tuple[str, ...] = ()
    """KEY=VALUE, as `--set` takes them."""
    files: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        """The files in the order in which they appear."""
        object.__setattr__(self, "files", tuple(dict.fromkeys(piece.file for piece in self.pieces)))

    def content(self, file: str) -> bytes:
        """All of a file."""
        return b"".join(piece.data for piece in self.pieces if piece.file == file)

    def written_at(self, file: str) -> float:
        """When it was last written, Unix seconds."""
        return self.begins + max(piece.at for piece in self.pieces if piece.file == file)


class _Writer:
    """Plays the steps of one input. Times are seconds since its beginning."""

    def __init__(self, begins: float) -> None:
        self.begins, self.at, self.file = begins, 0.0, "run.log"
        self.pieces: list[Piece] = []

    def put(self, at: float, text: str) -> None:
        self.pieces.append(Piece(at, self.file, text.encode("utf-8", "surrogateescape")))

    def play(self, steps: list[dict[str, Any]]) -> None:
        for step in steps:
            (verb, value), *others = step.items()
            getattr(self, f"_{verb}")(value, **dict(others))

    def _file(self, name: str) -> None:
        """What follows is written there."""
        self.file = name

    def _at(self, seconds: float) -> None:
        """Go to this time."""
        self.at = float(seconds)

    def _wait(self, seconds: float) -> None:
        self.at += seconds

    def _say(self, text: str) -> None:
        self.put(self.at, text)

    def _lines(self, text: str, every: float = 1.0) -> None:
        """Each line of the text so many seconds after the one before."""
        for line in text.splitlines(keepends=True):
            self.at += every
            self.put(self.at, line)

    def _repeat(self, count: int, steps: list[dict[str, Any]]) -> None:
        for _ in range(count):
            self.play(steps)

    def _count(self, bounds: list[int], text: str, every: float = 1.0, **values_of: Any) -> None:
        """The text for each n of [first, last], `every` seconds apart. In it `{n}`, `{at:%H:%M:%S}`, `{ran:%M:%S}`
        since they began, and any number that is given as [first value, step]; or as texts, one for each n or for all.
        """
        (first, last), began = bounds, self.at
        for n in range(first, last + 1):
            self.at += every
            values = {name: _value(how, n - first) for name, how in values_of.items()}
            self.put(self.at, text.format(n=n, at=_utc(self.begins + self.at), ran=_utc(self.at - began), **values))

    def _simulate(
        self, sizes: dict[str, Any], until: int | None = None, *, head: bool = False, part: list[int] | None = None,
        prefix: str = "",
    ) -> None:  # fmt: skip
        """A training of monitor/simulate, from here on; up to the line of an iteration, its head alone, or its texts of
        [first, last]. `prefix` stands before each line.
        """
        sizes = {**sizes, "faults": tuple(Fault(**one) for one in sizes.get("faults", ()))}
        sizes["inner"] = printed("verl") if sizes.get("format") == "verl" else None
        texts, start = timeline(Scenario(**{"start_epoch": self.begins + self.at, **sizes})), self.at
        if head:
            texts = itertools.takewhile(lambda one: one.truth is None, texts)
        if part is not None:
            texts = itertools.islice(texts, part[0], part[1] + 1)
        for one in texts:
            self.at = start + one.at
            self.put(self.at, "".join(prefix + line for line in one.text.splitlines(keepends=True)))
            if until is not None and (one.truth or {}).get("iteration") == until:
                break


def _value(how: list[Any] | str, place: int) -> Any:
    return how if isinstance(how, str) else how[place] if isinstance(how[0], str) else how[0] + place * how[1]


def _utc(moment: float) -> datetime:
    return datetime.fromtimestamp(moment, UTC)


def _made(row: dict[str, Any]) -> Input:
    moment = row.get("begins")
    begins = BEGINS if moment is None else datetime.fromisoformat(f"{moment}+00:00").timestamp()
    writer = _Writer(begins)
    writer.play(row["log"])
    pieces = sorted(writer.pieces, key=lambda piece: piece.at)
    return Input(row["name"], tuple(pieces), row.get("after", 0.0), begins, tuple(row.get("set", ())))


def groups() -> list[str]:
    """The names of the files in inputs/."""
    return sorted(path.stem for path in INPUTS.glob("*.yaml"))


def inputs(group: str) -> Iterator[Input]:
    """Those of a file. A row with `each` stands for several: its `log` with each of the texts in place of `$each`."""
    rows = yaml.load((INPUTS / f"{group}.yaml").read_text(), Loader=yaml.CSafeLoader)
    for row in rows:
        for name, text in row.pop("each", {"": None}).items():
            yield _made({**row, "name": f"{row['name']} {name}".strip(), "log": _filled(row["log"], text)})


def _filled(value: Any, text: Any) -> Any:
    """With `text` for each value that is `$each`."""
    if isinstance(value, dict):
        return {key: _filled(one, text) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, text) for one in value]
    return text if value == "$each" else value

"""What is recorded of each input, the comparison with it, and `make corpus`: all logs of ../shared too.

`make corpus ARGS=--record` writes expected/ and shared.json anew; review the difference.
"""

import argparse
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import pairwise
from operator import attrgetter
from pathlib import Path

import click

from tests.corpus import modes
from tests.corpus.inputs import Input, Piece, groups, inputs

HERE = Path(__file__).parent
EXPECTED = HERE / "expected"
SHARED = HERE.parents[2] / "shared"
SHARED_RECORD = HERE / "shared.json"
FOLDERS = ("logs", "field-logs", "recordings", "cases")
LOGS = (".log", ".out", ".err", ".output", ".txt")

TOGETHER = (
    "logs/nvidia/2340723.*", "field-logs/neox_3982836.*", "cases/37_*/**/*.log", "cases/38_*/**/*.log",
    "cases/60_*/hf-validation-flat/*.log", "cases/60_*/hf-validation-torchrun-layout/**/*.log",
    "cases/one-path/job.*", *(f"cases/one-path/v{number}/*" for number in range(2, 7)),
)  # fmt: skip
"""Files of one training."""
Record = dict[str, list[str]]
"""Name of an input -> its facts."""


def record_of(given: Iterable[Input]) -> Record:
    """Each input, played."""
    found = Record()
    for one in given:
        with tempfile.TemporaryDirectory(prefix="corpus-") as folder:
            facts = modes.played(one, Path(folder) / "job")
        if one.name in found:
            raise ValueError(f"two inputs are called {one.name!r}")
        found[one.name] = [fact.replace(f"{folder}/job", "") for fact in facts]
    return found


def expected(group: str) -> Record:
    """What is recorded of a group."""
    path = EXPECTED / f"{group}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def difference(known: Record, found: Record) -> list[str]:
    """Lines for a person: what is no more, and what is new, of each input that differs."""
    lines = []
    for name in sorted(known.keys() | found.keys()):
        old, new = known.get(name, []), found.get(name, [])
        if old != new:
            lines.append(f"{name}:")
            lines += [f"  - {fact}" for fact in old if fact not in new]
            lines += [f"  + {fact}" for fact in new if fact not in old]
    return lines


def write(path: Path, record: Record) -> None:
    """One fact a line."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=0, ensure_ascii=False, sort_keys=True) + "\n")


# --- logs beside the project ------------------------------------------------------------------------------------------


def shared_logs() -> dict[str, list[str]]:
    """Name -> paths below ../shared: each log by itself, and files that are read together."""
    logs = (path for folder in FOLDERS for path in (SHARED / folder).rglob("*") if path.suffix in LOGS)
    found = {name: [name] for name in (str(path.relative_to(SHARED)) for path in logs)}
    for pattern in TOGETHER:
        if files := sorted(str(path.relative_to(SHARED)) for path in SHARED.glob(pattern) if path.suffix in LOGS):
            found[f"together: {pattern}"] = files
    return found


def _of_shared(item: tuple[str, list[str]]) -> tuple[str, list[str]]:
    name, files = item
    facts: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="corpus-") as folder:
        for file in files:
            copy = Path(folder) / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes((SHARED / file).read_bytes())
            os.utime(copy, (1.7e9, 1.7e9))
        copies = [f"{folder}/{file}" for file in files]
        found = {"R": modes.replayed(copies), "O": modes.read_once(copies)}
        if (given := _in_time(name, files)) is not None:
            found |= {"L": modes.live(given, folder), "K": modes.live(given, folder, kills=2)}
    for mode, several in found.items():
        for fact in several:
            if " says: message" not in fact:  # words of logs that are not ours
                facts[fact] = facts.get(fact, "") + mode
    return name, sorted(f"{fact.replace(folder, '')}  [{held}]" for fact, held in facts.items())


_STAMP = re.compile(rb"(20\d\d)[-/](\d\d)[-/](\d\d)[ T](\d\d):(\d\d):(\d\d)")
_FEWEST = 10  # stamps of a log that can be played live
_LIVE_BYTES = 400_000
_DAY = 86400.0


def _in_time(name: str, files: list[str]) -> Input | None:
    """A log of which many lines are stamped and which is not too long, each line at its time: those without a stamp
    evenly between those that have one.
    """
    texts = {file: (SHARED / file).read_bytes().splitlines(keepends=True) for file in files}
    stamped = {file: _stamps(lines) for file, lines in texts.items()}
    if (
        sum(map(len, stamped.values())) < _FEWEST
        or sum(len(line) for lines in texts.values() for line in lines) > _LIVE_BYTES
    ):
        return None
    begins = min(at for stamps in stamped.values() for _, at in stamps)
    pieces = list[Piece]()
    for file, lines in texts.items():
        stamps = [(-1, begins), *stamped[file], (len(lines), max(at for _, at in stamped[file] or [(0, begins)]))]
        for (first, at), (last, until) in pairwise(stamps):
            pace = (until - at) / (last - first)
            pieces += [
                Piece(at - begins + pace * (n - first), file, lines[n])
                for n in range(first + 1, last + 1)
                if n < len(lines)
            ]
    pieces.sort(key=attrgetter("at"))
    return Input(name, tuple(pieces), after=900.0, begins=begins)


def _stamps(lines: list[bytes]) -> list[tuple[int, float]]:
    """(number of the line, Unix seconds) of those that go on from one another."""
    found = list[tuple[int, float]]()
    for number, line in enumerate(lines):
        if (match := _STAMP.search(line)) is None:
            continue
        try:
            at = datetime(*map(int, match.groups()), tzinfo=UTC).timestamp()
        except ValueError:
            continue
        if not found or 0 <= at - found[-1][1] < _DAY:
            found.append((number, at))
    return found


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="write what is expected anew")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", help="groups or logs whose name holds this")
    options = parser.parse_args()
    began = time.process_time()
    differs = _groups(options.only, record=options.record)
    click.echo(f"inputs: {time.process_time() - began:.1f} CPU seconds")
    differs |= _shared(options.only, options.workers, record=options.record)
    sys.exit(int(differs and not options.record))


def _groups(only: str, *, record: bool) -> bool:
    differs = False
    for group in groups():
        if only in group:
            found = record_of(inputs(group))
            lines = difference(expected(group), found)
            differs |= bool(lines)
            click.echo("\n".join([f"{group}: {len(found)} inputs, {'differs' if lines else 'as recorded'}", *lines]))
            if record:
                write(EXPECTED / f"{group}.json", found)
    return differs


def _shared(only: str, workers: int, *, record: bool) -> bool:
    known: Record = json.loads(SHARED_RECORD.read_text()) if SHARED_RECORD.exists() else {}
    logs = {name: files for name, files in shared_logs().items() if only in name}
    with multiprocessing.Pool(workers) as pool:
        found = dict(pool.imap_unordered(_of_shared, sorted(logs.items())))
    for name in sorted(found.keys() - known.keys()):
        click.echo(f"not recorded: {name}")
    for name in sorted(known.keys() - found.keys()):
        if only in name:
            click.echo(f"absent: {name}")
    both = found.keys() & known.keys()
    lines = difference({name: known[name] for name in both}, {name: found[name] for name in both})
    click.echo(
        "\n".join([f"{len(both)} logs of ../shared compared, {'differences' if lines else 'as recorded'}", *lines])
    )
    if record:
        write(SHARED_RECORD, known | found)
    return bool(lines)


if __name__ == "__main__":
    _main()

"""What the monitor says of strangers' logs, beside a naive reading: `python -m benchmarks.truth FOLDER [--all]`.

Every log below FOLDER is played as `replay` plays it, and read a second time by a reading that knows nothing of the
product: the last of the numbers that grow from line to line, or of the bar that was drawn the longest, and what the
last lines say of an end. Where the two disagree both are printed, with the last line: a person judges who is wrong.
No log is shipped with this; the figures of one collection stand in docs/detection.md.
"""

import argparse
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from megatron_monitor.config import Config, load
from megatron_monitor.judgement import Judge
from megatron_monitor.parsers.events import LogEvent
from megatron_monitor.reading import dated_events
from megatron_monitor.replay import replay

_TAIL = 200  # lines in which a log's last words stand
_LEAST = 5  # steps from which on a training is one
_LIKE = 0.05  # by which two counts of steps may differ: reports stand for several steps
_MOST = 4_000_000  # characters of a log that the naive reading looks at
_BREAK = re.compile(r"\r\n|[\r\n]|\x1b\[A|(?<=[\]}])(?=[ ]{0,3}\d{1,3}%\|)")
_NUMBER = re.compile(r"(?<![\w.])\d{1,9}(?![\w.]*[\w])")
_ANY = re.compile(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?")
_BAR = re.compile(r"(?:([\w ()-]{1,60}):)? {0,4}\d+%\|[^|]*\| *(\d+)/(\d+) \[([\d:]+)<[^\]]{0,120}\]?")
_OWN_BAR = re.compile(r"|train\w*|step\w*|iter\w*|training progress", re.IGNORECASE)
_STEP = re.compile(r"(?:^|[^a-z])(?:global[_ ])?(?:step|iter|iteration|update|batch)s?\W{0,3}$", re.IGNORECASE)
_BESIDE = re.compile(r"epoch|lr|token|second|time|size|rank|pid|port|node|gpu|shard|batch size", re.IGNORECASE)
_ENDS = {  # naive words, in the order in which one is believed before another
    "oom": r"out of memory|OutOfMemory|oom[-_ ]?kill|DefaultCPUAllocator|RESOURCE_EXHAUSTED|Cannot allocate memory",
    "stopped": r"KeyboardInterrupt|JOB \d+ ON \S+ CANCELLED|TIME LIMIT|got signal: ",
    "killed": r"\bKilled\b|exitcode:? -9|Signal 9|SIGKILL|Segmentation fault|core dumped|Bus error",
    "error": r"^\s*(?:\[rank\d+\]: ?|\d+: ?|E\s)?(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Failure)\b"
    r"|exit(?:ed with|ing with)? ?(?:code|status)[ =:]{0,2}[1-9]|[Ee]rror: |Exited with exit code",
}
_END_WORDS = {name: re.compile(words) for name, words in _ENDS.items()}
_DONE = re.compile(
    r"train_runtime|[Tt]raining (?:is )?(?:completed?|done|finished)|after training is done"
    r"|exiting program at iteration|[Ff]inished training"
)
_SAME = {"oom": {"cuda_oom", "host_oom"}, "stopped": {"stopped", "time_limit", "preempted"}}


class Reading(NamedTuple):
    """What somebody says of a log."""

    steps: int | None
    """The last step; None where no training is seen."""
    end: str
    """`open`, `finished`, or how it failed."""
    told: tuple[str, ...] = ()
    """Incidents that were told beside a crash."""
    last: str = ""


def naive(text: str) -> Reading:
    """A log without any knowledge of programs."""
    if len(text) > _MOST:
        text = text[: _MOST // 2] + "\n" + text[-_MOST // 2 :]
    lines = [line.strip() for line in _BREAK.split(text) if line.strip()]
    steps, at = _counted(lines)
    behind = [line for line in (_BAR.sub("", line) for line in lines[max(at, len(lines) - _TAIL) :]) if line.strip()]
    end, words = "open", "\n".join(behind)
    failed = next((name for name, pattern in _END_WORDS.items() if pattern.search(words)), None)
    if failed is not None:
        end = failed
    elif _DONE.search("\n".join(lines[-_TAIL:])):
        end = "finished"
    return Reading(steps, end, last=lines[-1][:160] if lines else "")


def _counted(lines: list[str]) -> tuple[int | None, int]:
    """(the last step, the line in which it stands)."""
    bars: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    shapes: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for number, line in enumerate(lines):
        for name, step, total, elapsed in _BAR.findall(line):
            if _OWN_BAR.fullmatch(name.strip()):
                bars[int(total)].append((int(step), _seconds(elapsed), number))
        if len(line) > 2000 or "%|" in line:
            continue
        shape = _ANY.sub("#", line)[:60]
        for column, match in enumerate(_NUMBER.finditer(line[:300])):
            if column > 5:
                break
            before = line[: match.start()]
            if _STEP.search(before) and not _BESIDE.search(before[-12:]):
                shapes[shape, column].append((int(match[0]), number))
    found = [(len(grown), grown[-1]) for grown in map(_grows, shapes.values()) if grown]
    if found:
        return max(found)[1]
    moved = [several for several in bars.values() if len({one[0] for one in several}) >= _LEAST]
    drawn = [(max(one[1] for one in several), several[-1]) for several in moved]
    if not drawn:
        return None, -1
    _, (step, _, at) = max(drawn)
    return step, at


def _grows(points: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The points at which a number grew, if it nearly always did."""
    grown = [points[0]]
    for point in points[1:]:
        if point[0] > grown[-1][0]:
            grown.append(point)
    return grown if len(grown) >= max(_LEAST, 0.2 * len(points)) else []


def _seconds(clock: str) -> int:
    total = 0
    for part in clock.split(":"):
        total = 60 * total + int(part or 0)
    return total


def product(path: Path) -> Reading:
    """The same log as `replay` judges it."""
    config = load("", ())
    judge = Judge(config, repeats=False)
    steps: int | None = None
    end, told, cause = "open", Counter[str](), ""
    sources, written = {str(path): _events(path, config)}, {str(path): path.stat().st_mtime}
    for player, transition in replay(judge, path.name, sources, written=written):
        if transition is None:
            state = player.run.state
            if state.proven:
                steps = max(steps or 0, state.launch.last_iteration or 0)
                end = state.launch.phase if state.launch.phase in ("finished", "crashed") else "open"
            elif steps is None and state.launch.failure:
                end = state.launch.failure.failure  # `replay` names it where it finds no training
        elif transition.status == "firing" and not transition.quiet:
            if transition.incident == "crash":
                cause = str(transition.evidence.get("failure") or "unknown")
            elif transition.severity != "info":
                told[transition.incident] += 1
    if cause:
        end = f"{end}, then {cause}" if end == "finished" else cause
    return Reading(steps, end, tuple(f"{name} x{count}" for name, count in sorted(told.items())))


def _events(path: Path, config: Config) -> Iterator[LogEvent]:
    with path.open("rb") as stream:
        yield from dated_events(stream, config)


def disagreements(ours: Reading, theirs: Reading) -> list[str]:
    """In which of the two questions they differ, and what was told beside an end."""
    out = []
    if (ours.steps or 0) == 0 and (theirs.steps or 0) >= _LEAST:
        out.append("no steps")
    elif ours.steps and theirs.steps and abs(ours.steps - theirs.steps) > max(2, _LIKE * theirs.steps):
        out.append("steps")
    failed = theirs.end not in ("open", "finished")
    if failed and ours.end in ("open", "finished"):
        out.append("failure untold")
    elif not failed and ours.end not in ("open", "finished"):
        out.append("failure told")
    elif failed and theirs.end in _SAME and ours.end not in _SAME[theirs.end]:
        out.append("cause")
    elif theirs.end == "finished" and ours.end == "open":
        out.append("end untold")
    return [*out, *(f"told {one}" for one in ours.told)]


def compare(path: Path) -> tuple[Path, Reading, Reading]:
    """Both readings of one log."""
    return path, product(path), naive(path.read_bytes()[: 4 * _MOST].decode(errors="replace"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--all", action="store_true", help="also the logs of which both say the same")
    arguments = parser.parse_args()
    logs = sorted(path for path in arguments.folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    counts: Counter[str] = Counter()
    with ProcessPoolExecutor(2) as pool:
        for path, ours, theirs in pool.map(compare, logs, chunksize=4):
            differ = disagreements(ours, theirs)
            counts.update(re.sub(r" x\d+$", "", one) for one in differ)
            counts["logs"] += 1
            counts["agreed"] += not differ
            if differ or arguments.all:
                print(f"{'; '.join(differ) or 'agreed'}: {path.relative_to(arguments.folder)}")
                print(f"    monitor {ours.steps} {ours.end}   naive {theirs.steps} {theirs.end}   {theirs.last}")
            sys.stdout.flush()
    print(", ".join(f"{name} {count}" for name, count in counts.most_common()))


if __name__ == "__main__":
    main()

"""`run --once` on real logs, each grown to one size, against mtail with a program for the same facts.

A log is grown by repeating its part from the first iteration line on, with iteration numbers that go on. The real logs
are no part of the repository: they are looked for in the folder `shared` beside it, or where
--real-logs says. Grown logs are written to the scratch folder alone.
"""

import csv
import re
import shutil
from pathlib import Path
from statistics import median

from benchmarks.speed.logs import HEAD, written
from benchmarks.speed.measure import MONITOR, SCRATCH, Row, in_turns, middle, run

FOLDER = Path(__file__).parents[3] / "shared"
PROGRAM = Path(__file__).parent / "mtail" / "training.mtail"
MTAIL = ("mtail", "--one_shot", "--logtostderr", "--port", "0", "--progs", str(PROGRAM), "--logs")
with Path(__file__).with_name("real.csv").open() as _rows:
    LOGS = dict(csv.reader(_rows))
"""Logs of the shared folder that are measured, and the programs that wrote them. A folder without any of them is
measured whole."""
_SUFFIXES = {".log", ".out", ".output", ".err"}
_MEDIAN_GOAL, _LEAST_GOAL = 2.0, 1.2
_SIZE, _TURNS = 20_000_000, 3

_STEP = [
    re.compile(rb"\biteration[ =]{1,20}(?P<step>\d{1,12})[ ]{0,20}/[ ]{0,20}(?P<total>\d{1,12})"),
    re.compile(rb"'global_step/max_steps': '(?P<step>\d{1,12})/(?P<total>\d{1,12})"),
    re.compile(rb"\bsteps: (?P<step>\d{1,12})(?P<total>) loss"),
    re.compile(rb"\bstep=(?P<step>\d{1,12})(?P<total>), skipped"),
    re.compile(rb"\bcompleted step: (?P<step>\d{1,12})(?P<total>)"),
    re.compile(rb"\[batch=(?P<step>\d{1,12})/(?P<total>\d{1,12})\]"),
]
"""What an iteration line looks like: the first of these that a log holds decides."""
_NUMBERS = (
    rb"((?:\biteration[ =]|\bsteps?[=:] ?|\bglobal_step=|'global_step/max_steps': '|\bcompleted step: |\[batch=)"
    rb"[ ]{0,20}"
    rb"|\|[ ]{0,4}(?=\d{1,12}/(?:%s) \[))(\d{1,12})\b"
)
"""Where a log says at which iteration it is; a progress bar counts if it ends at the training's total."""
_COUNTED = re.compile(rb"^megatron_iterations_total\{.*\} (\S+)$", re.MULTILINE)


def real_logs(folder: Path) -> dict[Path, str]:
    """The logs to measure and the programs that wrote them; exits with a message if there are none."""
    known = {folder / path: program for path, program in LOGS.items() if (folder / path).is_file()}
    logs = known or dict.fromkeys(every_log(folder), "")
    if not logs:
        raise SystemExit(f"no real logs in {folder}: name a folder that holds some with --real-logs DIR")
    return logs


def every_log(folder: Path) -> list[Path]:
    """All logs of the folder, the subfolders `logs` and `field-logs` alone where it has them."""
    roots = [root for root in (folder / "logs", folder / "field-logs") if root.is_dir()] or [folder]
    return sorted(path for root in roots for path in root.rglob("*") if path.is_file() and path.suffix in _SUFFIXES)


def grown(source: Path, size: int) -> tuple[Path, int]:
    """(the log grown to `size` bytes, how many iteration lines it holds). Kept in the scratch folder."""
    data = source.read_bytes()
    step = next((step for step in _STEP if step.search(data)), None)
    found = list(step.finditer(data)) if step else []
    begin = data.rfind(b"\n", 0, found[0].start()) + 1 if found else 0
    head, body = data[:begin], data[begin:].rstrip(b"\n") + b"\n"
    steps = sorted({int(one["step"]) for one in found})
    span = steps[-1] - steps[0] + (steps[1] - steps[0] if steps[1:] else 1) if steps else 0  # the log interval stays
    totals = {one["total"] for one in found} - {b""}
    # text, name, number, text, name, number, ... , text
    pieces = re.split(_NUMBERS % (b"|".join(sorted(totals)) or b"x"), body)
    target = SCRATCH / f"{size}.{source.name}"
    copies = 0
    with target.open("wb") as out:
        written = out.write(head)
        while written < size:
            written += out.write(b"".join(pieces))
            copies += 1
            pieces[2::3] = [b"%d" % (int(number) + span) for number in pieces[2::3]]
    return target, copies * len(found)


def framed(log: Path) -> Path:
    """The log with each drawing of a progress bar as a line, for mtail, which splits lines at line feeds alone."""
    data = log.read_bytes()
    if b"\r" not in data:
        return log
    target = log.with_name(f"frames.{log.name}")
    target.write_bytes(data.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
    return target


def against_mtail(share: float, folder: Path) -> tuple[list[Row], str]:
    """The rows with goals, and a table by log."""
    if not shutil.which("mtail"):
        raise SystemExit("mtail is missing (Debian: apt-get install mtail)")
    together = SCRATCH / "all-real-logs.log"
    with together.open("wb") as out:
        for path in every_log(folder):
            with path.open("rb") as stream:
                shutil.copyfileobj(stream, out)
            out.write(b"\n")
    logs = [(path.name, program, *grown(path, int(_SIZE * share))) for path, program in real_logs(folder).items()]
    logs.append(("all real logs in one file", "all of these and more", together, 0))
    run((*MONITOR, "run", "--once", str(written(SCRATCH / "empty.log", [HEAD]))))  # its bytecode is cached
    columns = ("log", "program", "iteration lines", "iterations counted", "mtail, processor s", "monitor, processor s")
    lines = [f"| {' | '.join((*columns, 'ratio', 'wall ratio', 'MB/s'))} |", "| --- " * 9 + "|"]
    ratios: dict[str, float] = {}
    walls: dict[str, float] = {}
    for name, program, log, iterations in logs:
        runs = in_turns({"mtail": (*MTAIL, str(framed(log))), "monitor": (*MONITOR, "run", "--once", str(log))}, _TURNS)
        peer, mine = middle(runs["mtail"]), middle(runs["monitor"])
        counted = sum(map(float, _COUNTED.findall((SCRATCH / "monitor.output").read_bytes())))
        ratios[name], walls[name] = peer.cpu / mine.cpu, peer.wall / mine.wall
        lines.append(
            f"| {name} | {program} | {iterations or ''} | {counted:.0f} | {peer.cpu:.2f} | {mine.cpu:.2f} "
            f"| {ratios[name]:.1f} | {walls[name]:.1f} | {log.stat().st_size / mine.cpu / 1e6:.0f} |"
        )
    whole, whole_wall = ratios.pop(logs[-1][0]), walls.pop(logs[-1][0])
    slowest = min(ratios, key=ratios.__getitem__)
    what = f"`run --once` against mtail, {len(ratios)} real logs grown to {_SIZE * share / 1e6:.0f} MB each"
    rows = [
        Row(
            f"{what}: median",
            f"{median(ratios.values()):.1f}x its speed by processor time, {median(walls.values()):.1f}x by wall time",
            f"{_MEDIAN_GOAL:.0f}x", median(ratios.values()) >= _MEDIAN_GOAL,
        ),
        Row(
            f"... the slowest, {slowest}",
            f"{ratios[slowest]:.1f}x by processor time, {walls[slowest]:.1f}x by wall time",
            f"{_LEAST_GOAL:.1f}x", ratios[slowest] >= _LEAST_GOAL,
        ),
        Row(
            f"... all real logs in one file, {together.stat().st_size / 1e6:.0f} MB",
            f"{whole:.1f}x by processor time, {whole_wall:.1f}x by wall time",
        ),
    ]  # fmt: skip
    return rows, "\n".join(lines)

"""`make mutants [ARGS='plan outbox --workers 4']`: changes one comparison, threshold or condition after the other, runs
the near tests on each, and prints what no test noticed. Exits 1 on a survivor that docs/mutants.md does not explain.

cosmic-ray makes and tries the mutants; here stand which files, by which tests, and which changes are worth a run. Each
worker changes a copy of the working tree of its own.
"""

import argparse
import multiprocessing
import os
import queue
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import parso
from cosmic_ray import plugins
from cosmic_ray.commands.init import _all_work_items
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.operators.operator import Operator
from cosmic_ray.work_item import WorkItem

from megatron_monitor.system.clock import SystemClock

FILES = {
    "monitor/hands/plan.py": "tests/monitor/hands/test_plan.py",
    "monitor/hands/permission.py": "tests/monitor/hands/test_permission.py",
    "monitor/hands/executor.py": "tests/monitor/hands/test_executor.py",
    "monitor/core/outbox.py": "tests/monitor/core/test_outbox_limits.py tests/monitor/core/test_outbox.py",
    "monitor/run/steps/watch.py": "tests/monitor/run/test_watch.py",
    "monitor/run/ending.py": "tests/monitor/run/test_ending_limits.py tests/monitor/run/test_ending.py",
    "monitor/run/evidence.py": "tests/monitor/run/test_evidence.py",
    "monitor/run/silence.py": "tests/monitor/run/test_silence.py",
    "monitor/detectors/hang/budget.py": "tests/monitor/detectors/test_budget.py",
    "monitor/detectors/hang/__init__.py": "tests/monitor/detectors/test_hang_verdict.py",
}
"""A file and the tests that are near it, those that find most first: a line here is all that a new file needs."""
CLOCK = SystemClock()
EQUIVALENT = Path("docs/mutants.md")
ROW = re.compile(r"^\| `(?P<file>[^`]+)` \| `(?P<before>[^`]+)` \| `(?P<after>[^`]*)` \|")
_ORDER, _SAME = "Lt LtE Gt GtE", "Eq NotEq"
_PAIRS = {
    *((one, other) for one in _ORDER.split() for other in f"{_ORDER} {_SAME}".split()),
    ("Eq", "NotEq"), ("NotEq", "Eq"), ("Is", "IsNot"), ("IsNot", "Is"),
}  # fmt: skip
"""Comparisons that are tried for one: names and states have no order, and `is` in place of `==` proves nothing."""
_ARITHMETIC = {("Add", "Sub"), ("Sub", "Add"), ("Mul", "Div"), ("Div", "Mul"), ("Pow", "Mul"), ("BitAnd", "BitOr")}
_LEFT_OUT = ("RemoveDecorator", "Variable", "ReplaceUnaryOperator_USub_Invert", "ReplaceUnaryOperator_USub_UAdd")


class LeaveOut(Operator):
    """One condition of several is left out: `a and b` becomes `a`, then `b`."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        """One for each condition."""
        if node.type in ("and_test", "or_test"):
            for child in node.children[::2]:
                yield child.start_pos, child.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Without it, and without the word before or behind it."""
        first = max(0, 2 * index - 1)
        del node.children[first : first + 2]
        if index == 0:
            node.children[0].get_first_leaf().prefix = " "
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        """None."""
        return ()


class TurnIn(Operator):
    """`in` becomes `not in`, and the other way round."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        """Each comparison by `in`; not the word of a loop."""
        if node.type == "comparison" and node.children[1].get_code().split() in (["in"], ["not", "in"]):
            yield node.children[1].start_pos, node.children[1].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """The opposite."""
        assert index == 0
        node.children[1] = parso.parse(" in" if "not" in node.children[1].get_code() else " not in")
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        """None."""
        return ()


plugins.OPERATOR_PROVIDERS["conditions"] = {one.__name__: one for one in (LeaveOut, TurnIn)}


class Result(NamedTuple):
    """What became of a mutant: killed, timeout, survived, or broken where it could not be tried."""

    file: str
    place: int
    operator: str
    outcome: str
    before: str
    after: str


def mutants(file: Path) -> Iterator[WorkItem]:
    """Those of a file; how a class is made is no condition, and a `*` among parameters no arithmetic."""
    rows = file.read_text().splitlines()
    for item in _all_work_items([file], {}):
        (mutation,) = item.mutations
        row, operator = rows[mutation.start_pos[0] - 1].lstrip(), mutation.operator_name
        if (
            wanted(operator)
            and not row.startswith(("@", "class "))
            and not ("Binary" in operator and row.startswith("def "))
        ):
            yield item


def wanted(operator: str) -> bool:
    """Is this change worth a run of the tests?"""
    name = operator.partition("/")[2]
    if name.startswith(_LEFT_OUT):
        return False
    kind, _, pair = name.partition("Operator_")
    if kind in ("ReplaceComparison", "ReplaceBinary"):
        return tuple(pair.split("_")) in (_PAIRS if kind == "ReplaceComparison" else _ARITHMETIC)
    return True


def enter(copies: Any) -> None:
    """A worker's process goes to a copy of the tree that is its alone."""
    os.chdir(copies.get())
    os.nice(5)


def attempt(item: WorkItem, tests: str, limit: float) -> Result:
    """Change, test, change back."""
    (mutation,) = item.mutations
    done = mutate_and_test(item.mutations, command(tests), limit)
    outcome = str(done.test_outcome.value) if done.test_outcome is not None else "broken"
    if outcome == "incompetent":
        outcome = "broken"
    if done.output == "timeout":
        outcome = "timeout"
    changed = [row for row in (done.diff or "").splitlines() if row[:1] in "+-" and row[:3] not in ("---", "+++")]
    before = " ".join(row[1:].strip() for row in changed if row[0] == "-")
    after = " ".join(row[1:].strip() for row in changed if row[0] == "+")
    file, place = str(mutation.module_path), mutation.start_pos[0]
    return Result(file, place, mutation.operator_name.partition("/")[2], outcome, before, after)


def command(tests: str) -> str:
    """The near tests, up to the first that fails."""
    return f"{shlex.quote(sys.executable)} -m pytest -x -q -p no:cacheprovider {tests}"


def copied(count: int, below: Path) -> list[str]:
    """Copies of the working tree: what git knows, and what it does not ignore."""
    listed = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], check=True, capture_output=True).stdout
    places = [below / f"copy{number}" / "tree" for number in range(count)]
    for place in places:
        for name in filter(None, listed.decode().split("\0")):
            if Path(name).is_file():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(name, place / name)
    return [str(place) for place in places]


def explained() -> dict[tuple[str, str, str], int]:
    """The table of docs/mutants.md: (file, line, changed line), none met yet."""
    rows = (ROW.match(row.replace("\\|", "|")) for row in EQUIVALENT.read_text().splitlines())
    return {(row["file"], row["before"], row["after"]): 0 for row in rows if row}


def main() -> int:
    """The figures of each file, and its survivors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help="parts of the names of files; none: all")
    parser.add_argument("--workers", type=int, default=2, help="processes, each with a copy of the tree")
    parser.add_argument("--list", action="store_true", help="print how many mutants there are, and try none")
    options = parser.parse_args()
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # a third of a run's time, where a file has few tests
    known, bad = explained(), False
    with tempfile.TemporaryDirectory() as below, multiprocessing.Manager() as manager:
        copies: queue.Queue[str] = manager.Queue()
        for place in copied(options.workers, Path(below)):
            copies.put(place)
        with ProcessPoolExecutor(options.workers, initializer=enter, initargs=(copies,)) as pool:
            for file, tests in FILES.items():
                if options.files and not any(part in file for part in options.files):
                    continue
                items = list(mutants(Path(file)))
                if options.list:
                    print(f"{file}: {len(items)}")
                    continue
                began = CLOCK.monotonic()
                if subprocess.run(shlex.split(command(tests)), check=False, stdout=subprocess.DEVNULL).returncode:
                    print(f"{file}: its tests fail without any change: {tests}")
                    return 2
                limit = 10.0 + 5 * (CLOCK.monotonic() - began)
                results = list[Result]()
                for future in as_completed([pool.submit(attempt, item, tests, limit) for item in items]):
                    results.append(future.result())
                    if sys.stderr.isatty():
                        print(f"\r{len(results)} of {len(items)}  \r", end="", file=sys.stderr, flush=True)
                bad |= report(file, results, known, CLOCK.monotonic() - began)
    return int(bad)


def report(file: str, results: list[Result], known: dict[tuple[str, str, str], int], seconds: float) -> bool:
    """Print it; is anything unexplained?"""
    counts, open_ends = Counter(one.outcome for one in results), list[Result]()
    for one in results:
        key = one.file, one.before, one.after
        if one.outcome == "survived" and key in known:
            known[key] += 1
            counts["survived"] -= 1
            counts["equivalent"] += 1
        elif one.outcome in ("survived", "broken"):
            open_ends.append(one)
    shown = ", ".join(f"{counts[name]} {name}" for name in ("killed", "timeout", "equivalent", "survived", "broken"))
    print(f"{file}: {len(results)} mutants, {shown}; {seconds / 60:.1f} min", flush=True)
    for one in sorted(open_ends):
        print(f"  {one.outcome} {one.file}:{one.place} {one.operator}\n    - {one.before}\n    + {one.after}")
    idle = [key for key, met in known.items() if key[0] == file and not met]
    for _, before, after in idle:
        print(f"  {EQUIVALENT} explains what did not survive:\n    - {before}\n    + {after}")
    return bool(open_ends or idle)


if __name__ == "__main__":
    sys.exit(main())

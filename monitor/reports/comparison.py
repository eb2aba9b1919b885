"""Two runs beside each other: is it the same configuration, what differs, and how sure the difference is. Pure.

Times of consecutive iterations resemble each other, so they are no independent samples: each run is cut into
consecutive blocks, and the spread of the blocks' medians gives the error of the run's own median.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from megatron_monitor.breakdown import words
from megatron_monitor.breakdown.attribution import attribute
from megatron_monitor.detectors.slowdown.words import standing
from megatron_monitor.model.arguments import is_place, is_set
from megatron_monitor.reports.columns import COLUMNS, efficiency
from megatron_monitor.reports.rows import Row
from megatron_monitor.reports.tables import Table

_BLOCKS = 16
_LEAST = 12  # fewer values give no answer
_Z = 1.959964  # 95 %, two sides
_REPEATS = 0.011  # repeats of one configuration on one machine differ by so much (A100, three days: docs/formulas.md)
_CONFIGURATION = tuple(column for column in COLUMNS if column.compare in ("repeat", "configuration"))


class Difference(NamedTuple):
    """`ratio` is b over a less 1; it lies within `low` to `high` with 95 % confidence, estimated from these runs."""

    ratio: float
    low: float
    high: float
    sure: bool
    """The interval leaves 0 out."""


def difference(a: Sequence[float], b: Sequence[float]) -> Difference | None:
    """Of the medians of two series in the order of time; None of fewer than a dozen values each."""
    if min(len(a), len(b)) < _LEAST or min(statistics.median(a), statistics.median(b)) <= 0:
        return None
    (error_a, blocks_a), (error_b, blocks_b) = _error(a), _error(b)
    # medians are compared on a logarithmic scale, where their relative errors add up
    squares = error_a**2, error_b**2
    total = math.sqrt(sum(squares))
    freedom = (
        sum(squares) ** 2 / (squares[0] ** 2 / (blocks_a - 1) + squares[1] ** 2 / (blocks_b - 1)) if total else 1e9
    )
    reach, ratio = student(freedom) * total, statistics.median(b) / statistics.median(a)
    low, high = ratio * math.exp(-reach) - 1, ratio * math.exp(reach) - 1
    return Difference(ratio - 1, low, high, low > 0 or high < 0)


def _error(values: Sequence[float]) -> tuple[float, int]:
    """(relative standard error of the median, blocks)."""
    count = min(_BLOCKS, len(values) // 3)
    edges = [len(values) * place // count for place in range(count + 1)]
    medians = [statistics.median(values[low:high]) for low, high in pairwise(edges)]
    return statistics.stdev(medians) / math.sqrt(count) / statistics.median(values), count


def student(freedom: float) -> float:
    """The 97.5 % point of Student's distribution (Cornish and Fisher's expansion, within 1 % from 3 degrees on)."""
    terms = (
        (_Z**3 + _Z) / 4,
        (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / 96,
        (3 * _Z**7 + 19 * _Z**5 + 17 * _Z**3 - 15 * _Z) / 384,
    )
    return _Z + sum(term / freedom**power for power, term in enumerate(terms, 1))


def compare(a: Row, b: Row) -> dict[str, Any]:
    """Plain data: what differs by kind, and figures with their difference; names are Row's."""
    settings = [(column.name, column.value(a), column.value(b)) for column in _CONFIGURATION]
    known = [setting for setting in settings if None not in setting]
    changed = _changes({name: value for name, value, _ in known}, {name: value for name, _, value in known})
    arguments = _changes(a.arguments, b.arguments)
    pace = difference(a.steady, b.steady)
    return {
        "runs": [a.run, b.run],
        "outcomes": [a.outcome, b.outcome],
        "same_configuration": not changed and not arguments if known else None,
        "configuration": changed,
        "arguments": arguments,
        "environment": _changes(a.environment, b.environment),
        "software": _changes(a.software, b.software),
        "figures": _figures(a, b),
        "breakdown": {name: [a.breakdown.get(name), b.breakdown.get(name)] for name in a.breakdown | b.breakdown},
        "pace": pace._asdict() if pace else None,
        "levels": [a.level, b.level],
        "verdict": _levels(a, b) + _verdict(a, b, pace, bool(changed)),
        "notes": list(_notes(a, b, changed, pace)),
    }


def _changes(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Name -> the two values, where they differ. What is in one log alone is a difference too, but not a whole dump."""
    if not a or not b:
        return {}
    pairs = {name: [a.get(name), b.get(name)] for name in dict.fromkeys((*a, *b)) if a.get(name) != b.get(name)}
    # a switch that is off is no other setting than one that a version of the program does not have
    told = {column.name for column in _CONFIGURATION}
    told |= {name for name, pair in pairs.items() if any(map(is_set, pair)) and not is_place(name)}
    return {name: pair for name, pair in pairs.items() if name in told}


def _figures(a: Row, b: Row) -> dict[str, dict[str, Any]]:
    out: dict[str, dict[str, Any]] = {}
    for column in COLUMNS:
        one, other = column.value(a), column.value(b)
        if column.compare in ("figure", "count") and (one is not None or other is not None):
            ratio = other / one - 1 if one and other is not None and column.compare == "figure" else None
            out[column.name] = {"values": [one, other], "difference": ratio}
    if (loss := _losses(a, b)) is not None:
        out["lm_loss"] = {"values": [loss[1], loss[2]], "difference": loss[2] / loss[1] - 1, "iteration": loss[0]}
    return out


def _losses(a: Row, b: Row) -> tuple[int, float, float] | None:
    """(iteration, loss of a, loss of b) at the last iteration near which both logs have one."""
    curves = (a.losses, b.losses)
    width = max(curve.width for curve in curves)
    mine, theirs = ({first // width: (low + high) / 2 for first, low, high in curve.points} for curve in curves)
    common = max(mine.keys() & theirs.keys(), default=None)
    if common is None or mine[common] <= 0:
        return None
    return common * width, mine[common], theirs[common]


def _levels(*rows: Row) -> str:
    """Of runs that became slower or faster and stayed so: their medians are of no one pace."""
    told = "".join(f"{row.run} {standing(row.level)}; " for row in rows if row.level is not None)
    return f"{told}over all iterations " if told else ""


def _verdict(a: Row, b: Row, pace: Difference | None, changed: bool) -> str:
    for row in (a, b):
        if row.seconds_per_iteration is None:
            return f"{row.run} has no steady iteration: nothing to compare"
    if pace is None:
        return "too few steady iterations to say how sure the difference is"
    interval = f"{pace.low:+.2%} to {pace.high:+.2%}, 95 %"
    if not pace.sure:
        return f"no difference beyond the runs' own spread ({pace.ratio:+.2%}; {interval})"
    word = "slower" if pace.ratio > 0 else "faster"
    verdict = f"{b.run} is {abs(pace.ratio):.2%} {word} per iteration ({interval})"
    if not changed and abs(pace.ratio) <= _REPEATS:
        return verdict + f"; repeats of one configuration differ by up to {_REPEATS:.1%} anyway"
    return verdict


def _notes(a: Row, b: Row, changed: Mapping[str, Any], pace: Difference | None) -> Iterator[str]:
    """What a reader should know before the figures are compared."""
    if a.tflops is not None and b.tflops is not None and a.tflops_formula != b.tflops_formula:
        names = f"{a.tflops_formula or 'unknown'}, {b.tflops_formula or 'unknown'}"
        yield f"TFLOPs are by different formulas ({names}): compare seconds or samples"
    one, other = (row.environment.get("CUDA_LAUNCH_BLOCKING") for row in (a, b))
    if one != other:
        yield f"CUDA_LAUNCH_BLOCKING is {one or 'unknown'} and {other or 'unknown'}: never compare across it"
    if pace is not None and pace.sure:
        yield from _cause(a, b)
    if "global_batch_size" in changed:
        yield "batch sizes differ: samples per second compare, seconds per iteration do not"
    if "gpus" in changed and (kept := efficiency(b, a)) is not None:
        yield f"per GPU {b.run} does {kept:.1%} of {a.run}'s samples per second"
    if a.restarts or b.restarts:
        yield "a run with restarts mixes launches, perhaps on other nodes"
    if pace is not None and min(a.steady_iterations, b.steady_iterations) < 30:
        yield f"measured over {a.steady_iterations} and {b.steady_iterations} iterations"


def _cause(a: Row, b: Row) -> Iterator[str]:
    """What takes the time that one needs longer, by the timers of both."""
    if a.profile is None or b.profile is None:
        return
    (_, fast), (slow, slow_profile) = sorted(((a, a.profile), (b, b.profile)), key=lambda one: one[1].seconds)
    found = attribute(fast, slow_profile, slow.pipeline_parallel_size)
    if found.part:
        yield f"of what {slow.run} takes longer, {words.sentence(found).replace(' of it', '', 1)}"


def sections(found: Mapping[str, Any]) -> Iterator[tuple[str, Table]]:
    """What differs by kind, and the figures, each with its title."""
    for kind in ("configuration", "arguments", "environment", "software"):
        if found[kind]:
            changes = tuple((name, *map(_shown, values)) for name, values in found[kind].items())
            yield f"Different {kind}", Table((" ", *found["runs"]), changes)
    yield "Figures", Table((" ", *found["runs"], "difference"), tuple(_figure_rows(found)))


def _figure_rows(found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Cells of each figure, of each part of an iteration, and of the outcome."""
    for name, figure in found["figures"].items():
        label = name.replace("_", " ") + (f" near iteration {figure['iteration']}" if "iteration" in figure else "")
        change = "" if figure["difference"] is None else f"{figure['difference']:+.2%}"
        values = figure["values"]
        if name == "memory_bytes":
            label, values = "memory GiB", [None if value is None else value / 2**30 for value in values]
        yield label, *map(_shown, values), change
    for name, (one, other) in found["breakdown"].items():
        change = f"{other - one:+.4g} s" if one is not None and other is not None else ""
        yield f"seconds in {name}", _shown(one), _shown(other), change
    yield "outcome", *found["outcomes"], ""


def _shown(value: Any) -> str:
    if value is None or isinstance(value, float):
        return "-" if value is None else f"{value:.5g}"
    return str(value) if len(str(value)) <= 60 else str(value)[:57] + "..."

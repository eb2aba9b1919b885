"""`replay`: print the incidents that the daemon would have raised on finished logs, on the logs' own clock."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import click
from msgspec.structs import replace as changed

from megatron_monitor.commands.arguments import (
    DURATION,
    ConfigOptions,
    fail,
    json_option,
    print_json,
    spooled,
    with_config,
)
from megatron_monitor.commands.progress import progress_bar
from megatron_monitor.config import Config
from megatron_monitor.detectors.base import duration
from megatron_monitor.identity.naming import named
from megatron_monitor.incidents import Transition
from megatron_monitor.once import files_of
from megatron_monitor.parsers.events import LogEvent
from megatron_monitor.reading import dated_events
from megatron_monitor.replay import Replay
from megatron_monitor.replay import replay as played
from megatron_monitor.run.ending import PLANNED

_SYMBOLS = {"firing": "!", "resolved": "+"}


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@json_option
@click.option("--all", "everything", is_flag=True, help="Include incidents that are never sent, such as late.")
@click.option(
    "--after", type=DURATION, default="10s", show_default=True, help="How long to keep judging after the last line."
)
@with_config
def replay(paths: tuple[str, ...], as_json: bool, everything: bool, after: float, given: ConfigOptions) -> None:
    """Judge finished logs on their own clock: the incidents that the daemon would have raised, and when.

    PATH may be files, directories or globs. Several files of one run (`.out` and `.err`) are read together.
    """
    seen, unfinished, quarantined, runs = False, "", dict[str, str](), defaultdict[str, list[str]](list)
    with spooled(paths) as copies:
        config = given.configured(copies)
        files, problems = files_of(changed(config, runs=config.runs[-len(copies) :]))
        for file in files:
            runs[named(file.path, config.runs).name].append(file.path)
        with progress_bar(sum(_size(file.path) for file in files)) as advance:
            for name, members in runs.items():
                sources = {path: _entries(path, config, advance, problems) for path in members}
                written = {path: os.stat(path).st_mtime for path in members if os.path.exists(path)}
                for player, item in played(config, sources, after, written):
                    if isinstance(item, Transition):
                        if everything or not item.display_only:
                            _print_transition(player, item, as_json)
                        continue
                    quarantined |= player.quarantined()
                    if item.state.proven:
                        seen = True
                        summary = player.summary(item)
                        if as_json:
                            print_json({"summary": summary})
                        else:
                            click.echo(f"= {summary['run']}: {', '.join(_sentence(summary))}")
                    elif failure := item.state.attempt.failure:
                        unfinished = f"; the last failure in {name} is {failure.failure}: {failure.message[:200]}"
    problems += [f"{name} is quarantined: {why}" for name, why in quarantined.items()]
    if not (seen or problems):
        problems.append(f"no training line in {', '.join(paths)}{unfinished}")
    if problems:
        fail(*problems)


def _size(path: str) -> int:
    return os.path.getsize(path) if os.path.isfile(path) else 0


def _entries(path: str, config: Config, advance: Callable[[float], object], problems: list[str]) -> Iterator[LogEvent]:
    try:
        with open(path, "rb") as stream:
            yield from dated_events(stream, config, advance)
    except OSError as error:
        problems.append(f"{path}: {error.strerror or error}")


def _print_transition(player: Replay, transition: Transition, as_json: bool) -> None:
    record = transition.to_json()
    record["time"] = player.time_of(transition.time)
    if as_json:
        print_json(record)
        return
    click.echo(
        f"{_SYMBOLS[transition.status]} {record['time']}  {transition.run}  {transition.incident} "
        f"{transition.status} {transition.severity}: {transition.summary}"
    )


def _sentence(summary: dict[str, Any]) -> Iterator[str]:
    """Yield the parts of a sentence that sums up a run."""
    state, last = summary["state"], summary.get("last_iteration")
    if state == "crashed" and PLANNED.issuperset(summary["failures"]):
        state = "ended"  # on purpose
    where = "" if last is None else f" after iteration {last}"
    yield ("the log ends" if state == "open" else state) + where
    yield f"{summary['iterations']} iterations in {duration(summary['seconds'])}"
    if (ratio := summary.get("goodput")) is not None:
        yield f"{100 * ratio:.1f} % of it computing"
    if (pace := summary.get("median_seconds_per_iteration")) is not None:
        yield f"{pace:.4g} s an iteration"
    if (rate := summary.get("median_samples_per_second")) is not None:
        yield f"{rate:.4g} samples/s"
    if (tflops := summary.get("median_tflops")) is not None:
        yield f"{tflops:.4g} TFLOPs per GPU"
    if summary["restarts"]:
        yield f"{summary['restarts']} restarts, {summary['lost_iterations']} iterations lost"
    counts = [f"{count} x {name}" for name, count in summary["incidents"].items()]
    yield f"incidents: {', '.join(counts)}" if counts else "no incident"
    if slowdown := summary.get("slowdown"):
        yield slowdown

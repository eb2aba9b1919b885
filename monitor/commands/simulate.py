"""`simulate`: write a synthetic log with faults, live or at once."""

import contextlib
from typing import BinaryIO

import click

from megatron_monitor.simulate import FAULTS, PROGRAMS, Fault, Scenario, write
from megatron_monitor.system.clock import SystemClock

_LISTED = "\n".join(f"  {kind:<22} {text}" for kind, text in sorted(FAULTS.items()))


@click.command(epilog=f"\b\nFaults:\n{_LISTED}")
@click.option("--fault", "kinds", multiple=True, metavar="KIND[@ITERATION]", help="Add a fault; default: half way.")
@click.option("--format", "format_name", type=click.Choice(sorted(PROGRAMS)), default="bigscience", show_default=True)
@click.option("--iterations", type=click.IntRange(1), default=500, show_default=True)
@click.option("--seconds-per-iteration", type=click.FloatRange(0, min_open=True), help="As logged.",
              default=Scenario().seconds_per_iteration)  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--speed", type=click.FloatRange(0, min_open=True), default=None, help="Play live, this much faster.")
@click.option("-o", "--output", type=click.File("wb"), default="-", help="File; standard output if none.")
def simulate(
    kinds: tuple[str, ...], format_name: str, iterations: int, seconds_per_iteration: float, seed: int,
    speed: float | None, output: BinaryIO,
) -> None:  # fmt: skip
    """Write a synthetic training log, at once or (with --speed) live, to drill alert routes and to test.

    \b
    Examples:
      megatron-monitor simulate --fault hang_evaluation -o run.log
      megatron-monitor simulate --format megatron-lm --fault crash_oom@120 --speed 10 -o live.log
    """
    scenario = scenario_of(kinds, format_name, iterations, seconds_per_iteration, seed)
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        write(scenario, output, speed=speed, clock=SystemClock())


def scenario_of(kinds: tuple[str, ...], format_name: str, iterations: int, seconds: float, seed: int) -> Scenario:
    """Return the scenario for the options; an unknown fault is a usage error that lists the valid ones."""
    try:
        faults = tuple(_fault(kind, iterations) for kind in kinds)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--fault") from error
    return Scenario(format_name, iterations, seconds_per_iteration=seconds, seed=seed, faults=faults)


def _fault(text: str, iterations: int) -> Fault:
    kind, _, at = text.partition("@")
    if at and not (at.isascii() and at.isdigit() and len(at) < 19):
        raise ValueError(f"{at!r} is not an iteration")
    if at and int(at) > iterations:
        raise ValueError(f"{text}: the training has {iterations} iterations; see --iterations")
    return Fault(kind, at=int(at) if at else iterations // 2)

"""What to simulate: a training's sizes and pace, and its faults."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from megatron_monitor.parsers.programs import BY_NAME, Program
from megatron_monitor.parsers.tables import table_in


@dataclass(frozen=True, slots=True)
class SimulatedProgram:
    """The simulated version of a program."""

    facts: Program
    says: dict[str, str]
    """Its templates for a step, a validation, a save and its end."""
    set_up: list[dict[str, Any]]
    """What it prints from the launch to the first iteration: the share of the start-up time, and the text."""
    stamped: bool = False
    """True if it prints a timestamp in each line."""

    @property
    def counts_overhead(self) -> bool:
        """Return True if the time per iteration includes the save and evaluation before it."""
        return self.facts.megatron and not (self.stamped and self.facts.pauses_timer_if_stamped)


def _program(format_name: str, stamped: bool = False, set_up: Any = None, **says: str) -> SimulatedProgram:
    known = BY_NAME.get(format_name) or Program(format_name, megatron=False)
    return SimulatedProgram(known, {**TEXTS["shared"], **says}, set_up or TEXTS["set_up"], stamped)


TEXTS: dict[str, Any] = table_in("megatron_monitor.simulate", "programs.toml")
PROGRAMS: dict[str, SimulatedProgram] = {name: _program(**row) for name, row in TEXTS["programs"].items()}
FAULTS: dict[str, str] = TEXTS["faults"]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault at an iteration. Parameters that its kind does not use are ignored."""

    kind: str
    at: int
    factor: float = 1.05
    length: int = 50

    def __post_init__(self) -> None:
        """Refuse an unknown kind."""
        if self.kind not in FAULTS:
            raise ValueError(f"{self.kind!r} is no fault; there are {', '.join(sorted(FAULTS))}")


@dataclass(frozen=True, slots=True)
class Scenario:
    """A training. The defaults are BLOOM's sizes with shorter intervals. A size of 0 is not printed."""

    format: str = "bigscience"
    iterations: int = 500
    first_iteration: int = 1
    seconds_per_iteration: float = 105.22
    noise: float = 0.004
    """Relative standard deviation of the time. In addition 1 % of the iterations are outliers."""
    seed: int = 0
    world_size: int = 384
    tp: int = 4
    pp: int = 12
    micro_batch_size: int = 2
    global_batch_size: int = 2048
    layers: int = 70
    hidden: int = 14336
    heads: int = 112
    sequence_length: int = 2048
    vocab: int = 250880
    log_interval: int = 1
    save_interval: int = 100
    """0: no saves."""
    save_seconds: float = 40.0
    eval_interval: int = 0
    """0: no evaluation."""
    eval_seconds: float = 25.0
    start_seconds: float = 60.0
    fp16: bool = False
    launch_blocking: int | None = None
    inner: Callable[..., Iterable[tuple[float, str]]] | None = None
    """(scenario, run, step, line of the step) -> (instant, text) of what an iteration prints, ending with its line."""
    faults: tuple[Fault, ...] = ()
    start_epoch: float = 1_767_225_600.0
    """Unix seconds of the first line, for formats that print times (UTC)."""

    def __post_init__(self) -> None:
        """Refuse an unknown format."""
        if self.format not in PROGRAMS:
            raise ValueError(f"{self.format!r} is not a format; there are {', '.join(sorted(PROGRAMS))}")

    @property
    def program(self) -> SimulatedProgram:
        """The program that prints the log."""
        return PROGRAMS[self.format]

    @property
    def dp(self) -> int:
        """Data parallel size."""
        return max(1, self.world_size // (self.tp * self.pp))

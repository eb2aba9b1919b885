"""Facts about the training programs that differ from Megatron-LM's, read from programs.toml.

Each program prints its iteration lines in a format of its own. The sources are the programs' own
`training_log` and `save_checkpoint`. To add a program, add a table to programs.toml and its rules to parsers/formats.
"""

from functools import cache

import msgspec
from msgspec import Struct

from megatron_monitor.parsers.tables import table_in


class Program(Struct, frozen=True):
    """A training program and its facts. The defaults hold for programs about which nothing more is known."""

    name: str
    """The name of its format, as in the label `format` and in JSON."""
    megatron: bool = True
    """Megatron's training loop: it prints set-up milestones, memory reports, saves and evaluations as Megatron does."""
    fields: tuple[str, ...] = ()
    """Field names of the iteration line that no later program in PROGRAMS prints."""
    shared_fields: tuple[str, ...] = ()
    """Field names that identify the program only if no name in any `fields` does."""
    argument: str | None = None
    """An argument in the dump at the start that only this program has."""
    formulas: tuple[str, ...] = ()
    """TFLOPs formulas (model/flops.py) of its versions, newest first. The newest one is used to compute TFLOPs."""
    reports_saves: bool = False
    """True if it prints a line for each successful save, so that a missing line is evidence."""
    silent: bool = False
    """True if it prints no line about evaluation and saving: either may follow any step."""
    results_only: bool = False
    """True if it prints the result of an evaluation or a save, but not its begin: either may follow a round step."""
    minimum_loss_scale: float | None = None
    """Smallest value of its loss scaler. None: as Megatron's and DeepSpeed's."""
    pauses_timer_if_stamped: bool = False
    """True if versions with timestamps stop the iteration timer for evaluation and saving. Others include both."""
    timers: str = "at the next restart --timing-log-level 2"
    """How to make it print timers: shown with a slowdown if the log has none."""
    timers_of_ranks: str = ""
    """Option that prints the minimum and maximum over the ranks."""


_TABLE = table_in("megatron_monitor.parsers", "programs.toml")
PROGRAMS = msgspec.convert(_TABLE["programs"], tuple[Program, ...])
"""In the order in which they are recognised. Facts about all other programs are in their files (parsers/formats)."""
BY_NAME = {program.name: program for program in PROGRAMS}
GPT_NEOX, ARGONNE, MEGATRON_LM, DEEPSPEED, HF_TRAINER = (
    BY_NAME[name] for name in ("gpt-neox", "argonne", "megatron-lm", "deepspeed", "hf-trainer")
)
"""Programs that code refers to by name."""
UNKNOWN = Program("")
DECLARED = Program("", megatron=False)
_DECLARED = {name: msgspec.convert({"name": "", "megatron": False, **facts}, Program)
             for name, facts in _TABLE["declared"].items()}  # fmt: skip

# Pairs of field name and program, in order of precedence: the first name found in a line decides.
_REVEALING = [
    *((field, program) for program in PROGRAMS for field in program.fields),
    *((field, program) for program in PROGRAMS for field in program.shared_fields),
]


@cache
def program_of(name: str | None) -> Program:
    """Return the program of this name: UNKNOWN without a name, DECLARED if the table has no program of this name."""
    return (BY_NAME.get(name) or _DECLARED.get(name, DECLARED)) if name else UNKNOWN


def recognised(fields: set[str]) -> str:
    """Return the name of the program that prints these fields: Megatron-LM if no field identifies another."""
    return next((program.name for field, program in _REVEALING if field in fields), MEGATRON_LM.name)

"""Every fact about a dialect: dialects.toml. Whoever needs to know how a program differs from the others asks here.

A dialect is the kind of training program that prints the iteration lines. The sources are the programs' own
`training_log` and `save_checkpoint`. To add one: a table there, its rules in parsers/formats.
"""

import msgspec
from msgspec import Struct

from megatron_monitor.parsers.tables import table_in


class Program(Struct, frozen=True):
    """One kind of program. A default is what holds for a program of which nothing more is known."""

    name: str
    """Public: the label `dialect` and the JSON field."""
    megatron: bool = True
    """Megatron's training loop: it prints set-up milestones, memory reports, saves and evaluations as Megatron does."""
    fields: tuple[str, ...] = ()
    """Field names of the iteration line that no dialect further down in DIALECTS prints."""
    shared_fields: tuple[str, ...] = ()
    """Field names that reveal the dialect only where none of all the `fields` does."""
    argument: str | None = None
    """An argument in the dump at the start that only this program has."""
    formulas: tuple[str, ...] = ()
    """TFLOPs formulas (model/flops.py) that its versions have printed by, newest first; the newest recomputes."""
    reports_saves: bool = False
    """Prints a line for each save that succeeded, so that a missing line means something."""
    silent: bool = False
    """No line tells that it evaluates or saves: it may do so behind any step."""
    minimum_loss_scale: float | None = None
    """The smallest that its scaler goes to, where it is another than Megatron's and DeepSpeed's."""
    pauses_timer_if_stamped: bool = False
    """Versions that print time stamps stop the iteration timer around evaluation and saving; all others count both."""
    timers: str = "at the next restart --timing-log-level 2"
    """How its log is made to tell where an iteration's time goes: shown with a slowdown of a log that does not."""
    timers_of_ranks: str = ""
    """The option that prints the least and the most over the ranks."""


_TABLE = table_in("megatron_monitor.parsers", "dialects.toml")
DIALECTS = msgspec.convert(_TABLE["dialects"], tuple[Program, ...])
"""In the order in which they are recognised. What is known of all others stands in their files (parsers/formats)."""
BY_NAME = {dialect.name: dialect for dialect in DIALECTS}
GPT_NEOX, ARGONNE, MEGATRON_LM, DEEPSPEED, HF_TRAINER = (
    BY_NAME[name] for name in ("gpt-neox", "argonne", "megatron-lm", "deepspeed", "hf-trainer")
)
"""Those whose programs have rules of their own."""
UNKNOWN = Program("")
DECLARED = Program("", megatron=False)
_DECLARED = {name: msgspec.convert({"name": "", "megatron": False, **facts}, Program)
             for name, facts in _TABLE["declared"].items()}  # fmt: skip

# Field name -> dialect, in the order of precedence: the first that stands in the line decides.
_REVEALING = [
    *((field, dialect) for dialect in DIALECTS for field in dialect.fields),
    *((field, dialect) for dialect in DIALECTS for field in dialect.shared_fields),
]


def dialect_of(name: str | None) -> Program:
    """The dialect of this name: UNKNOWN without one, and for those that are data alone what holds for any."""
    return (BY_NAME.get(name) or _DECLARED.get(name, DECLARED)) if name else UNKNOWN


def recognised(fields: set[str]) -> str:
    """The name of the dialect whose iteration line has these field names; Megatron-LM's if no name reveals another."""
    return next((dialect.name for field, dialect in _REVEALING if field in fields), MEGATRON_LM.name)

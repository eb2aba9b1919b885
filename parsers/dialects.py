"""Every fact about a dialect, one struct each. Whoever needs to know how a program differs from the others asks here.

A dialect is the kind of training program that prints the iteration lines. The sources are the programs' own
`training_log` and `save_checkpoint`. To add one: a `Dialect` here, its rules in parsers/formats. Imports nothing.
"""

from msgspec import Struct


class Dialect(Struct, frozen=True):
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
    pauses_timer_if_stamped: bool = False
    """Versions that print time stamps stop the iteration timer around evaluation and saving; all others count both."""
    timers: str = "at the next restart --timing-log-level 2"
    """How its log is made to tell where an iteration's time goes: shown with a slowdown of a log that does not."""
    timers_of_ranks: str = ""
    """The option that prints the least and the most over the ranks."""
    even_layers: bool = False
    """Refuses a number of layers that the pipeline stages do not divide; DeepSpeed's pipeline spreads any number."""


_ENGINE = 'at the next restart "wall_clock_breakdown": true in DeepSpeed\'s configuration'
_BOTH = f"{_ENGINE}, or --timing-log-level 2"
_MINMAX = "--timing-log-option minmax"

PRIMUS = Dialect(
    "primus",
    fields=(
        "hip mem usage/free/total/usage_ratio",
        "rocm mem usage/free/total/usage_ratio",
        "tokens per GPU (tokens/s/GPU)",
        "tokens/s/GPU inst/harmonic mean",
    ),
    formulas=("megatron_lm_2026", "megatron_lm_2024"),  # a fork of 2025
    reports_saves=True,
    timers="at the next restart timing_log_level: 2 among its overrides",
    timers_of_ranks="timing_log_option: minmax",
    even_layers=True,
)
GPT_NEOX = Dialect(
    "gpt-neox",
    fields=("approx flops per GPU", "lm_loss"),
    argument="global_num_gpus",
    formulas=("gpt_neox", "gpt_neox_bracket", "gpt_neox_2021"),
    timers='at the next restart "wall_clock_breakdown": true in its configuration',
)
BIGSCIENCE = Dialect(
    "bigscience",
    fields=("lm-loss", "elapsed time per iteration (s)"),
    shared_fields=("consumed tokens",),
    formulas=("bigscience", "megatron_deepspeed_2021"),
    reports_saves=True,
    timers=_ENGINE,  # a fork of before --timing-log-level
)
MICROSOFT = Dialect(
    "microsoft",
    # TFLOPs: BigScience's line that has them counts in seconds, but for 7 weeks of 2021/22
    fields=(
        "tokens per gpu per second (tgs)", "actual seqlen", "random ltd reserved length", "TFLOPs",
        "samples per second",
    ),
    formulas=("microsoft", "bigscience"),
    reports_saves=True,
    timers=_BOTH,
)  # fmt: skip
# its line has a form of its own
ARGONNE = Dialect("argonne", formulas=("microsoft", "bigscience"), reports_saves=True, timers=_BOTH)
MEGATRON_LM = Dialect(
    "megatron-lm",
    # the causal core is halved since 2025; a log does not name its version
    formulas=("megatron_lm_2026", "megatron_lm_2024", "megatron_lm_2023"),
    reports_saves=True,
    pauses_timer_if_stamped=True,
    timers="at the next restart --timing-log-level 2 (Megatron-Bridge: logger.timing_log_level=2)",
    timers_of_ranks=_MINMAX,
    even_layers=True,
)
DEEPSPEED = Dialect("deepspeed", megatron=False, timers=_ENGINE)  # the engine's steps without Megatron's loop around it
HF_TRAINER = Dialect(
    "hf-trainer",
    megatron=False,
    timers='HF Trainer has none; DeepSpeed under it has ("wall_clock_breakdown": true in its configuration)',
)

DIALECTS = (PRIMUS, GPT_NEOX, BIGSCIENCE, MICROSOFT, ARGONNE, MEGATRON_LM, DEEPSPEED, HF_TRAINER)
"""In the order in which they are recognised. What is known of all others stands in their files (parsers/trainers)."""
BY_NAME = {dialect.name: dialect for dialect in DIALECTS}
UNKNOWN = Dialect("")
DECLARED = Dialect("", megatron=False)

# Field name -> dialect, in the order of precedence: the first that stands in the line decides.
_REVEALING = [
    *((field, dialect) for dialect in DIALECTS for field in dialect.fields),
    *((field, dialect) for dialect in DIALECTS for field in dialect.shared_fields),
]

PRINTED_BY = {
    "bigscience": "BigScience Megatron-DeepSpeed since 2022-02-21 (PR 251)",
    "megatron_deepspeed_2021": "BigScience Megatron-DeepSpeed before PR 251",
    "microsoft": "microsoft Megatron-DeepSpeed, Argonne's fork",
    "megatron_lm_2026": "NVIDIA Megatron-LM since 2025, Primus (causal core halved)",
    "megatron_lm_2024": "NVIDIA Megatron-LM of 2024",
    "megatron_lm_2023": "NVIDIA Megatron-LM of 2023-11",
    "gpt_neox": "gpt-neox since 2023-12-06",
    "gpt_neox_bracket": "gpt-neox 2023-09-27 to 2023-12-06, the vocabulary lost",
    "gpt_neox_2021": "gpt-neox until 2023-09-27",
}
"""TFLOPs formula -> the versions that print by it, for people."""


def dialect_of(name: str | None) -> Dialect:
    """The dialect of this name: UNKNOWN without one, and for those that are data alone what holds for any."""
    return BY_NAME.get(name, DECLARED) if name else UNKNOWN


def recognised(fields: set[str]) -> str:
    """The name of the dialect whose iteration line has these field names; Megatron-LM's if no name reveals another."""
    return next((dialect.name for field, dialect in _REVEALING if field in fields), MEGATRON_LM.name)

"""Our names for values in a line, the units in which they may be printed, and the converters of expressions' groups.

A format writes `printed_name: our_name unit`, such as `train_step_timing in s: seconds_per_iteration` or `mem_mb:
allocated MiB`.
"""

import re
from functools import cache, partial
from typing import Final

from megatron_monitor.parsers.declared import TABLES
from megatron_monitor.parsers.declared.failures import SIGNALS, device_bytes, named, signal_name
from megatron_monitor.parsers.engine import fields
from megatron_monitor.parsers.engine.prefixes import iso_time
from megatron_monitor.parsers.engine.spans import Convert
from megatron_monitor.parsers.patterns import lazy
from megatron_monitor.parsers.wrappers import MONTHS, unix_time

LOSSES: Final = "losses"
"""A loss that is stored under its printed name."""
MEMORY: Final = {
    "allocated": "allocated_bytes",
    "max_allocated": "max_allocated_bytes",
    "reserved": "reserved_bytes",
    "max_reserved": "max_reserved_bytes",
}
PARTS: Final = ("rollout", "reward", "train", "sync", "reference", "value", "data", "evaluate", "save")
"""Parts of a reinforcement learning step, in seconds: generation, scoring, training and the transfer of weights."""
SIZES: Final = (
    "world_size", "nodes", "data_parallel_size", "tensor_parallel_size", "pipeline_parallel_size",
    "context_parallel_size", "expert_parallel_size", "micro_batch_size", "gradient_accumulation_steps", "parameters",
)  # fmt: skip
"""Sizes of an attempt or its model in a line of settings: names of `Topology`."""

_EXACT: Final = {
    "consumed_samples", "step_in_samples", "step_in_tokens", "consumed_tokens", "global_batch_size", "sequence_length",
    "skipped_iterations", "nan_iterations", "step", "total", "epoch", "epochs", "epoch_step", "epoch_steps", "done",
    *SIZES,
}  # fmt: skip
_NUMBERS: Final = {"learning_rate", "lm_loss", "loss_scale", "grad_norm", LOSSES}
_RATES: Final = {"samples_per_second", "tokens_per_second", "tokens_per_second_per_gpu"}
_RATIOS: Final = {"mfu"}
_YEAR_10000: Final = 253_402_300_800_000  # Unix milliseconds
_SECONDS: Final = {"seconds_per_iteration", "elapsed_seconds", *PARTS}


def _times(unit: str) -> Convert:
    return lambda text: fields.seconds(fields.finite(text), unit)


def _share(text: str) -> float | None:
    """NanoGPT prints -100 % before it knows the share."""
    value = fields.ratio(text)
    return value if value is not None and value >= 0 else None


def _percent(text: str) -> float | None:
    return _share(text if text.endswith("%") else f"{text.strip()}%")


def _over(divisor: float) -> Convert:
    return lambda text: None if (value := fields.finite(text)) is None else value / divisor


def _from_zero(text: str) -> int | None:
    """A count that begins at 1, as one that begins at 0."""
    value = fields.integer(text)
    return None if value is None else value - 1


def _lossless_index(text: str) -> int | None:
    """None for `1.23e+3`: its last digits are lost, so it does not identify a step."""
    value = fields.integer(text) if "e" not in text else None
    return None if value is None else value + 1


def _thousands(text: str) -> int | None:
    """The number of `1.23k`, as tqdm prints it without the last digits."""
    value = fields.number(text)
    return None if value is None else fields.whole(value * 1e3)


def _unix(divisor: int) -> Convert:
    def convert(text: str) -> str | None:
        value = fields.finite(text)
        known = None if value is None else fields.whole(value * 1000 / divisor)
        return unix_time(known / 1000, 3) if known is not None and 0 <= known < _YEAR_10000 else None

    return convert


def _time(text: str) -> str | None:
    return iso_time(text) if text[:1].isdigit() else None


def _text(text: str) -> str | None:
    return text.strip() or None


_TIMES: Final[dict[str, Convert]] = {
    "s": fields.finite, "ms": fields.milliseconds, **{unit: _times(unit) for unit in ("us", "min", "h")},
    "it/s": fields.per_second, "clock": fields.clock, "words": fields.parse_duration_text, "printed": fields.duration,
}  # fmt: skip
_BYTES: Final[dict[str, Convert]] = {"B": fields.byte_size, "MiB": fields.mebibytes, "GiB": fields.gibibytes}
UNITS: Final[dict[str, dict[str, Convert]]] = {
    **{name: {"": fields.integer} for name in _EXACT},
    "step": {"": fields.integer, "index": _lossless_index, "k": _thousands},
    "total": {"": fields.integer, "k": _thousands},
    "epoch": {"": fields.integer, "number": _from_zero},
    # of a mean: fairseq prints `wpb=60411.3`
    "tokens_per_iteration": {"": fields.finite},
    **{name: {"": fields.number} for name in _NUMBERS},
    **{name: {"": fields.finite} for name in _RATES},
    **{name: {"": _share, "%": _percent} for name in _RATIOS},
    **{name: {"": fields.finite, **_TIMES} for name in _SECONDS},
    **{name: {"": fields.byte_size, **_BYTES, "printed": fields.byte_size} for name in MEMORY},
    "tflops": {"": fields.finite, "TFLOP/s": fields.finite, "GFLOP/s": _over(1e3), "FLOP/s": _over(1e12),
               "printed": fields.teraflops},
    "time": {"": _time, "unix s": _unix(1), "unix ms": _unix(1000)},
    "path": {"": _text},
}  # fmt: skip
"""Our name -> unit -> converter. The empty unit is the default."""


@cache  # names repeat in every line of every format
def converter(target: str) -> tuple[str, Convert]:
    """Return the name of the value and its converter for a text such as `allocated MiB`. Raises ValueError with what is
    wrong.
    """
    name, _, unit = target.strip().partition(" ")
    known = UNITS.get(name)
    if known is None:
        raise ValueError(f"{name!r} is nothing that is known of a step; there are {', '.join(sorted(UNITS))}")
    if unit.strip() not in known:
        units = ", ".join(repr(each) for each in known if each) or "none"
        raise ValueError(f"{name} has no unit {unit.strip()!r}; there are {units}")
    return "logged_at" if name == "time" else name, known[unit.strip()]


_STEP = lazy(r"global_step(\d{1,12})")
_N = r"[-+]?(?:\d{1,15}(?:\.\d{0,20})?(?:[eE][-+]?\d{1,4})?|nan|inf)"
# `date`: `Sat May  2 07:11:59 UTC 2026`, `Fri 09 Jun 2023 03:36:53 PM EEST`; a script may print a word or two before it
_BEFORE = r"[\[ ]{0,4}(?:[\w#=-]{1,40}:?[ ]){0,3}"
_DATE = lazy(
    rf"{_BEFORE}(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),?[ ](?:(?P<day>\d{{1,2}})[ ])?(?P<month>{'|'.join(MONTHS)})[ ]{{1,2}}"
    r"(?:(?P<late_day>\d{1,2})[ ])?(?:(?P<year>\d{4})[ ])?(?P<hour>\d\d):(?P<rest>\d\d:\d\d)(?:[ ](?P<half>[AP])M)?"
    r"(?:[ ](?P<zone>[A-Z]{2,5}|[-+]\d\d))?(?:[ ](?P<late_year>\d{4}))?\b"
)

PIECES: Final = {
    "N": _N,
    "SIGNAL": "|".join(TABLES["signals"]),
    "VARIABLE": "|".join(TABLES["environment"]["allowed"]),
    "VALUE": r"""(?:"[^"\n$]{0,200}"|'[^'\n$]{0,200}'|[^\s;"'$]{0,200})""",
    "DATE": r"[ ]{0,4}\[?(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d"
    r"(?: [AP]M)?(?: [A-Z]{1,5})? \d{4}",
}
"""Text for `{NAME}` in a regular expression."""


def date_of(text: str) -> str | None:
    """Return ISO 8601 for a line that begins with `date`'s output after at most three words. The zone is included if it
    is UTC.
    """
    match = _DATE.match(text)
    if match is None:
        return None
    day, year = match["day"] or match["late_day"], match["year"] or match["late_year"]
    if not (day and year):
        return None
    hour = match["hour"]
    if match["half"]:
        hour = f"{int(hour) % 12 + 12 * (match['half'] == 'P'):02d}"
    # other zone names mean different zones in different countries
    utc = "+00:00" if match["zone"] in ("UTC", "GMT") else ""
    return f"{year}-{MONTHS.index(match['month']) + 1:02d}-{int(day):02d}T{hour}:{match['rest']}{utc}"


def _rate_of_flops(text: str) -> float | None:
    return fields.teraflops(text) if fields.finite(text) is not None else None


def _step_in(path: str) -> int | None:
    match = _STEP.search(path)
    return int(match[1]) if match else None


def _most_gibibytes(text: str) -> int | None:
    return max(
        (size for digits in re.findall(_N, text) if (size := fields.gibibytes(digits)) is not None), default=None
    )


CONVERTERS: Final[dict[str, Convert]] = {
    **_TIMES,
    **_BYTES,
    "finite": fields.finite,
    "the most GiB": _most_gibibytes,
    "ms range": fields.milliseconds_range,
    "FLOPS": _rate_of_flops,
    "percent": lambda text: fields.ratio(f"{text}%"),
    "with separators": lambda text: fields.finite(re.sub("[,_]", "", text)),
    "truth or number": lambda text: text.strip() if text.strip() in ("True", "False") else fields.integer(text),
    "true": bool,
    "time": iso_time,
    "date and zone": date_of,
    "date": lambda text: (date_of(text) or "").removesuffix("+00:00") or None,
    "step in a path": _step_in,
    "without dots behind": lambda text: text.rstrip("."),
    "without blanks": str.strip,
    "without quotes": lambda text: text.strip("\"'"),
    "small letters": str.lower,
    "of a signal": lambda text: -int(text),
    "of a signal or a code": lambda text: -int(text) if int(text) in SIGNALS else int(text),
    "name of a signal": lambda text: signal_name(int(text)) if text.isdecimal() else text,
    "failure of a GPU": partial(named, kinds=("gpu",)),
    "failure of a worker": partial(named, kinds=("worker",)),
    "failure of a disk": partial(named, kinds=("disk",)),
    "failure of NCCL": partial(named, kinds=("nccl",)),
    "failure of a GPU, or of NCCL": lambda text: named(text, ("gpu",)) or "nccl",
    "reason of LSF": lambda text: TABLES["lsf"].get(text, "killed"),
    "bytes of the device": device_bytes,
}
"""Converters of groups, by the names in format files."""

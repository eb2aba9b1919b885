"""Argonne's fork of Megatron-DeepSpeed prints its iteration line in `key=value` pieces (training_log).

`iteration=       3/  100000 | consumed_samples=  768 | elapsed_time_per_iteration_ms=17711.7 | lm loss=11.2 | ... |`
In and out as in megatron.py, which reads the fields: only the separator and some names differ.
"""

from functools import partial

from parsers.dialects import ARGONNE
from parsers.engine.scan import Rule
from parsers.formats.megatron import iterations
from parsers.patterns import lazy

# ` iteration=       3/  100000 | consumed_samples=...`
_START = lazy(r"iteration=[ ]{0,20}(\d{1,12})[ ]{0,20}/[ ]{0,20}(\d{1,12}|infinity|inf)[ ]{0,4}\|")

# Its names where they are more than Megatron's with underscores for blanks. It prints two TFLOPs: NVIDIA's formula
# (`[LM]`, the model's own work) and DeepSpeed's; the first is the field's, the second stays under its name.
_NAMES = {
    "elapsed_time_per_iteration_ms": "elapsed time per iteration (ms)",
    "elapsed_time_per_iteration_s": "elapsed time per iteration (s)",
    "elapsed_time_per_iteration": "elapsed time per iteration (s)",
    "tokens_per_gpu_per_second_tgs": "tokens per gpu per second (tgs)",
    "[LM]TFLOPs": "TFLOPs",
    "[LM]-TFLOPs": "TFLOPs",
}


def _name_and_value(piece: str) -> tuple[str, str] | None:
    name, separator, value = piece.partition("=")
    name = name.strip()
    return (_NAMES.get(name, name), value.strip()) if separator and name else None


_READ = partial(iterations, start=_START, split=_name_and_value, dialect=ARGONNE.name)
RULES: tuple[Rule, ...] = (Rule("argonne.iteration", (b"iteration=",), _READ, templated=True),)

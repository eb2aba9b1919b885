"""EleutherAI gpt-neox (megatron/logging.py, training_log): samples/sec before the iteration, flops with a unit.

` samples/sec: 206.693 | iteration        1/     512 | elapsed time per iteration (ms): 2477.1 | ... | lm_loss: 1E+01 |`
The fields and the loop are Megatron's: megatron.py reads that line. What is gpt-neox's alone stands here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from parsers.engine.scan import Line, Rule
from parsers.events import ModelSettingLogged

# `INFO:root:NeoXArgs.calculate_derived() Total number of GPUs determined to be: 8`
_GPUS = re.compile(r"Total number of GPUs determined to be: (\d{1,7})")


def read_world_size(line: Line) -> Iterator[ModelSettingLogged]:
    """The number of GPUs that gpt-neox works out before it prints its arguments."""
    match = _GPUS.search(line.text)
    if match:
        yield ModelSettingLogged(name="world_size", value=float(match[1]), **line.origin)


RULES: tuple[Rule, ...] = (Rule("neox.world_size", (b"Total number of GPUs determined",), read_world_size),)

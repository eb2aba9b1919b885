"""Reads numbers and losses from a step line of a home-made loop that no rule reads.

It is the last rule and counts no steps. It shows whether training continues: a growing number may be a clock, but a
loss that changes was computed. Lines without a step or epoch, with another name for the loss, or with the loss on a
line of its own are not read.
"""

from collections.abc import Iterator

from megatron_monitor.parsers.engine.scan import Line, Rule
from megatron_monitor.parsers.engine.spans import Spanned
from megatron_monitor.parsers.events import StepInferred
from megatron_monitor.parsers.formats.stamps import stamped
from megatron_monitor.parsers.patterns import lazy

_STEP_NAMES = r"global_?step|num_updates|iteration|iter|step|update|upd|batch|it"
STEP_NAME = rf"(?:^|[^A-Za-z])(?:{_STEP_NAMES})(?:s|_?idx?)?['\"]?[ ]*[:=#\[(]?[ ]*['\"]?"
EPOCH_NAME = r"(?:^|[^A-Za-z])(?:epochs?|ep)['\"]?[ :=#\[(]{0,5}['\"]?"  # with the text before the number
_COUNT = lazy(rf"(?i)(?:{STEP_NAME}|{EPOCH_NAME})(\d{{1,12}})(?!\d|\.\d)")
# `loss 2.31`, `train/loss_ce: 2.31`, `"loss": 2.31`, `Loss=tensor(2.31, device='cuda:0')`; but not `packet loss`
_NUMBER = r"[-+]?\d{1,15}(?:\.\d{0,20})?(?:[eE][-+]?\d{1,2})?"
_LOSS = lazy(rf"(?i)(?<!packet )loss[\w/]{{0,30}}['\"]?[ :=(\[]{{0,6}}(?:tensor\(|['\"])?({_NUMBER})")


def read_guess(line: Line) -> Iterator[Spanned]:
    """Read the step if the line has both within the searched part."""
    losses = tuple(line.span(match.span(1), float) for match in _LOSS.finditer(line.text, 0, 2000))
    counts = tuple(line.span(match.span(1), int) for match in _COUNT.finditer(line.text, 0, 2000)) if losses else ()
    if counts:
        yield Spanned(StepInferred, {"counts": counts, "losses": losses} | stamped(line))


RULES: tuple[Rule, ...] = (Rule("unread.step", (b"loss", b"Loss", b"LOSS"), read_guess, by_shape=True),)

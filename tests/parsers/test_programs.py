"""The table of formats names nothing that does not exist."""

from megatron_monitor.model.flops import FORMULAS
from megatron_monitor.parsers.formats.megatron import FIELDS
from megatron_monitor.parsers.programs import PROGRAMS, recognised


def test_formulas_exist() -> None:
    """What a format prints by is a formula that can be computed."""
    assert {name for program in PROGRAMS for name in program.formulas} <= FORMULAS.keys()


def test_one_format_a_field() -> None:
    """Each field name reveals one format; the first in the table wins, and Megatron-LM is what is left."""
    names = [name for program in PROGRAMS for name in (*program.fields, *program.shared_fields)]
    assert len(names) == len(set(names))
    assert recognised({"lm_loss", "TFLOPs"}) == "gpt-neox"
    assert recognised({"consumed tokens", "actual seqlen"}) == "microsoft"
    assert recognised(set(FIELDS) & {"consumed samples", "lm loss"}) == "megatron-lm"

"""The table of dialects names nothing that does not exist."""

from megatron_monitor.model.flops import FORMULAS
from megatron_monitor.parsers.dialects import DIALECTS, recognised
from megatron_monitor.parsers.formats.megatron import FIELDS


def test_formulas_exist() -> None:
    """What a dialect prints by is a formula that can be computed."""
    assert {name for dialect in DIALECTS for name in dialect.formulas} <= FORMULAS.keys()


def test_one_dialect_a_field() -> None:
    """Each field name reveals one dialect; the first in the table wins, and Megatron-LM is what is left."""
    names = [name for dialect in DIALECTS for name in (*dialect.fields, *dialect.shared_fields)]
    assert len(names) == len(set(names))
    assert recognised({"lm_loss", "TFLOPs"}) == "gpt-neox"
    assert recognised({"consumed tokens", "actual seqlen"}) == "microsoft"
    assert recognised(set(FIELDS) & {"consumed samples", "lm loss"}) == "megatron-lm"

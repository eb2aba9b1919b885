"""The iteration line: every emitter's form, what is none, what is cut."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_monitor.parsers.events import to_fields
from tests.parsers.iteration_lines import FORMS, events, read


def one(text: str) -> dict[str, Any]:
    """The only iteration in `text`, as `explain` gives it, without its kind."""
    (event,) = read(text)
    fields = to_fields(event)
    del fields["event"]
    return fields


@pytest.mark.parametrize("form", FORMS)
def test_form(form: str) -> None:
    """Every emitter's line gives every field that it carries, in our units, and nothing else."""
    line, expected = FORMS[form].values()
    assert one(line + "\n") == expected


@pytest.mark.parametrize("form", FORMS)
def test_fields_are_found_by_name(form: str) -> None:
    """The order of the fields makes no difference."""
    line, expected = FORMS[form].values()
    if "samples/sec" in line or "|" not in line or "\x1b" in line:
        return
    head, *fields = line.rstrip("| ").split("|")
    assert one("|".join([head, *reversed(fields), ""]) + "\n") == expected


def test_escape_bytes_lost() -> None:
    """A store that keeps the colour codes without their escape byte leaves Primus's line readable."""
    line, expected = FORMS["AMD Primus"].values()
    assert one(line.replace("\x1b", "")) == expected


def test_not_a_number() -> None:
    """NaN and infinity are values; a loss that is missing stays absent."""
    (event,) = read(" iteration 1/ 5 | lm loss: NAN | sop loss: INF | grad norm: nan | loss scale: -inf |")
    assert math.isnan(event.lm_loss or 0.0)
    assert math.isnan(event.grad_norm or 0.0)
    assert (event.losses, event.loss_scale) == ({"sop loss": math.inf}, -math.inf)
    (event,) = read(" iteration 9027/ 9999 | elapsed time per iteration (ms): 1.0 | loss scale: 8192.0 |")
    assert (event.lm_loss, event.losses) == (None, {})


CUT = (
    " iteration      125/  115311 | consumed samples:        96000 | learning rate: 5.875E-05 | lm loss: 2.463281E+00 |"
)


def test_every_cut() -> None:
    """A line cut anywhere never gives a number that the whole line does not hold."""
    whole = to_fields(read(CUT)[0])
    for end in range(CUT.index("|") + 2, len(CUT) + 1):
        for event in read(CUT[:end]):
            got = to_fields(event)
            got.pop("format")
            for name, value in got.items():
                assert value == whole[name] or (name == "lm_loss" and str(whole[name]).startswith(str(value))), CUT[
                    :end
                ]


def test_text_around() -> None:
    """Text before, another rank's label behind and a container's JSON around the line change nothing."""
    line = " iteration 5/ 10 | lm loss: 2.5E+00 | number of nan iterations:   0 |"
    plain = one(line)
    for around in (
        line + "[default3]:",
        line + "[default3]:[default3]:",
        "some words before" + line,
        "loading ........" + line,
        '{"log":"' + line + '\\n","stream":"stdout"}',
        line + "\r",
        line + "[Rank 0] (after 5 iterations) memory (MB) | allocated: 2.0 | reserved: 3.0",
    ):
        assert to_fields(read(around)[0]) == {"event": "iteration", **plain}, around


def test_hostile_lines_stay_bounded() -> None:
    """Very many losses make no large event, and a very long value is none."""
    (event,) = read(" iteration 5/ 10 | lm loss: 2.5E+00 |" + "".join(f" k{n} loss: {n} |" for n in range(5000)))
    assert 50 < len(event.losses) < 200
    assert (
        read(" iteration 5/ 10 | lm loss: 2.5E+00 | consumed samples: " + "9" * 6000 + " |")[0].consumed_samples is None
    )


_PIECES = st.lists(
    st.one_of(
        st.sampled_from(
            [" lm loss: ", "1.5E+00", " | ", "|", " iteration 5/ 9 |", "iteration=", "=", ":", " ", "%", "nan"]
        ),
        st.text(max_size=5),
    ),
    max_size=30,
)


@given(_PIECES)
def test_never_raises(pieces: list[str]) -> None:
    """Whatever follows the anchor, reading gives events and never an exception."""
    for event in events(" iteration 5/ 9 |" + "".join(pieces)):
        to_fields(event)

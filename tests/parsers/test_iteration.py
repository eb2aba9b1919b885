"""The iteration line: every emitter's form, what is none, what is cut."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_monitor.parsers.events import Malformed, to_fields
from tests.parsers.iteration_lines import FORMS, events, read


def one(text: str) -> dict[str, Any]:
    """The only event in `text`, as `explain` gives it, without its kind."""
    (event,) = events(text)
    fields = to_fields(event)
    assert fields.pop("event") == "iteration"
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


def test_flops_units() -> None:
    """gpt-neox's flops are TFLOP/s whatever the unit, the bare number below 1000 FLOPS included."""
    line = " samples/sec: 2.5 | iteration 1/ 5 | approx flops per GPU: {} | lm_loss: 1.0E+00 |"
    found = [read(line.format(text))[0].tflops for text in ("1.5PFLOPS", "12.6TFLOPS", "512.0GFLOPS", "980.0")]
    assert found == pytest.approx([1500.0, 12.6, 0.512, 980e-12])


def test_ratios() -> None:
    """MFU is a ratio; a bare number that cannot be one is kept as text."""
    line = " iteration 1/ 5 | lm loss: 1.0E+00 | MFU: 41.5% |"
    assert read(line)[0].mfu == 0.415
    event = read(" iteration 1/ 5 | lm loss: 1.0E+00 | MFU: 41.5 |")[0]
    assert (event.mfu, event.extra) == (None, {"MFU": "41.5"})


def test_not_a_number() -> None:
    """NaN and infinity are values; a loss that is missing stays absent."""
    (event,) = read(" iteration 1/ 5 | lm loss: NAN | sop loss: INF | grad norm: nan | loss scale: -inf |")
    assert math.isnan(event.lm_loss or 0.0)
    assert math.isnan(event.grad_norm or 0.0)
    assert (event.losses, event.loss_scale) == ({"sop loss": math.inf}, -math.inf)
    (event,) = read(" iteration 9027/ 9999 | elapsed time per iteration (ms): 1.0 | loss scale: 8192.0 |")
    assert (event.lm_loss, event.losses) == (None, {})


@pytest.mark.parametrize(
    ("fields", "format_name"),
    [
        ("lm-loss: 1.0E+00", "bigscience"),
        ("elapsed time per iteration (s): 2.00 | TFLOPs: 1.00", "bigscience"),
        ("elapsed time per iteration (s): 2.00 | samples per second: 1.00", "bigscience"),
        ("consumed tokens: 10 | elapsed time per iteration (s): 2.00", "bigscience"),
        ("consumed tokens: 10 | elapsed time per iteration (ms): 2.0", "bigscience"),
        ("elapsed time per iteration (ms): 2.0 | TFLOPs: 1.00", "microsoft"),
        ("elapsed time per iteration (ms): 2.0 | samples per second: 1.00", "microsoft"),
        ("elapsed time per iteration (ms): 2.0 | actual seqlen: 64", "microsoft"),
        ("lm loss: 1.0E+00 | tokens per gpu per second (tgs): 1.000", "microsoft"),
        ("lm_loss: 1.0E+00", "gpt-neox"),
        ("lm loss: 1.0E+00 | throughput per GPU (TFLOP/s/GPU): 1.0", "megatron-lm"),
    ],
)
def test_format(fields: str, format_name: str) -> None:
    """The format follows from the names in the line itself."""
    assert read(f" iteration 3/ 9 | {fields} |")[0].format == format_name


@pytest.mark.parametrize(
    "text",
    [
        "validation loss at iteration 500 | lm loss value: 2.5E+00 | lm loss PPL: 1.2E+01 | ",
        "[Rank 7] (after 20 iterations) memory (MB) | allocated: 21.5 | max allocated: 24.0 | reserved: 29.0",
        "Evaluating iter 3/10",
        "saving checkpoint at iteration    2000 to somewhere",
        " iteration 5/ 10 |",
        " iteration 5/ 10",
        " iteration 5/ 10 | 50% | 3.2s/it |",
        "training [#####     ] iteration 5/10 in progress",
        "+ echo ' iteration 5/ 10 | lm loss: 2.5E+00 |'",
        "  log_example ..................................... ' iteration 5/ 10 | lm loss: 2.5E+00 |",
        "my_iteration 5/ 10 | lm loss: 2.5E+00 |",
        "args.iteration=5/10 | lm_loss=2.5 |",
        "elapsed time per iteration (ms): 12.5 | lm loss: 2.5E+00 |",
    ],
)
def test_no_iteration(text: str) -> None:
    """The word `iteration` alone makes no iteration line."""
    assert not read(text + "\n")


def test_malformed() -> None:
    """A line in the iteration's shape of which no field parses is reported, once, and starts nothing."""
    (event,) = events(" iteration 5/ 10 | consumed specimens: 7 | lm lustre: many |\n")
    assert isinstance(event, Malformed)
    assert event.rule == "megatron.iteration"
    (event,) = events("iteration=5/10 | lm_lustre=2.5 |\n")
    assert isinstance(event, Malformed)
    assert event.rule == "argonne.iteration"


def test_unreadable_value_is_kept() -> None:
    """A known name with a value that is none keeps its text under that name."""
    (event,) = read(" iteration 5/ 10 | lm loss: n/a | z_loss: -- | grad norm: 1.500 | epoch: three |")
    assert (event.lm_loss, event.grad_norm) == (None, 1.5)
    assert event.extra == {"lm loss": "n/a", "z_loss": "--", "epoch": "three"}


CUT = (
    " iteration      125/  115311 | consumed samples:        96000 | learning rate: 5.875E-05 | lm loss: 2.463281E+00 |"
)


def test_every_cut() -> None:
    """A line cut anywhere never gives a number that the whole line does not hold."""
    whole = to_fields(read(CUT)[0])
    for end in range(CUT.index("|") + 2, len(CUT) + 1):
        for event in read(CUT[:end]):
            got = to_fields(event)
            texts = got.pop("extra", {})
            got.pop("format")
            for name, value in got.items():
                assert value == whole[name] or (name == "lm_loss" and str(whole[name]).startswith(str(value))), CUT[
                    :end
                ]
            assert all(isinstance(text, str) for text in texts.values())


def test_cut_behind_the_colon() -> None:
    """A value that is cut off behind its colon is absent, and the iteration still counts."""
    assert one(" iteration 5/ 10 | consumed samples: 70 | lm loss:") == {
        "iteration": 5,
        "train_iterations": 10,
        "consumed_samples": 70,
        "format": "megatron-lm",
    }
    assert one(" iteration 5/ 10 | consumed samples: ")["iteration"] == 5


def test_last_bar_missing() -> None:
    """A last value in its full shape is believed without a closing bar."""
    (event,) = read(" iteration 5/ 10 | lm loss: 2.500000E+00 | number of nan iterations:   0 | TFLOPs: 151.25")
    assert event.tflops == 151.25
    assert read(" iteration 5/ 10 | lm loss: 2.500000E+00")[0].lm_loss == 2.5
    assert read(" iteration 5/ 10 | lm loss: 2.5 | number of nan iterations:   0")[0].nan_iterations == 0


def test_several_in_one_line() -> None:
    """Iteration lines that were glued together give an event each, with their own fields."""
    first = " iteration 1/ 9 | lm loss: 1.0E+00 | grad norm: 0.1 |"
    second = " iteration 2/ 9 | lm loss: 2.0E+00 |"
    assert [(e.iteration, e.lm_loss, e.grad_norm) for e in read(first + second)] == [(1, 1.0, 0.1), (2, 2.0, None)]
    neox = " samples/sec: {0}.5 | iteration {0}/ 9 | lm_loss: {0}.0E+00 |"
    glued = "".join(neox.format(n) for n in (1, 2, 3))
    assert [(e.iteration, e.samples_per_second, e.lm_loss) for e in read(glued)] == [
        (1, 1.5, 1.0),
        (2, 2.5, 2.0),
        (3, 3.5, 3.0),
    ]
    assert not [e for e in read(glued) if e.extra]


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


def test_tee_label_cuts_the_line() -> None:
    """What another rank wrote behind the line is read by itself."""
    first, second = read(" iteration 5/ 9 | lm loss: 2.5E+00 |[default3]: iteration 6/ 9 | lm loss: 2.25E+00 |")
    assert (first.iteration, first.lm_loss, second.iteration, second.lm_loss) == (5, 2.5, 6, 2.25)


def test_hostile_lines_stay_bounded() -> None:
    """Very many fields or very long values make no large event."""
    (event,) = read(" iteration 5/ 10 | lm loss: 2.5E+00 |" + "".join(f" k{n}: {n} |" for n in range(5000)))
    assert len(event.extra) < 200
    (event,) = read(" iteration 5/ 10 | lm loss: 2.5E+00 | note: " + "x" * 50_000 + " |")
    assert len(str(event.extra)) < 500
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

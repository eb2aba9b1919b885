"""Names, numbers and units: what counts as a field, and what never becomes a number."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_monitor.parsers.engine.fields import (
    GIB,
    MIB,
    byte_size,
    integer,
    milliseconds,
    name_and_value,
    number,
    seconds,
)
from megatron_monitor.parsers.engine.fields import teraflops as to_teraflops


@pytest.mark.parametrize(
    ("piece", "pair"),
    [
        (" learning rate: 1.5E-04 ", ("learning rate", "1.5E-04")),
        (" consumed samples:          120 ", ("consumed samples", "120")),
        ("elapsed time per iteration (ms): 1376.1", ("elapsed time per iteration (ms)", "1376.1")),
        ("remaining time: 0:12:33", ("remaining time", "0:12:33")),
        (" lm loss:", ("lm loss", "")),
        (" lm loss: ", ("lm loss", "")),
        ("grad norm:0.5", ("grad norm", "0.5")),
        (" learning rate 1.500E-04 ", ("learning rate", "1.500E-04")),
        ("lm loss NAN", ("lm loss", "NAN")),
        (" learning", None),
        ("", None),
        (": 5", None),
        ("12 13", None),
        ("word word", None),
    ],
)
def test_name_and_value(piece: str, pair: tuple[str, str] | None) -> None:
    """A piece splits at its last colon; 2019's pieces split before their number."""
    assert name_and_value(piece) == pair


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.5E-04", 1.5e-4),
        (" 12 ", 12.0),
        ("13100.0/13240.9", 13100.0),
        ("496.3 (avg 496.1)", 496.3),
        ("35.8%", 35.8),
        ("4.71K", 4710.0),
        ("177,138", 177138.0),
        ("INF", math.inf),
        ("-inf", -math.inf),
        (".5", 0.5),
        ("", None),
        ("n/a", None),
        ("E5", None),
    ],
)
def test_number(text: str, value: float | None) -> None:
    """The number a text begins with, or nothing."""
    assert number(text) == value


def test_nan_is_a_number() -> None:
    """`nan` in any case is a value, not an absence."""
    assert all(math.isnan(number(text) or 0.0) for text in ("nan", "NAN", " NaN"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (" 42", 42),
        ("42.0", 42),
        ("42/100", 42),
        ("-1", -1),
        ("42.5", None),
        ("nan", None),
        ("inf", None),
        ("", None),
        ("1e30", None),
        ("9" * 30, None),
        ("9" * 5000, None),
    ],
)
def test_integer(text: str, value: int | None) -> None:
    """Whole numbers of up to 64 bits; a fraction is not rounded."""
    assert integer(text) == value


def test_seconds() -> None:
    """Every unit becomes seconds without the noise of a binary quotient; absence stays."""
    assert seconds(2152.2, "ms") == 2.1522
    assert seconds(105.22, "s") == 105.22
    assert seconds(250.0, "us") == 0.00025
    assert (seconds(2.0, "min"), seconds(2.0, "h")) == (120.0, 7200.0)
    assert seconds(None, "ms") is None
    assert milliseconds("2152.2") == 2.1522
    assert milliseconds("?") is None
    assert seconds(math.inf, "ms") == math.inf


def test_byte_size() -> None:
    """What the programs call MB and GB is counted in powers of two; a bare number takes the unit that is given."""
    assert byte_size("12.50 MiB") == byte_size("12.5MB") == round(12.5 * MIB)
    assert byte_size("8.61GB") == round(8.61 * GIB)
    assert byte_size("77 bytes") == 77
    assert byte_size("much") is None
    assert byte_size("12 iB") == 12  # no unit
    assert byte_size("9" * 400 + " GB") is None


def test_teraflops() -> None:
    """gpt-neox's scaled unit, and none below 1000 FLOPS."""
    texts = ("1.5PFLOPS", "13.3TFLOPS", "512.0 GFLOPS", "2.0MFLOPS", "980.0")
    assert [to_teraflops(text) for text in texts] == pytest.approx([1500, 13.3, 0.512, 2e-6, 980e-12])
    assert to_teraflops("13.3T") is None


@given(st.text(max_size=40))
def test_any_text_is_read_or_not(text: str) -> None:
    """No text makes any of the readers raise."""
    for read in (number, integer, byte_size, to_teraflops, milliseconds, name_and_value):
        read(text)


@given(st.floats(allow_nan=False), st.sampled_from(["{!r}", " {:.6E} ", "{:.1f}/1.0", "{:.3E}%"]))
def test_printed_floats_come_back(value: float, form: str) -> None:
    """A float that Python printed is read as printed."""
    printed = form.format(value)
    assert number(printed) == float(printed.strip().split("/")[0].rstrip("%"))

"""The log of the long-running commands: logfmt or JSON, one line a record."""

import json
import logging
import re
import sys
from typing import Any, Literal

import pytest

from megatron_monitor.commands.log_lines import LineFormatter


def line(form: Literal["logfmt", "json"], message: str, *values: Any, error: bool = False) -> str:
    """The record as it is written."""
    info = sys.exc_info() if error else None
    record = logging.LogRecord("x", logging.WARNING, "", 0, message, values, info)
    record.created = 1_700_000_000.25
    return LineFormatter(form).format(record)


HEAD = "time=2023-11-14T22:13:20.250+00:00 level=warning "


@pytest.mark.parametrize(
    ("message", "values", "fields"),
    [
        ("run=%s attempt=%d ended", ("tr 11", 2), 'run="tr 11" attempt=2 msg=ended'),
        ("state=%s: %s; it is kept", ("/a=b", "bad"), 'state="/a=b" msg="bad; it is kept"'),
        ("output=%s outcome=%s", ("o", "bug"), "output=o outcome=bug"),
        ("run=%s %s", ("", "source=x 5 % \\n"), r'run="" msg="source=x 5 % \\n"'),
        ("all of it: 100 %", (), 'msg="all of it: 100 %"'),
        ("%.0f %% of n=%d", (5.0, 3), 'msg="5 % of n=3"'),
        ("source=%s", ("a\x9b2J",), r'source="a\u009b2J"'),
        ("source=%s", ('a"\x1b[31m\n2026 level=error forged\udcff\x9b',),
         r'source="a\"\u001b[31m\n2026 level=error forged\udcff\u009b"'),
    ],
)  # fmt: skip
def test_fields_of_a_record(message: str, values: tuple[Any, ...], fields: str) -> None:
    """The `name=%s` at the begin of a message are fields; no value ends a line, a quote or a field."""
    assert line("logfmt", message, *values) == HEAD + fields
    parsed = json.loads(line("json", message, *values))
    assert " ".join(f"{name}={_bare(value)}" for name, value in parsed.items()) == HEAD + fields


def _bare(value: str | int) -> str:
    text = json.dumps(value, ensure_ascii=not str(value).isprintable())
    return str(value) if re.fullmatch(r"[\w.:+-]+", str(value)) else text


@pytest.mark.parametrize("form", ["logfmt", "json"])
def test_a_traceback_is_a_field(form: Literal["logfmt", "json"]) -> None:
    """A record of an exception is one line, too."""
    try:
        raise ValueError("two\nlines")
    except ValueError:
        text = line(form, "http: failed", error=True)
    assert "\n" not in text
    assert r"ValueError: two\nlines" in text

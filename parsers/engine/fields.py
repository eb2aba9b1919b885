"""`name: value |` sequences, numbers and units. Milliseconds become seconds only here.

Fields are matched by name, because programs add, drop and reorder them from version to version.

Numbers are bounded here: an integer beyond 64 bits, a size larger than any memory and a time or rate that is not finite
give None.
"""

import re
from math import isfinite

from megatron_monitor.parsers.patterns import lazy

MIB = 1024**2
GIB = 1024**3

# Programs print MB and GB and mean MiB and GiB: torch counts in powers of two.
_BYTE_POWERS = "bkmgt"  # powers of 1024 by the first letter
_FLOPS_UNITS = {"": 1e-12, "k": 1e-9, "m": 1e-6, "g": 1e-3, "t": 1.0, "p": 1e3, "e": 1e6}
NUMBER = r"[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
"""Pattern of a printed number, without groups. Compile it with IGNORECASE for `NAN` and `INF`."""

_LEADING_NUMBER = lazy(rf"\s*({NUMBER})", re.IGNORECASE)
_WHOLE_NUMBER = lazy(NUMBER, re.IGNORECASE)
_AMOUNT = lazy(
    r"\s*([-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?|[-+]?\d+(?:\.\d*)?)([KMBT])\b|\s*([-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?)"
)
_POWERS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_BYTES = lazy(r"\s*([-+]?\d+(?:\.\d+)?)\s*((?:[KMGT]i?)?B|bytes)?\b", re.IGNORECASE)
_FLOPS = lazy(r"\s*([-+]?\d+(?:\.\d+)?)\s*(?:([KMGTPE]?)FLOPS?|$)", re.IGNORECASE)
_TIME_UNIT = lazy(r"\s(ms|s|min|h)$")
_MAX_INTEGER = 10**18  # limit of a signed 64-bit counter


def name_and_value(piece: str) -> tuple[str, str] | None:
    """Return name and value of `learning rate: 1.5E-04`, split at the last `: `, or None if the piece is not a field.

    The value of a field that is cut off after its colon is empty. Megatron-LM of 2019 printed `learning rate 1.5E-04`.
    """
    name, separator, value = piece.rpartition(": ")
    if not separator:
        name, separator, value = piece.rpartition(":")
        if not separator:
            name, separator, value = piece.strip().rpartition(" ")
            if not _WHOLE_NUMBER.fullmatch(value) or not name[:1].isalpha():
                return None
    name = name.strip()
    return (name, value.strip()) if name else None


def number(text: str) -> float | None:
    """Return the number at the beginning of `text`: 13100.0 for `13100.0/13240.9`, 4710.0 for `4.71K`, 177138.0 for
    `177,138`, `nan` and `inf` included.
    """
    try:
        return float(text)  # the common case; also accepts surrounding blanks
    except ValueError:
        amount = _AMOUNT.match(text) if ("," in text or text[-1:] in "KMBT") else None
        if amount is not None:
            return float((amount[1] or amount[3]).replace(",", "")) * _POWERS.get(amount[2], 1.0)
        match = _LEADING_NUMBER.match(text)
        return float(match[1]) if match else None


def finite(text: str) -> float | None:
    """Return the number, or None if it is not finite: for times, rates and sizes."""
    value = number(text)
    return value if value is not None and isfinite(value) else None


def whole(value: float) -> int | None:
    """Return a computed number rounded to an integer, or None if 64 bits cannot hold it."""
    return round(value) if abs(value) < _MAX_INTEGER else None


def integer(text: str) -> int | None:
    """Return the integer at the beginning of `text`, or None for a fraction, NaN, a text or a value beyond 64 bits."""
    try:
        whole = int(text)
    except ValueError:
        value = number(text)
        if value is None or not abs(value) < _MAX_INTEGER:  # NaN fails the comparison as well
            return None
        return int(value) if value == int(value) else None
    return whole if abs(whole) < _MAX_INTEGER else None


# `1h 2m 3s`, `2 days 1m`
_DURATION_TEXT = lazy(r"(\d+(?:\.\d+)?)[ ]?(d|h|m|s)[a-z]{0,6}", re.IGNORECASE)
_SECONDS_OF = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}


def parse_duration_text(text: str) -> float | None:
    """Return `1h 2m 3s` in seconds."""
    found = _DURATION_TEXT.findall(text[:100])
    return sum(float(value) * _SECONDS_OF[unit.lower()] for value, unit in found) if found else None


def seconds(value: float | None, unit: str) -> float | None:
    """Return `value` in seconds. `unit` is the unit of the label: `ms`, `s`, `us`, `min` or `h`.

    The quotient is rounded to a picosecond, so that 2152.2 ms is 2.1522 and not 2.1521999999999997.
    """
    if value is None:
        return None
    divisor = {"ms": 1e3, "us": 1e6}.get(unit)
    if divisor is not None:
        return round(value / divisor, 12)
    product = value * {"s": 1.0, "min": 60.0, "h": 3600.0}.get(unit, 1.0)
    return product if isfinite(product) or not isfinite(value) else None


def milliseconds(text: str) -> float | None:
    """Return the milliseconds at the beginning of `text` in seconds."""
    return seconds(finite(text), "ms")


def milliseconds_range(text: str) -> tuple[float, float] | None:
    """Return minimum and maximum of `4714.98, 4715.22` milliseconds in seconds. A single number is both."""
    first, _, second = text.partition(", ")
    low, high = milliseconds(first), milliseconds(second or first)
    return (low, high) if low is not None and high is not None else None


def duration(text: str) -> float | None:
    """Return `4.125 s` in seconds, or None if the text has no unit."""
    unit = _TIME_UNIT.search(text)
    return seconds(finite(text), unit[1]) if unit else None


def clock(text: str) -> float | None:
    """Return `03:45`, `1:02:03` or `0:14:55.93` in seconds."""
    total = 0.0
    try:
        for part in text.split(":"):
            total = total * 60.0 + float(part)
    except ValueError:
        return None
    return total if isfinite(total) else None


def per_second(text: str) -> float | None:
    """Return the seconds of one unit of a rate such as `3.42it/s`, or None for 0."""
    rate = finite(text)
    return round(1 / rate, 9) if rate and isfinite(1 / rate) else None


def ratio(text: str) -> float | None:
    """Return `35.8%` as 0.358. A number above 1 without `%` gives None."""
    value = finite(text)
    if value is not None and text.endswith("%"):
        return round(value / 100, 12)
    return value if value is None or value <= 1 else None


def mebibytes(text: str) -> int | None:
    """Return a number of MiB in bytes."""
    return _bytes(number(text), MIB)


def gibibytes(text: str) -> int | None:
    """Return a number of GiB in bytes."""
    return _bytes(number(text), GIB)


def _bytes(value: float | None, unit: float) -> int | None:
    """Return bytes, or None beyond any memory."""
    return round(value * unit) if value is not None and abs(value * unit) < _MAX_INTEGER else None


def byte_size(text: str) -> int | None:
    """Return `12.50 MiB`, `8.61GB` or a number of bytes in bytes."""
    match = _BYTES.match(text)
    if not match:
        return None
    return _bytes(float(match[1]), 1024.0 ** _BYTE_POWERS.index((match[2] or "b")[0].lower()))


def teraflops(text: str) -> float | None:
    """Return `13.3TFLOPS` or `512.0 GFLOPS` in TFLOP/s. gpt-neox scales the unit with the value and prints none below
    1000.
    """
    match = _FLOPS.match(text)
    value = float(match[1]) * _FLOPS_UNITS[(match[2] or "").lower()] if match else None
    return value if value is not None and isfinite(value) else None

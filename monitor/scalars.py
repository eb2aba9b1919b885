"""Types of single configuration values: addresses, patterns, names, paths, durations, ratios. Pure: opens no file.

A function `..._of` takes a YAML value and returns the checked value, or raises ValueError with what is expected. The
settings of config/schema.py, of notifiers and of outputs use these types.
"""

import functools
import math
import os
import os.path
import re
import urllib.parse
import warnings
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final

from msgspec import Meta

from megatron_monitor.parsers.patterns import lazy

LONGEST_SECONDS: Final = 10 * 366 * 86400.0
"""Ten years. A longer duration is a mistake in the unit, and the system's own waits overflow not far above it."""

_SECONDS_PER: Final = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
# 1h30m, 90s, 0.5s, 500ms: each unit once, the largest first
_DURATION = lazy("".join(rf"(?:(\d{{1,9}}(?:\.\d{{1,9}})?){unit})?" for unit in _SECONDS_PER), re.ASCII)
# 2%, 0.5 %
_PERCENT = lazy(r"(?P<percent>\d{1,9}(?:\.\d{1,9})?) ?%", re.ASCII)

_SEARCH_SECONDS: Final = 0.5
MAX_PATTERN: Final = 2000
"""Most characters of a regular expression."""
_HEADER: Final = r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}"  # a token, RFC 9110 5.6.2


@functools.lru_cache(maxsize=256)
def compiled(pattern: str) -> Any:
    """Return the compiled `regex` pattern of text that `regex_of` accepted. Use it with `timeout=`: users wrote it."""
    import regex  # few configurations have a pattern

    return regex.compile(pattern)


def found_group(pattern: str, text: str, name: str) -> str | None:
    """Return that group of a user's pattern in a short text; None without a match within half a second."""
    try:
        found = compiled(pattern).search(text, timeout=_SEARCH_SECONDS)
    except TimeoutError:
        return None
    return found[name] if found else None


def _compiles(text: str) -> bool:
    """Return True for a pattern that the library `regex` compiles. Raises ValueError."""
    if len(text) > MAX_PATTERN:
        raise ValueError(f"expected a regular expression of {MAX_PATTERN} characters at most")
    import regex

    try:
        with warnings.catch_warnings(record=True):
            compiled(text)
    except (regex.error, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return True


def host_and_port(listen: str) -> tuple[str, int]:
    """Return host and port of `127.0.0.1:9843` or `[::1]:9843`. Raises ValueError. Port 0: chosen by the system."""
    host, colon, port = listen.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("expected an IPv6 host in brackets, such as [::1]:9843")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535
    if not (colon and host and is_port and all(c.isalnum() or c in ".-:%_" for c in host)):
        raise ValueError("expected HOST:PORT such as 127.0.0.1:9843")
    return host, int(port)


def _is_url(text: str) -> bool:
    """Return True for an http or https address. Raises ValueError for one with a password."""
    try:
        parts = urllib.parse.urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    if usable and parts.username is not None:
        raise ValueError("an address must not contain a password: send it in a header of header_files")
    return usable and text.isascii() and all(c > " " for c in text)


def absolute(path: str, base: str) -> str:
    """Return the absolute path: `~` is the home directory, a relative path starts at `base`. Links are not followed."""
    return os.path.abspath(os.path.join(base, os.path.expanduser(path)))


def absolute_if_slashed(path: str, base: str) -> str:
    """Return a path with a slash as absolute, a name without a slash unchanged: a program in PATH, an exclusion."""
    return absolute(path, base) if "/" in path else path


def one_line(text: str) -> str:
    """Return the text with unprintable characters escaped: safe for a terminal and for one line of a log."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def seconds_of(raw: object, *, positive: bool = False) -> float:
    """Return the seconds of a text with units, or of a plain number of seconds. Never negative. `positive`: nor 0."""
    value = _number(raw)
    if isinstance(raw, str) and raw and (match := _DURATION.fullmatch(raw)):
        parts = zip(match.groups(), _SECONDS_PER.values(), strict=True)
        value = sum(float(number) * seconds for number, seconds in parts if number is not None)
    if value is None or value < 0.0:
        raise ValueError("expected a duration such as 90s, 5m or 500ms, or a number of seconds")
    if value > LONGEST_SECONDS:
        raise ValueError("expected a duration of ten years at most")
    if positive and not value:
        raise ValueError("expected a duration above 0")
    return value


positive_seconds_of = functools.partial(seconds_of, positive=True)


def ratio_of(raw: object) -> float:
    """Return the ratio as a fraction of one. A plain number above 1 is refused: 2 might mean 2 % or 200 %."""
    if isinstance(raw, str) and (match := _PERCENT.fullmatch(raw)):
        return float(match["percent"]) / 100.0
    value = _number(raw)
    if value is None or value < 0.0:
        raise ValueError("expected a ratio such as 2% or 0.02")
    if value > 1.0:
        raise ValueError("expected a ratio of 1 at most, or a percentage with its sign")
    return value


def _number(raw: object) -> float | None:
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        return None
    try:
        return float(raw) if math.isfinite(raw) else None
    except OverflowError:
        return None


def _reader(expected: str, is_valid: Callable[[str], object]) -> Callable[[object], str]:
    """Return a function that returns a text which `is_valid` accepts. It may raise ValueError with what is wrong."""

    def read(raw: object) -> str:
        if not isinstance(raw, str) or not raw or not is_valid(raw):
            raise ValueError(f"expected {expected}")
        return raw

    return read


def _is_run_name(text: str) -> bool:
    return text.isprintable() and len(text) <= 200 and text == text.strip()


regex_of = _reader("a regular expression", _compiles)
listen_of = _reader("HOST:PORT such as 127.0.0.1:9843", host_and_port)
url_of = _reader("an http or https address", _is_url)
path_of = _reader("a path of printable characters", str.isprintable)
"""For a path or a glob. It need not exist yet."""
header_value_of = _reader("a header's value in printable ASCII", lambda text: text.isascii() and text.isprintable())
run_name_of = _reader("a run's name of 200 printable characters at most", _is_run_name)


def _shaped(pattern: str, description: str, **extra: bool) -> Meta:
    return Meta(pattern=rf"^(?:{pattern})\Z", description=description, extra=extra)


Regex = Annotated[str, Meta(extra={"read": regex_of})]
Listen = Annotated[str, Meta(extra={"read": listen_of})]
Url = Annotated[str, Meta(extra={"read": url_of, "secret": True})]
PublicUrl = Annotated[str, Meta(extra={"read": url_of})]
Name = Annotated[
    str,
    _shaped(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,99}", "a name of letters, digits and _ . : / - of 100 characters at most"),
]
"""Safe as a label and in a log line."""
RunName = Annotated[str, Meta(extra={"read": run_name_of})]
FilePath = Annotated[str, Meta(extra={"read": path_of, "resolve": absolute})]
PathOrName = Annotated[str, Meta(extra={"read": path_of, "resolve": absolute_if_slashed})]
CommandLine = Annotated[
    tuple[str, ...],
    Meta(min_length=1, extra={"resolve": lambda command, base: (absolute_if_slashed(command[0], base), *command[1:])}),
]
"""A program and its arguments, passed unchanged."""
Header = Annotated[str, _shaped(_HEADER, "a header's name")]
HeaderValue = Annotated[str, Meta(extra={"read": header_value_of, "secret": True})]
Variable = Annotated[str, _shaped(r"[A-Za-z_][A-Za-z0-9_]{0,199}", "the name of an environment variable")]
# $2y$12$ and 53 characters of salt and hash, as `htpasswd -nBC 12 ""` prints. Each cost step doubles the time.
BcryptHash = Annotated[
    str,
    _shaped(
        r"\$2[abxy]?\$(?:0[4-9]|1[0-6])\$[./A-Za-z0-9]{53}",
        "a bcrypt hash of cost 04 to 16, never the password itself",
        secret=True,
    ),
]
Sha256 = Annotated[
    str, _shaped(r"[0-9a-f]{64}", "a SHA-256 of 64 hexadecimal digits, never the token itself", secret=True)
]
MailAddress = Annotated[str, _shaped(r"[\w!#$%&'*+./=?^`{|}~-]+@[\w.-]+", "a mail address such as on-call@example.org")]
Seconds = Annotated[float, Meta(extra={"read": seconds_of})]
PositiveSeconds = Annotated[float, Meta(extra={"read": positive_seconds_of})]
Ratio = Annotated[float, Meta(extra={"read": ratio_of})]
"""A fraction of one."""
Positive = Annotated[float, Meta(gt=0)]

Problems = Iterator[tuple[str, str]]
"""What `problems()` of a settings class yields: (key, message) for a wrong combination of values."""

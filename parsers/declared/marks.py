"""Marks of lines: literal text with placeholders, such as `Training epoch {epoch}, iteration {number}/{number} |`.

A placeholder is one of our names (targets.py), a name with a unit such as `{tflops GFLOP/s}`, or one of HELPERS. Two
blanks in a mark match one or more blanks. A number may be padded with blanks, as in a column. Format files need no
regular expressions for this. The compiled mark takes time proportional to the line, whatever the line contains.
Therefore two placeholders never touch, and a placeholder does not match the character that follows it.
"""

import re
from functools import cache, cached_property
from typing import Final

from megatron_monitor.parsers.declared.targets import converter

HELPERS: Final = {
    "number": "a number",
    "word": "text without blanks",
    "text": "any text, up to 200 characters",
    "bar": "a progress bar, `10%|#   |`",
    "clock": "`01:02:03` or `?`",
}
"""Placeholders whose text is dropped."""
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]+(?: [A-Za-z/%]+(?: [a-z]+)?)?)\}")
_MOST_TEXTS = 2  # `{text}` may look 200 characters ahead
_MOST_PLACEHOLDERS = 40
_MOST_CHARACTERS = 1000
_MOST_PLACES = 64  # maximum positions in a line at which a mark without a fixed place is tried
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_TIME = (
    rf"\d{{4}}-\d\d-\d\d[ T,]{_CLOCK}(?:Z|[-+]\d\d:?\d\d)?|\d{{4}}/\d\d/\d\d {_CLOCK}"
    rf"|\d\d/\d\d/\d{{4}} {_CLOCK}|\d\d[-/]\d\d {_CLOCK}"
)
_BAR = r"[ ]{0,3}\d{1,3}%\|[^|]{0,400}\|"


class LineMark:
    """A parsed mark. Raises ValueError with what is wrong."""

    def __init__(self, text: str) -> None:
        if len(text) > _MOST_CHARACTERS:
            raise ValueError(f"is longer than {_MOST_CHARACTERS} characters")
        pieces = _PLACEHOLDER.split(text)
        self._literals, self._names = pieces[::2], pieces[1::2]
        if len(self._names) > _MOST_PLACEHOLDERS:
            raise ValueError(f"has more than {_MOST_PLACEHOLDERS} placeholders")
        captured = [converter(name) for name in self._names if name not in HELPERS]
        self.converters = dict(captured)
        """Name of a group of `pattern` -> its converter."""
        if len(self.converters) < len(captured):
            raise ValueError("names the same thing twice")
        if self._names.count("text") > _MOST_TEXTS:
            raise ValueError(f"has more than {_MOST_TEXTS} times {{text}}")
        between = zip(self._names, self._literals[1:-1], strict=False)
        if any(not literal and name != "text" for name, literal in between):
            raise ValueError("has two placeholders with nothing between them")
        self.anchor = max(
            (part.strip("\t") for literal in self._literals for part in literal.split("  ")), key=len, default=""
        )
        """The longest literal text that each such line contains."""
        self.lead = self._literals[0].partition("  ")[0]
        """The literal text with which the mark begins."""
        self.weight = sum(len(literal.replace(" ", "")) for literal in self._literals)
        """Number of literal characters. A mark with more is more specific."""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The mark as a regular expression with a group for each of our names.

        Groups are atomic: a placeholder keeps what it matched, so that a mismatch fails at once.
        """
        out = [_literal(self._literals[0])]
        for index, name in enumerate(self._names):
            group = "?:" if name in HELPERS else f"?P<{converter(name)[0]}>"
            # in a column: `[  5/100]`; two blanks in the mark match them already
            aligned = "" if self._special(index) or self._literals[index].endswith("  ") else "[ ]{0,12}"
            out += [aligned, f"({group}(?>{self._taken(index)}))", _literal(self._literals[index + 1])]
        return re.compile("".join(out))

    def _taken(self, index: int) -> str:
        """Return the pattern of a placeholder: a number, unless the name requires another text."""
        return self._special(index) or _number(self._literals[index + 1][:2])

    def _special(self, index: int) -> str:
        """Return the pattern of a placeholder that is no number."""
        name, following = self._names[index], self._literals[index + 1]
        kind = name.partition(" ")[0]
        stop = re.escape(following[0]) if following.strip() else ""
        if kind == "text":
            follows = _literal(following) or (self._taken(index + 1) if index + 1 < len(self._names) else "")
            return rf"(?:(?!{follows}).){{0,200}}" if follows else ".{0,200}"
        if kind in ("bar", "time"):
            return _BAR if kind == "bar" else _TIME
        if kind == "clock":
            return r"[\d:.]{1,16}|\?"
        if kind in ("word", "path"):
            return rf"[^\s{stop}]{{1,{1000 if kind == 'path' else 80}}}"
        if "clock" in name or "words" in name:
            return rf"[^{stop}]{{1,40}}" if stop else r".{1,40}"
        return ""

    def match(self, text: str, start: int, *, anywhere: bool) -> re.Match[str] | None:
        """Return the match at `start` behind blanks, or with `anywhere` the first one."""
        if not anywhere:
            while text.startswith((" ", "\t"), start) and not self._literals[0].startswith(text[start]):
                start += 1
            return self.pattern.match(text, start)
        for _ in range(_MOST_PLACES):
            start = text.find(self.lead, start)
            match = self.pattern.match(text, start) if start >= 0 else None
            if start < 0 or match is not None:
                return match
            start += 1
        return None


mark_of = cache(LineMark)


def _literal(text: str) -> str:
    return re.sub(r"(?:\\ ){2,}", "[ \\t]{1,40}", re.escape(text))


def _number(following: str) -> str:
    """Return the pattern of a number, without the character that follows the placeholder if it could be part of a
    number. The comma of `1,234, ` cannot, because a blank follows it.
    """
    points = "".join(point for point in ",." if point != following[:1] or following[1:] == " ")
    following = following[:1]
    powers = "" if following in "KMBT" and following else "[KMBT]?"
    more = rf"(?:[{points}]\d{{1,24}}){{0,8}}"
    end = r"\.?" if following != "." else ""
    return rf"[-+]?(?:\d{{1,24}}{more}{end}|\.\d{{1,24}})(?:[eE][-+]?\d{{1,3}})?{powers}|[-+]?(?i:nan|inf(?:inity)?)"

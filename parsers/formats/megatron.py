"""Reads the iteration line of Megatron-LM and its forks (`training_log`) of all versions, and the report of each rank's
times, one block per timer. gpt-neox prints ` samples/sec: 206.693 | iteration        1/     512 | elapsed time per
iteration (ms): 2477.1 | ... | lm_loss: 1E+1 |`.

Input: a line with `iteration N/M |`. Output: one `IterationLogged` for each iteration in the line. Fields are matched
by name, not by position, and any field may be missing. If the loss is NaN, its field is missing from the line, so a
line without a loss is evidence and not a parse error. The unit is in the label. The line of Argonne's fork of
Megatron-DeepSpeed differs only in its separator and some names: `iteration=       3/  100000 | consumed_samples=  768 |
elapsed_time_per_iteration_ms=17711.7 | lm loss=11.2 | ... |`.
"""

import re
from collections.abc import Iterator
from typing import Any

from msgspec import Struct, field

from megatron_monitor.parsers.declared import TABLES
from megatron_monitor.parsers.declared.targets import converter
from megatron_monitor.parsers.engine.fields import NUMBER, byte_size, integer, milliseconds, name_and_value, number
from megatron_monitor.parsers.engine.scan import Gatherer, Line, Rule
from megatron_monitor.parsers.engine.spans import Convert, Span, Spanned
from megatron_monitor.parsers.events import Event, IterationLogged, Malformed, MemoryReported, TimersReported
from megatron_monitor.parsers.patterns import lazy
from megatron_monitor.parsers.programs import ARGONNE, recognised

# ` iteration       30/    1000 | consumed ...`, ` iteration  30/infinity |`, Argonne's ` iteration=       3/  1000 |`;
# `my_iteration 5/ 10` and `args.iteration=5/10` are not lines of the training loop
_START = lazy(
    r"iteration(?<![^\W\d]iteration)(?<!\.iteration)(?:[ ]{1,20}|(=)[ ]{0,20})"
    r"(\d{1,12})[ ]{0,20}/[ ]{0,20}(\d{1,12}|infinity|inf)[ ]{0,4}\|"
)
# `iteration time: 4.125 s samples/sec: 3.8`: a fork's two fields in one piece
_SEVERAL = lazy(rf"([A-Za-z][\w/ .()-]{{0,60}}?):[ ]{{1,20}}({NUMBER}(?:[ ](?:ms|s|min|h)\b)?)", re.IGNORECASE)
# Full printed shapes: `6.9E+00`, `149.02`, `13.3TFLOPS`, `35.8%`
_WHOLE = lazy(r"[-+]?\d+\.\d+(?:E[-+]\d\d+)?(?:%|[KMGTPE]?FLOPS)?|[-+]?(?:nan|inf)", re.IGNORECASE)
# `sop loss`, `load_balancing_loss`, `loss mse`; but `lm loss value` belongs to validation, and `loss scale` is not a
# loss
_LOSS = lazy(r"(?:^|[ _-])loss$|^loss[ _](?!scale)", re.IGNORECASE)
_NAME = lazy(r"[A-Za-z\[][\w .,()/%*+#<>=\[\]-]{0,79}")
# `+ grep 'iteration 5/ 10 |...`: the shell's trace of a command; `  log_format ........ iteration 5/ 10 |`: an argument
_ECHO = lazy(r"\++ |[A-Za-z]\w{0,99} \.{2,99} ")

# `150.00GB/105.98GB/255.98GB/58.60%`: what the processes use of a GPU's memory, what is free, and all of it
_MEMORY = lazy(r"(?P<used>[^/]+)/[^/]*/(?P<whole>[^/]+)")
# `  forward-compute:` and `     rank  3: 306.62` under `times across ranks (ms):`
_NAMED = lazy(r"^[ ]{2}([A-Za-z][\w/ .-]{0,80}):\s*$")
_OF_RANK = lazy(r"^[ ]{5}rank[ ]{1,6}(\d{1,7}): (\d{1,12}\.\d{1,12})\s*$")
_MOST_RANKS = 100_000  # maximum ranks of one timer

_MAX_FIELDS = 100  # the longest real line has 20; the bound limits the event of a hostile line
_MAX_PIECE = 200

FIELDS: dict[str, tuple[str, Convert]] = {
    **{name.lower().replace("_", " "): converter(target) for name, target in TABLES["megatron"].items()},
    "hip mem usage/free/total/usage ratio": ("memory", str),
}
"""Printed name in small letters, with blanks for underscores -> (attribute, converter)."""


class _Fields(Struct):
    """The fields of one line as spans, and the names of all its fields. `truncated` is True if a known field has an
    incomplete value.
    """

    line: Line
    values: dict[str, Span] = field(default_factory=dict)
    losses: dict[str, Span] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    truncated: bool = False

    @property
    def reported(self) -> bool:
        """True if it has a known field."""
        return bool(self.losses or self.truncated or any(span.value is not None for span in self.values.values()))

    def take(self, name: str, text: str, end: int, closed: bool = True) -> bool:
        """Read one field, whose text ends at `end` in the line. Return False if it is unknown. A value without its
        closing bar may be incomplete.
        """
        known = FIELDS.get(name.lower().replace("_", " "))
        at = (end - len(text), end)
        if known is None:
            return self._take_loss(name, text, at, closed)
        attribute, convert = known
        self.names.add(name)
        if not text or not (closed or _is_whole(text, attribute, convert)):
            self.truncated = True
            return True
        value, before = self.line.span(at, convert), self.values.get(attribute)
        # the actual sequence length follows the curriculum's and is that of the samples
        if before is None or before.value is None or (name == "actual seqlen" and value.value is not None):
            self.values[attribute] = value
        return True

    def _take_loss(self, name: str, text: str, at: tuple[int, int], closed: bool) -> bool:
        if not _LOSS.search(name) or not _NAME.fullmatch(name):
            return False
        value = self.line.span(at, number) if closed or _WHOLE.fullmatch(text) else None
        if value is not None and value.value is not None:
            self.names.add(name)
            self.losses[name] = value
        return True

    def several(self, name: str, piece: str, end: int, closed: bool) -> bool:
        """Read the fields of a piece with several fields that ends at `end`. Return False if it has only one."""
        found = list(_SEVERAL.finditer(piece)) if ":" in name and len(piece) < _MAX_PIECE else ()
        for match in found:
            self.take(match[1].strip(), match[2], end - len(piece) + match.end(2), closed)
        return bool(found)


def _is_whole(text: str, attribute: str, convert: Convert) -> bool:
    """Return True if a value without a closing bar is certainly complete. A cut integer looks complete; only two fields
    can be last.
    """
    if convert is integer:
        return attribute in ("skipped_iterations", "nan_iterations")
    return _WHOLE.fullmatch(text) is not None and (attribute != "learning_rate" or "E" in text.upper())


def read_fields(line: Line, lead: tuple[int, int], rest: tuple[int, int], argonne: bool) -> _Fields:
    """Read the `|`-separated fields of one line. `lead` and `rest` are positions in the text. Of text that another
    writer appended, only known fields are read.
    """
    found = _Fields(line)
    seam = lead[1] - lead[0]
    pieces = (line.text[slice(*lead)] + line.text[slice(*rest)]).split("|", _MAX_FIELDS)
    last = len(pieces) - 1
    foreign = False
    end = -1
    for index, piece in enumerate(pieces):
        end += len(piece) + 1
        place = end + (lead[0] if end <= seam else rest[0] - seam)
        pair = _argonne_pair(piece) if argonne else name_and_value(piece)
        if pair is None:
            foreign = True
            continue
        name, text = pair
        value_end = place - len(piece) + len(piece.rstrip())
        if found.take(name, text, value_end, index < last) or found.several(name, piece, place, index < last):
            continue
        if not foreign and (":" in piece or "=" in piece) and _NAME.fullmatch(name):
            found.names.add(name)
        else:
            foreign = True
    return found


def iterations(line: Line) -> Iterator[Event | Spanned]:
    """Yield the iterations of a line. Text before and after them is allowed."""
    text = line.text
    matches = list(_START.finditer(text))
    if not matches:
        return
    floors = [0, *(match.end() for match in matches)]
    leads = [_lead(text, floor, match.start()) for floor, match in zip(floors, matches, strict=False)]
    before = text[: leads[0]].strip()
    if _ECHO.match(before):
        return
    for match, lead, end in zip(matches, leads, [*leads[1:], len(text)], strict=True):
        argonne = match[1] is not None
        found = read_fields(line, (lead, match.start()), (match.end(), end), argonne)
        if found.reported:
            values = {
                "iteration": line.span(match.span(2), int), "losses": found.losses,
                "train_iterations": line.span(match.span(3), integer) if match[3].isdecimal() else None,
                "format": ARGONNE.name if argonne else recognised(found.names),
            }  # fmt: skip
            memory = found.values.pop("memory", None)
            yield Spanned(IterationLogged, values | found.values | line.origin_spans)
            if memory is not None and (sizes := _MEMORY.match(memory.text)):
                at = memory.start - line.start
                known = {name: line.span((at + sizes.start(name), at + sizes.end(name)), byte_size)
                         for name in ("used", "whole")}  # fmt: skip
                yield Spanned(_reported, known | {"iteration": values["iteration"]} | line.origin_spans)
        elif not before and found.names:
            rule = f"{ARGONNE.name if argonne else 'megatron'}.iteration"
            yield Malformed(rule=rule, text=text.strip()[:500], **line.origin)


def _reported(used: int | None = None, whole: int | None = None, **others: Any) -> Iterator[Event]:
    if used and whole:
        yield MemoryReported(occasion="step", reserved_bytes=used, device_bytes=whole, **others)


def _lead(text: str, floor: int, start: int) -> int:
    """Return where the line begins: gpt-neox prints ` samples/sec: 206.7 | iteration ...`."""
    found = text.rfind("samples/sec:", floor, start)
    return found if found >= 0 and text.count("|", found, start) == 1 else start


def _argonne_pair(piece: str) -> tuple[str, str] | None:
    name, separator, value = piece.partition("=")
    name = name.strip()
    return (TABLES["argonne"].get(name, name), value.strip()) if separator and name else None


class RankTimesGatherer(Gatherer):
    """`times across ranks (ms):` and the lines after it: timer names, and below each the time of each rank."""

    name: str = ""
    ranks: list[tuple[int, float]] = field(default_factory=list)

    def offer(self, line: Line) -> tuple[list[Event], bool, bool]:
        """Return one event per timer. The first line that is neither a name nor a rank's time ends the report."""
        match = _OF_RANK.match(line.text)
        if match and self.name:
            duration = milliseconds(match[2])
            if duration is not None and len(self.ranks) < _MOST_RANKS:
                self.ranks.append((int(match[1]), duration))
            return [], True, False
        named = _NAMED.match(line.text)
        found = self.close()
        self.name, self.ranks = (named[1] if named else ""), []
        return found, named is not None, named is None

    def close(self) -> list[Event]:
        """Return the timer whose ranks were read last."""
        if not self.name or not self.ranks:
            return []
        times = [duration for _, duration in self.ranks]
        timers = {self.name: (min(times), max(times))}
        return [TimersReported(speaker="megatron", timers=timers, across="range", ranks=dict(self.ranks))]


def read_all_ranks(line: Line) -> Iterator[Event | Gatherer]:
    """Open a report of each rank's times."""
    if line.text.strip() == "times across ranks (ms):":
        yield RankTimesGatherer()


# The beginnings that _START matches; `iteration ` alone would also select each `per iteration (ms)`.
_ANCHORS = (b"iteration  ", *(b"iteration %d" % digit for digit in range(10)))

RULES: tuple[Rule, ...] = (
    Rule("argonne.iteration", (b"iteration=",), iterations),
    Rule("megatron.iteration", _ANCHORS, iterations),
    Rule("megatron.rank_times", (b"times across ranks (ms):",), read_all_ranks, opens=RankTimesGatherer),
)

"""Reads the arguments dump (Megatron's `_print_args`, gpt-neox's NeoXArgs.print) from its heading to its end.

Names are padded with dots to a column; long names have few dots. srun may break a value onto a next line that begins
with dots. gpt-neox prints the value's origin directly after it. Lines of other ranks in between go to the other rules.
"""

from collections.abc import Iterator

from msgspec import field

from megatron_monitor.parsers.engine.scan import Gatherer, Line, Rule
from megatron_monitor.parsers.events import ArgumentsDumped, Event
from megatron_monitor.parsers.patterns import lazy

_MAX_LINES = 6000  # the longest real dump has 700 lines; other ranks may print as much in between
_MAX_VALUE = 4000

# `------------------------ arguments ------------------------`
_HEAD = lazy(r"^[ ]{0,8}-{3,200}[ ]arguments[ ]-{3,200}\s*$")
# `-------------------- end of arguments ---------------------`
_END = lazy(r"-{3,200}[ ]end of arguments[ ]-{3,200}")
# `  hidden_size ..................................... 2048`, `  a_very_long_name .. 1`, `  name  True...updated`
_ARGUMENT = lazy(r"^[ ]{0,4}([A-Za-z_]\w{0,120})[ ](\.{2,80}|[ ])(?:[ ](.*))?$")
_COLUMN = 48  # logcli cuts the blanks before a line but not the dots
# `........................ False`: the rest of an argument that srun cut
_REST = lazy(r"^[ ]{0,2}(\.{2,80})(?:[ ](.*))?$")
# `512.........................updated`
_ORIGIN = lazy(r"\.{2,80}(?:updated|default|derived)\s*$|(?<=\S)(?:updated|default)$")


class ArgumentsGatherer(Gatherer):
    """An open dump. `cut` is the name whose value is still missing."""

    values: dict[str, str] = field(default_factory=dict)
    lines: int = 0
    unfinished: str | None = None
    rank: int | None = None

    def offer(self, line: Line) -> tuple[list[Event], bool, bool]:
        """Take arguments and leave all other lines."""
        self.lines += 1
        text = line.text
        if _END.search(text):
            return [self._dump(True)], True, True
        if _HEAD.match(text):  # a second dump began before the first ended: keep what was gathered
            done: list[Event] = [self._dump(False)] if self.values else []
            self.values, self.lines, self.unfinished = {}, 0, None
            return done, True, False
        if self.lines > _MAX_LINES or ("iteration " in text and "elapsed time per iteration" in text):
            return self.close(), False, True
        match = _ARGUMENT.match(text)
        if match and (text.startswith(" ") or len(match[1]) + len(match[2]) >= _COLUMN):
            self._take(match[1], match[3])
            return [], True, False
        if self.unfinished is not None and (rest := _REST.match(text)):
            self._take(self.unfinished, rest[2])
            return [], True, False
        return [], False, False

    def close(self) -> list[Event]:
        """The log ended within the dump."""
        return [self._dump(False)] if self.values else []

    def _take(self, name: str, value: str | None) -> None:
        self.unfinished = name if value is None else None
        self.values[name] = _ORIGIN.sub("", (value or "").strip())[:_MAX_VALUE].strip()

    def _dump(self, complete: bool) -> ArgumentsDumped:
        return ArgumentsDumped(values=dict(self.values), complete=complete, rank=self.rank)


def open_dump(line: Line) -> Iterator[Event | Gatherer]:
    """Open a dump."""
    if _HEAD.match(line.text):
        yield ArgumentsGatherer(rank=line.prefix.global_rank)


RULES: tuple[Rule, ...] = (Rule("megatron.arguments", (b" arguments ---",), open_dump, opens=ArgumentsGatherer),)

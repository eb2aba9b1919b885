"""Reads HF's configuration of a model as JSON, and overrides of it. hf-settings.yaml reads the Trainer's arguments."""

from collections.abc import Iterator

from msgspec import field

from megatron_monitor.parsers.declared import TABLES
from megatron_monitor.parsers.engine.fields import integer
from megatron_monitor.parsers.engine.scan import Gatherer, Line, Rule
from megatron_monitor.parsers.events import Event, SizesReported
from megatron_monitor.parsers.patterns import lazy

_MAX_TEXT = 50_000  # maximum characters of a line
_MAX_LINES = 1500  # the longest real configuration has 300 lines; other ranks may print theirs in between

# `INFO:__main__:Overriding config: n_embd=11264,n_head=32,n_layer=64,n_positions=1024,gradient_checkpointing=true`
_OVERRIDES = lazy(r"\bOverriding config: (\w{1,60}=[^ ]{1,2000})")
# `[INFO|configuration_utils.py:553] ... >> Model config GPT2Config {`, `ModelInfo(..., config=LlamaConfig {`
_MODEL = lazy(r"(?:\bModel config |\bconfig=)\w{1,80}Config \{\s*$")
# `  "hidden_size": 2816,` and `    "hidden_size": 2816,` in a section
_PAIR = lazy(r'^([ ]{2}|[ ]{4})"(\w{1,80})": (.{1,200}?),?\s*$')
_SECTIONS = frozenset({"text_config", "llm_config", "language_config"})
_KEYS: dict[str, str] = TABLES["hf_configuration"]


def read_overrides(line: Line) -> Iterator[Event]:
    """Read overrides of the model's configuration."""
    if match := _OVERRIDES.search(line.text[:_MAX_TEXT]):
        pairs = (pair.partition("=") for pair in match[1].split(","))
        values = _values({name: value for name, _, value in pairs})
        if values:
            yield SizesReported(values=values, **line.origin)


def _values(pairs: dict[str, str]) -> dict[str, int]:
    values = {_KEYS[name]: size for name, text in pairs.items() if name in _KEYS and (size := integer(text))}
    if pairs.get("gradient_checkpointing") in ("true", "True"):
        values["recomputes"] = 1
    return values


class ConfigurationGatherer(Gatherer):
    """An open configuration. `section` is the one whose lines are indented by two more columns."""

    pairs: dict[str, str] = field(default_factory=dict)
    """Name -> text. A section's come before those around it."""
    section: str = ""
    lines: int = 0

    def offer(self, line: Line) -> tuple[list[Event], bool, bool]:
        """Take the pairs and leave all other lines."""
        self.lines += 1
        text = line.text
        if text.startswith("}") or self.lines > _MAX_LINES:
            return self.close(), False, True
        match = _PAIR.match(text)
        if match is None:
            return [], False, False
        if len(match[1]) == 2:
            self.section = match[2] if match[3] == "{" else ""
            self.pairs.setdefault(match[2], match[3])
        elif self.section in _SECTIONS:
            self.pairs[match[2]] = match[3]
        return [], True, False

    def close(self) -> list[Event]:
        """Return the sizes if they include the number of layers."""
        values = _values(self.pairs)
        if "layers" not in values:
            return []
        if "rms_norm_eps" in self.pairs:  # models with this normalisation have gated MLPs
            values["glu"] = 1
        return [SizesReported(values=values, default=True)]


def open_configuration(line: Line) -> Iterator[Event | Gatherer]:
    """Open a model's configuration."""
    if _MODEL.search(line.text[:_MAX_TEXT]):
        yield ConfigurationGatherer()


RULES: tuple[Rule, ...] = (
    Rule("hf.model_config", (b"Config {",), open_configuration, opens=ConfigurationGatherer),
    Rule("hf.arguments", (b"Overriding config: ",), read_overrides),
)

"""Reads sizes of an attempt and its model from programs around HF's Trainer: batch, accumulation, model configuration.

Input: the Trainer's arguments (one per line, all in one line, or a command line) and the model's configuration as JSON.
Output: `SizesReported`. Programs that do not train print the same, so these events alone create no run.
"""

from collections.abc import Iterator

from msgspec import field

from megatron_monitor.parsers.declared import TABLES
from megatron_monitor.parsers.engine.fields import integer
from megatron_monitor.parsers.engine.scan import Gatherer, Line, Rule
from megatron_monitor.parsers.events import Event, SizesReported
from megatron_monitor.parsers.patterns import lazy

_MAX_TEXT = 50_000  # maximum characters of a line: `TrainingArguments(...)` in one line has 3,000
_MAX_LINES = 1500  # the longest real configuration has 300 lines; other ranks may print theirs in between

# `per_device_train_batch_size=4,`, `--gradient_accumulation_steps 8`, `'gradient_accumulation_steps': 8`
_ARGUMENT = lazy(
    r"(?<![\w.])(per_device_train_batch_size|gradient_accumulation_steps|sequence_parallel_size)"
    r"['\"]?[:= ]{1,3}(\d{1,9})(?![\w.])"
)
_ARGUMENTS: dict[str, str] = TABLES["hf_arguments"]
# `gradient_checkpointing=True`, `'activation_checkpointing': True`
_CHECKPOINTING = lazy(r"(?<![\w.])(?:gradient|activation)_checkpointing['\"]?[:= ]{1,3}([Tt]rue|[Ff]alse)\b")
# `INFO:__main__:Overriding config: n_embd=11264,n_head=32,n_layer=64,n_positions=1024,gradient_checkpointing=true`
_OVERRIDES = lazy(r"\bOverriding config: (\w{1,60}=[^ ]{1,2000})")
# `[INFO|configuration_utils.py:553] ... >> Model config GPT2Config {`, `ModelInfo(..., config=LlamaConfig {`
_MODEL = lazy(r"(?:\bModel config |\bconfig=)\w{1,80}Config \{\s*$")
# `  "hidden_size": 2816,` and `    "hidden_size": 2816,` in a section
_PAIR = lazy(r'^([ ]{2}|[ ]{4})"(\w{1,80})": (.{1,200}?),?\s*$')
_SECTIONS = frozenset({"text_config", "llm_config", "language_config"})
_KEYS: dict[str, str] = TABLES["hf_configuration"]


def read_arguments(line: Line) -> Iterator[Event]:
    """Read the Trainer's arguments anywhere in the line, and overrides of the model's configuration."""
    text = line.text[:_MAX_TEXT]
    if match := _OVERRIDES.search(text):
        pairs = (pair.partition("=") for pair in match[1].split(","))
        values = _values({name: value for name, _, value in pairs})
        if values:
            yield SizesReported(values=values, **line.origin)
        return
    found = {_ARGUMENTS[name]: size for name, digits in _ARGUMENT.findall(text) if (size := integer(digits))}
    if found:
        yield SizesReported(values=found, **line.origin)
    if terms := _CHECKPOINTING.findall(text):
        on = any(word in ("True", "true") for word in terms)
        # False may hold for one of two ways to recompute activations
        yield SizesReported(values={"recomputes": int(on)}, default=not on, **line.origin)


def _values(pairs: dict[str, str]) -> dict[str, int]:
    values = {_KEYS[name]: size for name, text in pairs.items() if name in _KEYS and (size := integer(text))}
    if pairs.get("gradient_checkpointing") in ("true", "True"):
        values["recomputes"] = 1
    return values


class ConfigurationGatherer(Gatherer):
    """An open configuration. `section` is the one whose lines are indented by two more columns."""

    own: dict[str, str] = field(default_factory=dict)
    nested: dict[str, str] = field(default_factory=dict)
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
            self.own[match[2]] = match[3]
        elif self.section in _SECTIONS:
            self.nested[match[2]] = match[3]
        return [], True, False

    def close(self) -> list[Event]:
        """Return the sizes if they include the number of layers."""
        pairs = {**self.own, **self.nested}
        values = _values(pairs)
        if "layers" not in values:
            return []
        if "rms_norm_eps" in pairs:  # models with this normalisation have gated MLPs
            values["glu"] = 1
        return [SizesReported(values=values, default=True)]


def open_configuration(line: Line) -> Iterator[Event | Gatherer]:
    """Open a model's configuration."""
    if _MODEL.search(line.text[:_MAX_TEXT]):
        yield ConfigurationGatherer()


RULES: tuple[Rule, ...] = (
    Rule("hf.model_config", (b"Config {",), open_configuration, opens=ConfigurationGatherer),
    Rule(
        "hf.arguments",
        (b"per_device_train_batch_size", b"gradient_accumulation_steps", b"sequence_parallel_size",
         b"gradient_checkpointing", b"activation_checkpointing'", b"Overriding config: "),
        read_arguments,
    ),
)  # fmt: skip

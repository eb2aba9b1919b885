"""One way to read the step lines of a log: its names guessed, tried on the lines, written as a dialect's file. Pure."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from math import inf

import yaml

from megatron_monitor.model.tables import rows_of
from megatron_monitor.parsers.declared.schema import Dialect, LineSpec, Sample, built_in
from megatron_monitor.parsers.engine.fields import clock
from megatron_monitor.parsers.events import IterationLogged, LogEvent, StepGuessed, to_fields
from megatron_monitor.parsers.reader import SourceReader
from megatron_monitor.parsers.samples import read
from megatron_monitor.reports.dialect_others import Other, memo_of, others
from megatron_monitor.reports.dialect_steps import Count

_STEP_NAME = re.compile(r"^(?:.*[/_ .])?(?:global_?step|num_updates|iteration|iter|step|update|batch)(?:s|_?idx?)?$")

_MEMORY = ("allocated", "reserved", "max_allocated", "max_reserved")
_MEBIBYTES = 400  # a number above it is no GiB of one GPU
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")


@cache
def _guesses() -> list[tuple[str, str | None]]:
    """What a name in small letters looks like, and ours: the first that fits."""
    return rows_of("megatron_monitor.reports", "names.csv", tuple[str, str | None])


def is_step(name: str) -> bool:
    """Whether a name is what a step is called by."""
    return _STEP_NAME.match(name.lower()) is not None and not re.search(r"tim|sec|dur", name.lower())


def guess(name: str, value: str) -> str | None:
    """Our name with its unit; None where nothing is known."""
    small = name.lower()
    if is_step(name):
        return None
    target = next((target or "" for pattern, target in _guesses() if re.search(pattern, small)), "")
    if target == "elapsed_seconds" and value.count(":"):
        return "elapsed_seconds clock"
    if target in ("seconds_per_iteration", "elapsed_seconds"):
        milliseconds = re.search(r"(?:^|[_( ])ms\b|_ms$|\(ms\)", small) or re.search(r"\d[ ]?ms\b", value)
        return f"{target} ms" if milliseconds else target
    if target in _MEMORY:
        return f"{target} {_unit_of_memory(small, value)}"
    if target == "mfu" and value.endswith("%"):
        return "mfu %"
    return target or None


def _unit_of_memory(small: str, value: str) -> str:
    if re.search(r"\d[ ]?[KMGT]i?B", value):
        return "printed"
    match = _NUMBER.match(value)
    amount = float(match[0].replace(",", "")) if match else 0.0
    if amount > 200 * 1024**2:
        return "B"
    return "MiB" if re.search(r"mi?b", small) or amount > _MEBIBYTES else "GiB"


_SHOWN = (
    "iteration", "train_iterations", "lm_loss", "grad_norm", "learning_rate", "seconds_per_iteration",
    "elapsed_seconds", "tokens_per_second", "tokens_per_second_per_gpu", "samples_per_second", "loss_scale",
    "global_batch_size", "consumed_samples", "consumed_tokens", "tflops", "mfu", "logged_at",
)  # fmt: skip
"""Of what a sample gives: more would bury it."""
_MOST_UNKNOWN = 30  # names that are listed


@dataclass(frozen=True)
class Proposal:
    """One way to read them. `step`: the name that the step has among the pairs, empty where the mark holds it."""

    line: LineSpec
    step: str
    pairs: Sequence[tuple[str, str]]
    prefix: str
    texts: Sequence[str]
    count: Count
    below: Sequence[str] = ()

    @cached_property
    def guessed(self) -> tuple[dict[str, str], list[str]]:
        """(their name -> ours, names of which nothing is known). A meaning that is taken is not given twice."""
        fields, unknown = {}, list[str]()
        taken: set[str] = set()
        for name, value in self.pairs:
            target = self._of_step(name) or guess(name, value)
            if target is None or (target in taken and target != "losses") or not self._grows(name, target):
                unknown.append(name)
            else:
                taken.add(target)
                fields[name] = target
        return fields, unknown

    def _of_step(self, name: str) -> str:
        """What a name tells of the step, where it is one of the pairs."""
        if self.count.epoch is None or self.step == "":
            return "step" if name == self.step else ""
        epoch = "epoch number" if self.count.from_one else "epoch"
        return "epoch_step" if name == self.step else epoch if name.lower() in ("epoch", "ep") else ""

    def _grows(self, name: str, target: str) -> bool:
        """Whether a time since the start grows, as it must; of any other value nothing is asked."""
        if not target.startswith("elapsed_seconds"):
            return True
        pattern = re.compile(re.escape(name) + r"['\"]?[ ]*[:= ][ ]*['\"]?([\d.:]+)")
        found = [clock(match[1]) or 0.0 for text in self.texts if (match := pattern.search(text))]
        return all(before <= after for before, after in pairwise(found)) and (len(found) < 2 or found[0] < found[-1])

    @property
    def score(self) -> int:
        """How much is understood."""
        fields, unknown = self.guessed
        named = 4 * len(fields.keys() - {self.step}) + len(set(unknown))
        return named + ("{total}" in self.line.line) - self.line.anywhere - self.line.whole

    @property
    def sample(self) -> str:
        """The last such line, with those below it."""
        return "\n".join((self.texts[-1], *self.below))


def tried(name: str, proposal: Proposal) -> dict[str, object]:
    """What the sample gives when it is read so; nothing where that is no dialect, or not every line is read."""
    memo = memo_of(_dialect(name, proposal), proposal.line)
    if memo is None:
        return {}
    gives: dict[str, object] = {}
    for text in (*(() if proposal.below else proposal.texts[-3:-1]), proposal.sample):
        events = [to_fields(entry.event) for entry in read(Sample(line=text), memo)]
        steps = [event for event in events if event["event"] == "iteration"]
        if len(steps) != 1:
            return {}
        gives = {key: steps[0][key] for key in _SHOWN if steps[0].get(key) is not None}
    return gives


def written(
    name: str, proposal: Proposal, gives: dict[str, object], texts: Iterable[str], anew: Proposal | None = None
) -> str:
    """Its file. `texts`: all lines of the log, of which some tell of saves, evaluations and the end; `anew`: steps of
    epochs that another line tells, which are its progress.
    """
    inner = None if anew is None else (anew.line.line, anew.line.anywhere, anew.texts[-1])
    beside, unplaced = others(_dialect(name, proposal), texts, inner)
    lines = [*_lines(name, proposal, gives, _known(proposal.sample), beside)]
    for other in beside:
        lines += [f"  - line: {_quoted(other.sample)}", f"    gives: {{event: {other.event}}}"]
    if unplaced:
        lines += ["# Not placed (a save, an evaluation, an end, settings? `means` has the words):"]
        lines += [f"#   {shape}" for shape in unplaced]
    return "\n".join(lines) + "\n"


def _dialect(name: str, proposal: Proposal) -> Dialect:
    return Dialect(
        name=name,
        prefixes=(proposal.prefix,) if proposal.prefix else (),
        fields=proposal.guessed[0],
        lines=(proposal.line,),
        samples=(Sample(line=proposal.sample),),
    )


def is_read(sample: str) -> bool:
    """Whether the monitor takes anything from it as it is."""
    return any(type(one.event) is not StepGuessed for one in _as_it_is(sample))


def _known(sample: str) -> str:
    """The dialect that reads the sample as it is."""
    rules = (one.rule for one in _as_it_is(sample) if isinstance(one.event, IterationLogged))
    return next((rule.partition(".")[0] for rule in rules), "")


def _as_it_is(sample: str) -> list[LogEvent]:
    return SourceReader().feed(sample.encode() + b"\n.\n")


def _lines(
    name: str, proposal: Proposal, gives: dict[str, object], known: str, beside: Sequence[Other]
) -> Iterator[str]:
    yield from _head(proposal, known)
    yield f"name: {name}"
    yield 'about: "what prints these lines"'
    if proposal.prefix:
        yield f"prefixes: [{_quoted(proposal.prefix)}]"
    yield from _fields(proposal)
    line = proposal.line
    yield "lines:"
    yield "  - means: step"
    yield f"    line: {_quoted(line.line)}"
    keys = {
        "anywhere": "true" if line.anywhere else "",
        "whole": "true" if line.whole else "",
        "form": line.form if line.form != "pairs" else "",
        "indent": json.dumps(line.indent) if line.form == "block" else "",
        "separator": json.dumps(line.separator) if line.form != "json" else "",
        "assign": _quoted(line.assign) if line.form != "json" else "",
        "needs": f"[{', '.join(map(_quoted, line.needs))}]",
        "given": f"{{epoch_steps: {line.given['epoch_steps']}}}" if line.given else "",
    }
    yield from (f"    {key}: {value}" for key, value in keys.items() if value not in ("", "[]"))
    for other in beside:
        more = "".join(f", {key}: true" for key in ("anywhere", "prefixed") if getattr(other.spec, key))
        yield f"  - {{means: {other.spec.means}, line: {_quoted(other.spec.line)}{more}}}"
    yield "samples:"
    yield f"  - line: {_quoted(proposal.sample)}"
    yield f"    gives: {{{', '.join(f'{key}: {_plain(value)}' for key, value in gives.items())}}}"


def _head(proposal: Proposal, known: str) -> Iterator[str]:
    """What its author should know and decide."""
    yield "# Proposed from a log: correct it, then check it (`dialects:` in the configuration, check-config)."
    yield "# Targets, units and how steps are counted: docs/dialects.md. The sample gives what this file reads in it."
    count = proposal.count
    yield f"# The step is {count.why}."
    if count.length is not None:
        yield "# It begins anew with each epoch, and no line says how many steps one has: `given` has the greatest that"
        yield "# was seen, and one report more. What is the true number?"
    if count.anew:
        yield "# It begins anew: is it the step of an epoch? Then name it {epoch_step}, with {epoch} and {epoch_steps}"
        yield "# where they are printed. If only a new launch begins anew it is right as it stands."
    if known in {dialect.name for dialect in built_in()}:
        yield f"# {known} reads these lines already: a dialect of that name takes its place."
    elif known:
        yield "# The monitor reads these lines already: a dialect is needed only for what it does not take from them."


def _fields(proposal: Proposal) -> Iterator[str]:
    fields, unknown = proposal.guessed
    if fields:
        yield "fields:"
        yield from (f"  {_quoted(theirs)}: {ours}" for theirs, ours in fields.items())
    if unknown:
        more = f" and {len(unknown) - _MOST_UNKNOWN} more" if len(unknown) > _MOST_UNKNOWN else ""
        yield f"  # kept, and no more: {', '.join(unknown[:_MOST_UNKNOWN])}{more}"


def _plain(value: object) -> str:
    if isinstance(value, float):
        text = f"{value:.9g}"  # `1e-05` is text to YAML, `1.0e-05` is none
        return text if "." in text or "e" not in text else text.replace("e", ".0e")
    return _quoted(value) if isinstance(value, str) else repr(value)


def _quoted(text: str) -> str:
    """Between single quotes; between double ones where a character can only stand escaped."""
    return yaml.dump(text, default_style='"' if "\n" in text else "'", width=inf, allow_unicode=True).rstrip("\n")

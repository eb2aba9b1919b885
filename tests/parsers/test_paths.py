"""Every fast path gives what a naive reader gives: one that looks at each line and asks each rule."""

import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_monitor.parsers.engine.memo import Memo
from megatron_monitor.parsers.engine.prefixes import segments, strip_prefixes
from megatron_monitor.parsers.engine.scan import Gatherer, Line, Rule
from megatron_monitor.parsers.events import ANSI, Event, LogEvent
from megatron_monitor.parsers.inferred import InferredSteps
from megatron_monitor.parsers.reader import SourceReader
from megatron_monitor.parsers.registry import CLOCK_RULES, RULES
from tests import test_formats
from tests.conftest import examples
from tests.parsers.iteration_lines import FORMS as ITERATIONS

Found = list[tuple[int, str, str]]
"""(line, rule, the event written out: 1 is not 1.0 there, and NaN is NaN)"""


def naive(data: bytes) -> Found:
    """No blocks, no search, no spans."""
    found: list[LogEvent] = []
    open_gatherers: list[tuple[str, Gatherer]] = []
    data = data.replace(b"\0", b"")
    for number, physical in enumerate(data.split(b"\n"), 1):
        for raw in re.sub(rb"\r\Z", b"", physical).split(b"\r"):
            text = ANSI.sub("", raw.decode("utf-8", "replace"))
            for segment in segments(text):
                prefix, rest = strip_prefixes(segment)
                said = _said(Line(rest, prefix), raw, open_gatherers)
                found += [LogEvent(number, name, event, segment) for name, event in said]
    unfinished = bool(data) and not data.endswith((b"\n", b"\r"))
    number = data.count(b"\n") + 1 + unfinished  # what the end of the source gives stands behind its last line
    for name, gatherer in open_gatherers:
        found += [LogEvent(number, name, event, "") for event in gatherer.close()]
    return [(entry.line, entry.rule, repr(entry.event)) for entry in InferredSteps().read(found)]


def _said(line: Line, raw: bytes, gatherers: list[tuple[str, Gatherer]]) -> list[tuple[str, Event]]:
    said: list[tuple[str, Event]] = []
    for name, gatherer in list(gatherers):
        events, duration, done = gatherer.offer(line)
        said += [(name, event) for event in events]
        if done:
            gatherers.remove((name, gatherer))
        if duration:
            return said
    for rule in RULES:
        if any(anchor in raw for anchor in rule.anchors):
            items = list(rule.items(line))
            for item in items:
                if isinstance(item, Event):
                    said.append((rule.name, item))
                else:
                    gatherers.append((rule.name, item))
            if items:
                break
    return said


def read(data: bytes, memo: Memo, size: int = 1 << 20) -> Found:
    """The program's own reader."""
    reader = SourceReader(memo=memo)
    entries = [entry for place in range(0, len(data), size) for entry in reader.feed(data[place : place + size])]
    return [(entry.line, entry.rule, repr(entry.event)) for entry in [*entries, *reader.flush()]]


# `#` is a digit to be drawn.
PLANNED = [re.sub(r"(?<![A-Za-z_])\d", "#", form["text"]) for form in ITERATIONS.values() if form["text"].isprintable()]
LOGGER = "[2023-10-19 23:07:4#,###] [INFO] [logging.py:96:log_dist] [Rank #] "
REPORTS = [
    "#:     forward-backward ...............................: (###.##, ####.#)",
    "[default#]:time (ms) | forward-compute: ###.## | optimizer: #.## | odd name/x.y: #",
    f"{LOGGER}rank=0 time (ms) | forward: #.## | backward: #.## | step: 1#.##",
    "steps: # loss: #.## iter time (s): #.### samples/sec: ##.#",
    "steps: # loss: #.## lm loss: #.## aux loss: #.##e-0# iter time (s): #.### samples/sec: ##.#",
    f"{LOGGER}step=##, skipped=#, lr=[#.#e-05, #.#e-05], mom=[0.9]",
    f"{LOGGER}step=##, skipped=#, lr=[0.000#################, 0.00#], mom=[(0.9, 0.95)]",
    f"{LOGGER}epoch=#/micro_step=##/global_step=##, RunningAvgSamplesPerSec=##.###, CurrSamplesPerSec=##.#, "
    "MemAllocated=#.##GB, MaxMemAllocated=##.#GB",
    f"{LOGGER}#/##, SamplesPerSec=##.####",
    "[Rank #] (after ## iterations) memory (MB) | allocated: ###.## | max allocated: ####.# | reserved: ###.# | max "
    "reserved: ####.###",
]
"""Lines of other events that are read by spans: between iteration lines some come in thousands."""
FORMS = [
    *PLANNED,
    *REPORTS,
    "worker-#:  iteration   #/  ### | consumed tokens:    ###### | elapsed time per iteration (ms): ########.### | "
    "curriculum seqlen:  ### | actual seqlen:  ### | TFLOPs: #.## | odd: #### | note: a#b | MFU: ##.#% | HFU: #.# |",
    " iteration  ##/ ### | mtp_# loss: #.#E+00 | z_loss: #E-0# | lm loss: #.# |",
    "oom#: iteration   #/  ### | lm loss: #.# | tokens/s/gpu inst/harmonic mean: ####.#/####.# | n: 0## |",
    "[default#]: iteration   #/  ### | lm loss: #.# | iteration time: #.### s samples/sec: #.# | lm loss: #.# |",
    " iteration   #/  ### | lm loss: nan | consumed samples: ####################### | grad norm: -#.# | x: #e#### |",
    " iteration   #/  ### | lm loss: #.#E+0# | elapsed time per iteration (s): #.# | loss scale: 0# | lm l",
    "     optimizer .....................................: (nan, ###.#)",
    "time (ms) | forward-compute: ########.## | mtp_#: #.## | optimizer: #.##",
    "[Rank #] (after ## iterations) memory (MB) | allocated: ###.#[Rank #] (after # iterations) memory (MB)",
    "steps: # loss: nan iter time (s): #.### samples/sec: ##.# steps: # loss: # iter time (s): # samples/sec: ##.#",
    "[2023-10-19 23:07:4#,###] [INFO] [logging.py:96:log_dist] [Rank -1] step=##, skipped=#, lr=[], mom=[0.9]",
    "node0#:4####:4#### [#] NCCL INFO Channel ##/# : #[#] -> #[#] via NET/IB/#",
    "------------------------ arguments ------------------------",
    "  num_layers ...................................... ##",
    "-------------------- end of arguments ---------------------",
    "Traceback (most recent call last):",
    '  File "x.py", line ##, in main',
    "RuntimeError: CUDA out of memory. Tried to allocate #.## GiB",
    "saving checkpoint at iteration    #### to /data/run#",
    " ##%|###   | #/10 [00:0#<00:0#,  #.##s/it]",
    "| 000# | 0 Signal #5 (SIGTERM)",
    "",
]


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Few forms, many lines: the first line of a shape tells how the others are read."""
    forms = draw(st.lists(st.sampled_from(FORMS), min_size=1, max_size=6))
    chance = draw(st.randoms(use_true_random=False))
    ends = draw(st.sampled_from(["\n", "\n", "\r\n", "\r"]))
    lines = []
    for _ in range(draw(st.integers(1, 30))):
        form = chance.choice(forms)
        line = re.sub("#", lambda _: chance.choice("0123456789"), form)
        if chance.random() < 0.1:
            line = line[: chance.randrange(len(line) + 1)]
        if chance.random() < 0.05:
            line += chance.choice(["\x1b[0m", "é", "\0", "\r", " [default3]: iteration 5/ 10 | lm loss: 1.0 |"])
        lines.append(line + (ends if chance.random() < 0.9 else "\n"))
    return "".join(lines).encode() + draw(st.binary(max_size=8))


@given(data=logs(), size=st.sampled_from([7, 300, 1 << 20]))
@examples(75)
def test_every_path_gives_what_looking_at_every_line_gives(data: bytes, size: int) -> None:
    """Whatever finds the lines and whatever reads them, the events are the same, also with shapes kept."""
    check_paths(data, size)


def check_paths(data: bytes, size: int) -> None:
    """The law itself."""
    expected, memo = naive(data), Memo(RULES)
    for _ in range(3):
        assert read(data, memo) == expected
    assert read(data, memo, size) == expected


@given(data=logs(), chance=st.randoms(use_true_random=False))
@examples(100)
def test_lines_that_come_one_by_one_give_the_same(data: bytes, chance: random.Random) -> None:
    """As a live run writes them: each alone, some with others, some in parts. So is what a resume needs."""
    check_one_by_one(data, chance)


def check_one_by_one(data: bytes, chance: random.Random) -> None:
    """The law itself, as above."""
    expected, memo = naive(data), Memo(RULES)
    for held_back in (0.1, 0.7):
        single, whole = (SourceReader(memo=memo) for _ in range(2))
        held, entries = b"", []
        for piece in re.split(rb"(?<=\n)", data):
            held += piece
            if chance.random() < held_back:
                continue
            cut = chance.randrange(len(held) + 1) if chance.random() < 0.1 else len(held)
            entries += single.feed(held[:cut])
            held = held[cut:]
        entries += single.feed(held)
        said = whole.feed(data)
        assert [entry.text for entry in entries] == [entry.text for entry in said]
        assert single.save() == whole.save()
        entries += single.flush()
        assert [(entry.line, entry.rule, repr(entry.event)) for entry in entries] == expected


@pytest.mark.parametrize("form", [*PLANNED, *REPORTS])
def test_spans_are_used(form: str) -> None:
    """Lines of one shape are read by their spans from the second on: else the law above would prove nothing."""
    lines = [form.replace("#", digit).encode() for digit in "123456789"]
    asked: list[str] = []
    rules = [Rule(rule.name, rule.anchors, _noting(rule, asked), rule.by_digits) for rule in RULES]
    memo = Memo(rules)
    reader = SourceReader(memo=memo)
    for line in lines[:1]:
        assert reader.feed(line + b"\n")
    asked.clear()
    found = [entry for line in lines[1:] for entry in reader.feed(line + b"\n")]
    assert len(found) == len(lines) - 1
    assert asked == []


def _noting(rule: Rule, asked: list[str]) -> Callable[[Line], list[Any]]:
    def reading(line: Line) -> list[Any]:
        asked.append(rule.name)
        return list(rule.read(line))

    return reading


@pytest.mark.parametrize("width", [15, 16, 18, 19, 23])
def test_numbers_that_are_too_wide_are_none(width: int) -> None:
    """A counter beyond 64 bits is absent, by its span as by its rule."""
    line = " iteration   10/  500 | consumed samples: {} | lm loss: 2.5E+00 |\n"
    data = "".join(line.format(digit * n) for n in (3, 4, 5, 6, 7, width) for digit in "123").encode()
    assert read(data, Memo(RULES)) == naive(data)


SAMPLES = [
    *(form.replace("#", "7") for form in FORMS),
    *(line for line in test_formats.SAMPLES if "\n" not in line),
]
"""A line of every kind that is known."""


def test_what_a_shape_says_depends_on_no_digit() -> None:
    """What was learned of a line gives what the rules give for other digits in its place. So a rule that decides by a
    number is `by_digits`, and each span is the one that its value was read from. Digits of a name stay: `bf16_mfu`.
    """
    chance, memo = random.Random(1), Memo(CLOCK_RULES)
    for sample in SAMPLES:
        raw = sample.encode()
        SourceReader(memo=memo).feed(raw + b"\n")
        for _ in range(4):
            other = re.sub(rb"(?<![A-Za-z_\d])\d+", lambda match: _digits(chance, len(match[0])), raw) + b"\n"
            learned, read_anew = (SourceReader(memo=one).feed(other) for one in (memo, Memo(CLOCK_RULES)))
            assert list(map(repr, learned)) == list(map(repr, read_anew))


DICTS = [
    "{'loss': 1.921, 'grad_norm': 7.5, 'learning_rate': 4e-08, 'epoch': 0.02, 'memory(GiB)': 64.5, 'odd_7': 3.25}",
    "{'loss': '1.921', 'global_step/max_steps': '17/2353', 'epoch': '0.5', 'train_speed(s/it)': '5.509'}",
    "Train:  25%|##        | 2/8 [03:45<11:17, 112.97s/it]",
    "Train:  25%|##        | 2/8 [1:03:45<11:17, 112.97it/s]",
]


@pytest.mark.parametrize("sample", DICTS)
def test_what_a_shape_says_of_numbers_of_other_widths(sample: str) -> None:
    """What was learned of a line reads those that differ in the widths of their numbers as the rules do."""
    chance, memo = random.Random(1), Memo(CLOCK_RULES)
    SourceReader(memo=memo).feed(sample.encode() + b"\n")
    for _ in range(100):
        widths = re.sub(rb"(?<![A-Za-z_\d])\d+", lambda _: _digits(chance, chance.randrange(1, 4)), sample.encode())
        learned, read_anew = (SourceReader(memo=one).feed(widths + b"\n") for one in (memo, Memo(CLOCK_RULES)))
        assert list(map(repr, learned)) == list(map(repr, read_anew))


def _digits(chance: random.Random, count: int) -> bytes:
    return bytes(chance.choice(b"123456789") for _ in range(count))

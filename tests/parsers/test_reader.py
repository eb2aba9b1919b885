"""A source's reader: chunking, resuming, numbering, never raising."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_monitor.parsers.declared.schema import built_in
from megatron_monitor.parsers.engine.fields import milliseconds_range
from megatron_monitor.parsers.engine.memo import Memo
from megatron_monitor.parsers.engine.scan import Line, Rule
from megatron_monitor.parsers.engine.spans import Spanned
from megatron_monitor.parsers.events import (
    ArgumentsDumped,
    Event,
    IterationLogged,
    LineDiscarded,
    LogEvent,
    MilestoneReached,
    TimersReported,
    TracebackSeen,
)
from megatron_monitor.parsers.reader import Bookmark, SourceReader

LOG = (
    b"+ export CUDA_LAUNCH_BLOCKING=1\n"
    b"------------------------ arguments ------------------------\n"
    b"  num_layers ...................................... 24\n"
    b"WARNING: another rank speaks\n"
    b"  hidden_size ..................................... 2048\n"
    b"-------------------- end of arguments ---------------------\r\n"
    b"\x1b[92m[OKAY]\x1b[0m\n"
    b" iteration        1/     100 | elapsed time per iteration (ms): 250.0 | lm loss: 1.0E+01 | loss scale: 1.0 |\n"
    b"Traceback (most recent call last):\n"
    b'  File "pretrain.py", line 3, in <module>\n'
    b"ValueError: caught\n"
    b"\r 10%|#         | 1/10 [00:01<00:09,  1.00s/it]\r{'loss': 2.5, 'learning_rate': 1e-05, 'epoch': 0.1}\n"
    b" iteration        2/     100 | elapsed time per iteration (ms): 251.0 | lm loss: 9.9E+00 | loss scale: 1.0 |\n"
    b"steps: 3 loss: 9.8 iter time (s): 0.250 samples/sec: 32.0\n"
)
fragments = st.sampled_from(
    [
        *LOG.splitlines(keepends=True),
        b" iteration 5/ 10 |",
        b"iteration 5/10 | : | lm loss: nan | grad norm: inf | | |\n",
        b"[default3]: [2026-04-15 11:25:00.541769] ",
        b"9: ",
        b"{'loss': '",
        b"\xff\xfe\0\0",
        b"memory (MB) | allocated: 1e999",
        b"[Rank 5] (after 20 iterations) memory (MB) | allocated: 5.5 | reserved: ",
        b"Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE",
        b"Root Cause (first observed failure):\n[0]:\n  exitcode  : 99999999999 (pid: 1)\n  traceback : x\n",
        b"step=99999999999999999999999, skipped=1, lr=[nan]",
        b"\r",
        b"\n",
    ]
)
hostile = st.lists(st.one_of(fragments, st.binary(max_size=30)), max_size=25).map(b"".join)


def read(chunks: list[bytes]) -> list[LogEvent]:
    """The events of a source that ends after the last chunk."""
    reader = SourceReader()
    return [*(entry for chunk in chunks for entry in reader.feed(chunk)), *reader.flush()]


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    """The data in pieces."""
    bounds = [0, *sorted(min(point, len(data)) for point in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(bounds)]


def test_the_sample_gives_its_events() -> None:
    """The kinds and physical lines of a log with several-line facts, colours and carriage returns."""
    assert [(entry.line, entry.event.kind) for entry in read([LOG])] == [
        (1, "environment"),
        (6, "arguments"),
        (8, "iteration"),
        (11, "traceback"),
        (12, "trainer_progress"),
        (12, "trainer_log"),
        (13, "iteration"),
        (14, "engine_step"),
    ]


@given(st.one_of(hostile, st.just(LOG)), st.lists(st.integers(0, 2000), max_size=6))
def test_any_bytes_give_events_and_never_raise(data: bytes, cuts: list[int]) -> None:
    """Whatever the bytes and the cuts: no exception, and the same events."""
    assert repr(read(cut(data, cuts))) == repr(read([data]))  # repr: nan is not equal to itself


@given(st.one_of(hostile, st.just(LOG)), st.integers(0, 2000))
def test_a_resume_goes_on_where_it_was(data: bytes, point: int) -> None:
    """Saved at any cut, written as JSON, restored, fed from the saved offset: nothing lost, nothing doubled."""
    first = SourceReader()
    events = first.feed(data[:point])
    saved = msgspec.json.decode(msgspec.json.encode(first.save()), type=Bookmark)
    second = SourceReader()
    second.restore(saved)
    events += second.feed(data[saved.offset :]) + second.flush()
    assert repr(events) == repr(read([data]))


def test_a_block_goes_on_after_a_resume() -> None:
    """Every sample of several lines, saved behind each of its lines: the events are those of one reading."""
    texts = [sample.line.encode() for form in built_in() for sample in form.samples if "\n" in sample.line.strip()]
    assert len(texts) > 10
    for text in texts:
        lines = [*text.splitlines(keepends=True), b"\n", b"another line\n"]
        for place in range(1, len(lines)):
            first, second = SourceReader(), SourceReader()
            events = first.feed(b"".join(lines[:place]))
            saved = msgspec.json.decode(msgspec.json.encode(first.save()), type=Bookmark)
            second.restore(saved)
            events += second.feed(b"".join(lines)[saved.offset :]) + second.flush()
            assert repr(events) == repr(read(lines)), text


def test_only_lines_with_an_anchor_are_decoded() -> None:
    """Noise gives nothing and is counted."""
    reader = SourceReader()
    assert reader.feed(b"NCCL INFO something\n" * 1000) == []
    assert (reader.lines, reader.matched_lines) == (1000, 0)


def test_over_long_lines_are_told_once() -> None:
    """A line above the bound is an event, and the next line is read."""
    reader = SourceReader(max_line_bytes=100)  # the iteration line below is longer, too
    events = reader.feed(b"x" * 1000 + b"\n") + reader.feed(LOG.splitlines(keepends=True)[7])
    assert [type(entry.event) for entry in events] == [LineDiscarded, LineDiscarded]
    assert reader.feed(b"\nsteps: 3 loss: 9.8 iter time (s): 0.250 samples/sec: 32.0\n")[-1].event.kind == "engine_step"


def test_interleaved_tracebacks_each_give_one_event() -> None:
    """Two ranks' tracebacks mixed line by line are two."""
    log = (
        b'Traceback (most recent call last):\nTraceback (most recent call last):\n  File "a.py", line 1, in x\n'
        b"  File \"a.py\", line 1, in x\nValueError: one\nKeyError: 'two'\nRuntimeError: not in a traceback\n"
    )
    found = [entry.event for entry in read([log]) if isinstance(entry.event, TracebackSeen)]
    assert [(event.exception, event.message) for event in found] == [("ValueError", "one"), ("KeyError", "'two'")]


def test_an_unfinished_dump_is_not_complete() -> None:
    """A log that ends inside the arguments gives what was there."""
    (entry,) = read([b"---------- arguments ----------\n  num_layers .... 24\n"])
    assert isinstance(entry.event, ArgumentsDumped)
    assert (entry.event.values, entry.event.complete) == ({"num_layers": "24"}, False)


@given(hostile, st.lists(st.integers(0, 2000), max_size=6))
def test_line_numbers_are_those_of_an_editor(data: bytes, cuts: list[int]) -> None:
    """A line stands at its physical number whatever the noise before it, and the counts do not depend on the cuts."""
    data += b"\n"
    known = b" iteration 77/ 99 | lm loss: 7.7E+00 |"
    log = data + known + b"\n" + data + known + b"\n"
    expected = [number for number, line in enumerate(log.split(b"\n"), 1) if line == known]
    found = [
        entry.line
        for entry in read(cut(log, cuts))
        if isinstance(entry.event, IterationLogged) and entry.event.iteration == 77
    ]
    assert found == expected
    counts = []
    for chunks in ([log], cut(log, cuts)):
        reader = SourceReader()
        for chunk in chunks:
            reader.feed(chunk)
        counts.append((reader.lines, reader.matched_lines, reader.consumed_bytes))
    assert counts[0] == counts[1]
    assert counts[0][0] == log.count(b"\n")


def test_resume_between_return_and_newline() -> None:
    r"""A save between `\r` and `\n` neither adds a line nor loses its number."""
    line = LOG.splitlines(keepends=True)[7].rstrip(b"\n") + b"\r\n"
    first = SourceReader()
    assert [entry.line for entry in first.feed(line[:-1])] == [1]
    second = SourceReader()
    second.restore(msgspec.json.decode(msgspec.json.encode(first.save()), type=Bookmark))
    assert [entry.line for entry in second.feed(b"\n" + line)] == [2]
    assert (second.lines, second.matched_lines) == (2, 2)


def test_a_saved_fact_of_another_version_is_let_go() -> None:
    """A gatherer that is gone or has other fields now does not stop the resume."""
    saved = SourceReader().save()
    reader = SourceReader()
    reader.feed(b"---------- arguments ----------\n  num_layers .... 24\n")
    ((name, fields),) = reader.save().open
    for open_facts in ([("gone", {})], [(name, {**fields, "gone": 1})]):
        again = SourceReader()
        again.restore(msgspec.structs.replace(saved, open=open_facts))
        assert again.flush() == []


def test_skipped_bytes_count() -> None:
    """A hole that nobody reads moves the offset, and a resume starts before the line that it stands in."""
    reader = SourceReader()
    reader.feed(b"one\n")
    reader.skip(100)
    assert reader.consumed_bytes == 104
    reader.feed(b"two")
    reader.skip(10)
    assert reader.consumed_bytes == 104
    reader.feed(b"\n")
    assert reader.consumed_bytes == 118


def test_of_the_events_of_a_line_the_needed_ones_are_returned() -> None:
    """From the first line and from those that are read by spans."""

    def read(line: Line) -> list[Spanned]:
        time = line.span((6, len(line.text)), milliseconds_range)
        timers = Spanned(TimersReported, {"speaker": "megatron", "timers": {"all": time}})
        return [timers, Spanned(MilestoneReached, {"milestone": "launched"})]

    memo = Memo((Rule("times", (b"times",), read),), lambda event: isinstance(event, TimersReported))
    found = [entry.event for entry in SourceReader(memo=memo).feed(b"times 1.5\ntimes 2.5\ntimes 3.5\n")]
    assert found == [
        TimersReported(speaker="megatron", timers={"all": (time, time)}) for time in (0.0015, 0.0025, 0.0035)
    ]


def test_noise_is_noise_for_the_rest_of_its_block() -> None:
    """Of a block of lines of one shape in which a rule finds nothing, one is read."""
    asked: list[str] = []

    def read(line: Line) -> list[Event]:
        asked.append(line.text)
        return []

    reader = SourceReader(memo=Memo((Rule("none", (b"frame",), read),)))
    assert reader.feed(b"".join(b"frame %d kept\n" % number for number in range(100, 900))) == []
    assert len(asked) == 1


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16", "utf-8-sig"])
def test_a_log_in_utf_16_is_read(encoding: str) -> None:
    """PowerShell redirects into such files. The first line is read too, after the byte order mark."""
    text = " iteration 1/ 10 | lm loss: 2.5 |\n iteration 2/ 10 | lm loss: 2.4 |\n"
    reported = SourceReader().feed(text.encode(encoding))
    assert [getattr(entry.event, "iteration", None) for entry in reported] == [1, 2]

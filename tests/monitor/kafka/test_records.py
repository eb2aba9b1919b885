"""What agents write to a topic, as streams of dated lines."""

import json
import tracemalloc

import pytest

from megatron_monitor.kafka.records import headers_of, push_of
from megatron_monitor.receiver.wire import TooLargeError, WireError
from tests.kafka_broker import loki

AT = 1_800_000_000_123_000_000  # when the record was written, Unix nanoseconds
TEN = 1_800_000_010_000_000_000

FLUENT_BIT = {
    "@timestamp": TEN / 1e9, "log": " iteration 1/ 10 |\n", "stream": "stdout",
    "kubernetes": {"pod_name": "gpt-0", "labels": {"jobset.sigs.k8s.io/jobset-name": "gpt"}},
}  # fmt: skip
VECTOR = {"timestamp": "2027-01-15T08:00:10Z", "message": "text", "run": "gpt", "file": "/x", "depth": {"a": 1}}
OTLP = {
    "resourceLogs": [
        {
            "resource": {"attributes": [{"key": "run", "value": {"stringValue": "gpt"}}]},
            "scopeLogs": [{"logRecords": [{"timeUnixNano": str(TEN), "body": {"stringValue": "text"}}]}],
        }
    ]
}


@pytest.mark.parametrize(
    ("value", "labels", "lines"),
    [
        (b" iteration 1/ 10 |\n", {"host": "n7"}, [(AT, b" iteration 1/ 10 |")]),
        (b"{ no JSON", {"host": "n7"}, [(AT, b"{ no JSON")]),
        (b'{"loss": 1.0}', {"host": "n7"}, [(AT, b'{"loss": 1.0}')]),
        (b"\ntext", {"host": "n7"}, [(AT, b"\ntext")]),
        (loki({"run": "gpt"}, [(TEN, "a"), (0, "b")]), {"host": "n7", "run": "gpt"}, [(TEN, b"a"), (TEN + 1, b"b")]),
        (
            FLUENT_BIT,
            {"host": "n7", "stream": "stdout", "pod_name": "gpt-0", "jobset.sigs.k8s.io/jobset-name": "gpt"},
            [(TEN, b" iteration 1/ 10 |")],
        ),
        (
            VECTOR | {"timestamp": "9999-12-31T23:59:59-23:00"},
            {"host": "n7", "run": "gpt", "file": "/x", "depth_a": "1"},
            [(AT, b"text")],
        ),
        (VECTOR, {"host": "n7", "run": "gpt", "file": "/x", "depth_a": "1"}, [(TEN, b"text")]),
        (OTLP, {"host": "n7", "run": "gpt"}, [(TEN, b"text")]),
        (b"", {"host": "n7"}, [(AT, b"")]),
    ],
    ids=["text", "half", "a line of JSON", "an empty line", "Loki", "Fluent Bit", "no time", "Vector", "OTLP", "empty"],
)  # fmt: skip
def test_what_is_read(value: bytes | dict[str, object], labels: dict[str, str], lines: list[tuple[int, bytes]]) -> None:
    """Headers are labels; a line that nobody dates is as old as its record, and comes after those before it."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    (stream,) = push_of(body, {"host": "n7"}, AT).streams
    assert (stream.labels, stream.entries) == (labels, lines)


def test_a_record_of_long_names() -> None:
    """Each of its labels would have the name of all fields around it: 500 kB of text would be 25 GB."""
    inner = {str(number): {"x": {"y" * 300: "v"}} for number in range(200)}
    body = json.dumps({"log": "a", "n" * 500_000: inner}).encode()
    tracemalloc.start()
    (stream,) = push_of(body, {}, AT).streams
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(stream.labels), max(map(len, stream.labels)), peak < 10 << 20) == (1, 256, True)
    (stream,) = push_of(json.dumps({"log": "a", "n": inner}).encode(), {}, AT).streams
    assert (len(stream.labels), max(map(len, stream.labels))) == (64, 256)


def test_a_record_of_too_many_lines() -> None:
    """A megabyte of line ends would take 250 MB."""
    with pytest.raises(TooLargeError, match="150000 lines"):
        push_of(b"a" + b"\n" * 200_000 + b"a", {}, AT)


def test_what_is_no_text() -> None:
    """Avro, as the schema registry has it."""
    with pytest.raises(WireError, match="neither text nor OTLP"):
        push_of(b"\0\0\0\0\7rest", {}, AT)


class Message:
    """As of confluent_kafka."""

    def __init__(self, found: object) -> None:
        self.found = found

    def headers(self) -> object:
        """It raises SystemError if a name is not UTF-8."""
        if self.found is SystemError:
            raise SystemError("returned a result with an exception set")
        return self.found


@pytest.mark.parametrize(
    ("found", "labels"),
    [
        (None, {}),
        ([("run", b"gpt"), ("pod", None)], {"run": "gpt", "pod": ""}),
        ([("a", b"\xff")], {"a": "�"}),
        ([(str(number), b"") for number in range(50_000)], {str(number): "" for number in range(64)}),
        (SystemError, {}),
    ],
)
def test_headers_that_are_no_text_end_no_member(found: object, labels: dict[str, str]) -> None:
    """They are left out; so is a value that is absent. Python's own code does not call: in that of 3.11 the error is a
    crash of the interpreter.
    """
    assert headers_of(Message(found)) == labels
    assert "headers" not in headers_of.__code__.co_names

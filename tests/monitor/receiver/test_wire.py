"""What senders pack is what is read: snappy, gzip, Loki's push and OTLP, each in both of its forms; bombs are none."""

import contextlib
import gzip
import json
import time
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from megatron_monitor.parsers.events import IterationLogged
from megatron_monitor.parsers.reader import SourceReader
from megatron_monitor.receiver.messages import Push, loki_json, loki_protobuf, otlp_json, otlp_protobuf
from megatron_monitor.receiver.spool import lines_of
from megatron_monitor.receiver.wire import TooLargeError, WireError, decode_protobuf, unpack, unpack_snappy
from tests.lines import line
from tests.monitor.receiver.senders import message, otlp_push, push_request

MOST = 1 << 20
NS = 1_777_000_000_123_456_789
LINES = b"iteration 1/100\niteration 2/100\niteration 3/100\n"
LABELS = {"job": 'a "quoted" \\ job', "pod": "gpt-0"}


def read(push: Push) -> list[tuple[dict[str, str], list[tuple[int, bytes]]]]:
    """Its streams."""
    return [(stream.labels, stream.entries) for stream in push.streams]


@pytest.mark.parametrize(
    ("packed", "text"),
    [
        # recorded from snappy (cramjam 2.14): a literal, a copy that reaches into itself, copies of lines
        ("0308616263", b"abc"),
        ("460061fe01000501", b"a" * 70),
        ("303c697465726174696f6e20312f3130300a191000323a100014332f3130300a", LINES),
        ("00", b""),
        ("030861620000", None),
        ("0a006112ff", None),
    ],
)
def test_snappy(packed: str, text: bytes | None) -> None:
    """What the library that senders use has packed; what is damaged is refused."""
    if text is None:
        with pytest.raises(WireError):
            unpack_snappy(bytes.fromhex(packed), MOST)
    else:
        assert unpack_snappy(bytes.fromhex(packed), MOST) == text


def test_a_line_that_is_no_text_is_taken_as_it_can_be_read() -> None:
    """Else its agent would send it again and again, and all that waits behind it."""
    push = loki_json(b'{"streams": [{"stream": {"job": "a"}, "values": [["1", "step \x80 7"]]}]}')
    assert read(push) == [({"job": "a"}, [(1, "step \ufffd 7".encode())])]


@given(st.binary(max_size=400))
@example(b'"\x80"')
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """No body raises anything else than what the door answers by 400 or 413."""
    for read_body in (loki_json, loki_protobuf, otlp_json, otlp_protobuf, lambda body: unpack_snappy(body, MOST)):
        with contextlib.suppress(WireError, TooLargeError):
            read_body(data)


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_bombs(pack: object) -> None:
    """A body that grows beyond the limit is cut off there; one that is cut, or of another form, is refused."""
    packed = pack(b"x" * MOST)  # type: ignore[operator]
    assert unpack(packed, "gzip", MOST) == b"x" * MOST
    bomb = pack(b"x" * 32 * MOST)  # type: ignore[operator]
    tracemalloc.start()
    with pytest.raises(TooLargeError):
        unpack(bomb, "gzip", MOST - 1)
    assert tracemalloc.get_traced_memory()[1] < 4 * MOST
    tracemalloc.stop()
    assert unpack(pack(b"a") + pack(b"") + pack(b"b"), "gzip", MOST) == b"ab"  # type: ignore[operator]
    for many, size in (([pack(b"a" * MOST), pack(b"b")], MOST), ([pack(b"")] * 101, MOST)):  # type: ignore[operator]
        with pytest.raises(TooLargeError):
            unpack(b"".join(many), "gzip", size)
    for body, encoding in ((packed[:-1], "gzip"), (packed + b"x", "gzip"), (b"nothing", "gzip"), (b"x", "br")):
        with pytest.raises(WireError):
            unpack(body, encoding, MOST)
    with pytest.raises(TooLargeError):  # it says how large it is
        unpack_snappy(bytes([128, 128, 128, 128, 1, 0, 0]), MOST)
    with pytest.raises(WireError):  # and is not
        unpack_snappy(bytes([5, 0, 65]), MOST)


def test_loki_says_the_same_in_both_forms() -> None:
    """Labels with quotes, entries with their nanoseconds."""
    entries = [(NS, "one"), (NS + 1, "zwei ü")]
    expected = [(LABELS, [(NS, b"one"), (NS + 1, "zwei ü".encode())])]
    body = {"streams": [{"stream": LABELS, "values": [[str(at), text] for at, text in entries]}]}
    assert read(loki_json(json.dumps(body).encode())) == expected
    assert read(loki_protobuf(push_request(LABELS, entries))) == expected


def test_a_time_that_is_no_number_is_none() -> None:
    """Bytes where the seconds should be are not multiplied: ten of them would take ten gigabytes."""
    stamp = b"\x0a\x0a" + b"x" * 10
    entry = b"\x0a%c%s\x12\x03one" % (len(stamp), stamp)
    stream = b"\x12%c%s" % (len(entry), entry)
    assert read(loki_protobuf(b"\x0a%c%s" % (len(stream), stream))) == [({}, [(0, b"one")])]


def test_one_bad_line_costs_itself() -> None:
    """A time that is none, a text that is none, an entry without either; structured metadata is left aside."""
    values = [["x", "a"], ["1", 5], [], ["-3", "undated"], ["7", "good", {"trace": "1"}]]
    push = loki_json(json.dumps({"streams": [{"stream": {"a": "b"}, "values": values}]}).encode())
    assert (push.refused, push.streams[0].entries) == (3, [(-3, b"undated"), (7, b"good")])
    assert push.streams[0].date(99) == 0
    assert push.streams[0].entries == [(99, b"undated"), (7, b"good")]


def test_a_line_far_ahead_is_as_old_as_its_arrival_or_the_newest_line() -> None:
    """A sender's clock may be five minutes ahead of ours; a line dated later is counted, and moves no clock in one
    push or in many. A wrong time of arrival puts no line before the stream's newest.
    """
    minutes = 60 * 10**9
    push = loki_json(json.dumps({"streams": [{"values": [[str(NS + n * minutes), "x"] for n in (4, 6, 60)]}]}).encode())
    (stream,) = push.streams
    assert stream.date(NS) == 2
    newest = NS + 4 * minutes
    assert [at for at, _ in stream.entries] == [newest, newest + 1, newest + 2]
    stream.entries = [(at, b"x") for at in (NS + 8 * minutes, NS + 5 * minutes, 0, NS + 1)]
    assert stream.date(NS, newest) == 1
    assert [at - NS for at, _ in stream.entries] == [4 * minutes + 1, 5 * minutes, 5 * minutes + 1, 1]


SPACES = b'{a="' + b" " * 400_000 + b'"'
SHAPES: dict[str, tuple[Callable[[bytes], Push], bytes]] = {
    "spaces in labels": (loki_protobuf, message((1, message((1, b" " * 400_000), (2, b""))))),
    "half a pair of labels": (loki_protobuf, message((1, message((1, SPACES[:-1]), (2, b""))))),
    "a name without end": (loki_protobuf, message((1, message((1, b"a" * 400_000), (2, b""))))),
    "empty lists": (loki_json, b'{"streams": [' + b"[]," * 2_000_000 + b"[]]}"),
    "nested lists": (loki_json, b"[" * 2_000_000),
    "empty streams": (loki_json, json.dumps({"streams": [{"stream": {"a": str(n)}} for n in range(20_000)]}).encode()),
    "one object of many keys": (otlp_json, b'{"a":1' + b',"ab":1' * 1_000_000 + b"}"),
    "empty records": (otlp_json, b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[' + b"{}," * 1_000_000 + b"{}]}]}]}"),
    "attributes of a resource": (
        otlp_json,
        otlp_push({f"a{n}": "" for n in range(20_000)}, [(NS, 0, "", {})] * 20_000, as_json=True),
    ),
    "empty fields": (otlp_protobuf, b"\x0a\x00" * 2_000_000),
    "messages in messages": (otlp_protobuf, b"\x0a\x04\x12\x02\x12\x00" * 200_000),
    "unknown fields": (otlp_protobuf, b"\x78\x00" * 2_000_000),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_no_body_costs_much(shape: str) -> None:
    """Megabytes of nothing are refused, or read, in bounded time and memory."""
    read_body, body = SHAPES[shape]
    tracemalloc.start()
    began = time.process_time()
    try:
        with contextlib.suppress(WireError, TooLargeError):
            read_body(body)
        peak, seconds = tracemalloc.get_traced_memory()[1], time.process_time() - began
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20
    assert seconds < 10.0  # under a tracer; a scan that is not linear takes minutes


def test_labels_end_where_they_are_none() -> None:
    """A search for the next pair, from each character on, takes quadratic time."""
    push = loki_protobuf(message((1, message((1, '{a="1", b = "2" c="3", =, d="4"}'), (2, b"")))))
    assert push.streams[0].labels == {"a": "1", "b": "2", "c": "3"}


def test_streams_and_labels_are_bounded() -> None:
    """A body has two thousand streams, a stream 64 labels of 256 characters."""
    labels = {f"{number:02}" + "a" * 300: "b" * 300 for number in range(70)}
    (stream,) = loki_json(json.dumps({"streams": [{"stream": labels}]}).encode()).streams
    assert {len(text) for pair in stream.labels.items() for text in pair} == {256}
    assert len(stream.labels) == 64
    many = {"streams": [{"stream": {"a": str(number)}} for number in range(2_001)]}
    with pytest.raises(TooLargeError, match="2000 streams"):
        loki_json(json.dumps(many).encode())


def test_otlp_says_the_same_in_both_forms() -> None:
    """Attributes of the resource and of the record are labels; the observed time stands in for one that is missing."""
    records = [(NS, 0, "one", {}), (0, NS + 5, "two", {"log.iostream": "stderr"})]
    expected = [
        ({"k8s.job.name": "gpt"}, [(NS, b"one")]),
        ({"k8s.job.name": "gpt", "log.iostream": "stderr"}, [(NS + 5, b"two")]),
    ]
    for as_json, read_body in ((True, otlp_json), (False, otlp_protobuf)):
        assert read(read_body(otlp_push({"k8s.job.name": "gpt"}, records, as_json=as_json))) == expected


@pytest.mark.parametrize(("as_json", "read_body"), [(True, otlp_json), (False, otlp_protobuf)])
def test_otlp_says_by_an_attribute_that_a_line_was_cut(read_body: Callable[[bytes], Push], *, as_json: bool) -> None:
    """`logtag` of a record, as an agent tells what stood in the runtime's file: the parts are joined."""
    whole = line(7).rstrip("\n")
    records = [(NS, 0, whole[:90], {"logtag": "P"}), (NS + 9, 0, whole[90:], {"logtag": "F"})]
    push = read_body(otlp_push({"run": "gpt"}, records, as_json=as_json))
    (stream,) = push.streams
    lines = b"".join(one for at, text in stream.entries for one in lines_of(at, b"", text))
    assert [type(entry.event) for entry in SourceReader().feed(lines)] == [IterationLogged]


def test_otlp_bodies_that_are_no_text() -> None:
    """A map is shown as it came, a number as its digits; a record of another form is refused alone."""
    bodies = [{"kvlistValue": {"values": []}}, {"intValue": "5"}, {"boolValue": True}]
    records = [{"timeUnixNano": "1", "body": body} for body in bodies] + [{"timeUnixNano": "x", "body": {}}]
    body = json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}).encode()
    push = otlp_json(body)
    assert [text for _, text in push.streams[0].entries] == [b'{"kvlistValue":{"values":[]}}', b"5", b"true"]
    assert push.refused == 1


def test_unknown_fields_are_passed_over() -> None:
    """A later version of a message is read as far as it is known; groups, which nobody writes any more, are refused."""
    known = push_request(LABELS, [(NS, "one")])
    later = known + bytes.fromhex("7d 01020304 79 0102030405060708 f0 01 05")
    assert read(loki_protobuf(later)) == read(loki_protobuf(known))
    with pytest.raises(WireError):
        decode_protobuf(b"\x0b", {})
    for cut in range(1, len(known)):
        try:
            loki_protobuf(known[:cut])
        except WireError:
            continue
    assert message((1, 300)) == b"\x08\xac\x02"

"""What a request costs the receiver, whatever its shape: at most 64 MiB and half a second of the processor."""

import gzip
import http.client
import json
import os
import random
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from cramjam import snappy

from tests.monitor.receiver.senders import message
from tests.programs import MONITOR, TETHERED, answers, free_port, slack, wait

pytestmark = pytest.mark.nightly
REQUESTS, BODY = 500, 8 << 20
LOKI, OTLP, JSON, PROTOBUF = "/loki/api/v1/push", "/v1/logs", "application/json", "application/x-protobuf"
LABELS = {"run": "gpt", "pod": "gpt-0", "agent": "n1"}
Pushed = tuple[str, str, bytes]  # path, content type, body
_chance = random.Random(48)
pick = _chance.choice


def repeated(unit: bytes | str, *counts: int) -> bytes:
    """The unit, as often as one of the counts or as a body can hold."""
    data = unit.encode() if isinstance(unit, str) else unit
    return data * min(pick(counts), (BODY - 500) // max(1, len(data)))


def loki(streams: object) -> Pushed:
    """As JSON."""
    return LOKI, JSON, json.dumps({"streams": streams}, separators=(",", ":")).encode()


def one_line(text: str) -> Pushed:
    """A stream with one entry."""
    return loki([{"stream": LABELS, "values": [["1700000000000000000", text]]}])


def label_text() -> Pushed:
    """A1 of the review: a text that a pattern may search again and again."""
    unit = pick((" ", "{", ",", "=", '"', "\\", 'a="', 'a="\\', 'a="b",', "\t= ", "é"))
    labels = b"{" + repeated(unit, 10_000, 400_000, BODY)
    push = message((1, message((1, labels), (2, message((2, "x"))))))
    return LOKI, PROTOBUF, bytes(snappy.compress_raw(push))


def nested() -> Pushed:
    """JSON of great depth, closed or not."""
    opening, end = pick((("[", "]"), ('{"a":', "}")))
    depth = pick((100, 1000, 100_000, 1_000_000))
    text = f'{{"streams":{opening * depth}{pick(("", "1" + end * depth))}}}'
    return pick((LOKI, OTLP)), JSON, text.encode()[:BODY]


def empties() -> Pushed:
    """B3 of the review: millions of small parts."""
    unit = pick(("[]", "{}", "0", '""', '{"stream":{}}', '{"values":[[]]}', "1e999", '["1","a"]', '["-5","a"]'))
    name = pick(("streams", "resourceLogs", "x"))
    return pick((LOKI, OTLP)), JSON, b'{"%s":[' % name.encode() + repeated(unit + ",", 1000, 100_000, BODY) + b"0]}"


def streams() -> Pushed:
    """Many streams, runs and heartbeats."""
    kind, many = pick(({}, {"heartbeat": "x"})), pick((100, 1000, 2000, 40_000))
    return loki([
        {"stream": {**LABELS, **kind, "agent": f"n{number % 20_000}", "pod": f"p{number}"}, "values": [["1", "x"]]}
        for number in range(many)
    ])  # fmt: skip


def labels() -> Pushed:
    """Many and long labels."""
    many, size = pick((64, 1000, 50_000)), pick((5, 50))
    return loki([{"stream": {"a" * size + str(number): "b" * size for number in range(many)}, "values": [["1", "x"]]}])


def long_text() -> Pushed:
    """A line, or many in one entry, of what is masked, unpacked or cut."""
    units = (
        "a",
        "é",
        "\0",
        "\x1b[31m",
        '"',
        "\\",
        '{"',
        '{"log":"a\\n"}',
        "token=",
        "password: ",
        "://",
        "a@",
        "\n",
        "a\n",
    )
    return one_line(repeated(pick(units), 100_000, 1_000_000, BODY // 3).decode())


def numbers() -> Pushed:
    """Numbers of a million digits."""
    digits = repeated(pick(("9", "1", "0.3", "1e9")), 1000, 1_000_000, BODY // 2)
    return LOKI, JSON, b'{"streams":[{"stream":{"run":"a"},"values":[[' + digits + b',"x"]]}]}'


def records() -> Pushed:
    """OTLP in protobuf: empty messages, attributes and values in values."""
    inner = pick((b"", message((5, b"")), message((6, message((1, "a"), (2, message((1, "b"))))))))
    one = message((1, message((2, message((2, inner * pick((1, 50, 5000))))))))
    return OTLP, PROTOBUF, repeated(pick((one, message((1, b"")), b"\x50\x01")), 1, 1000, 200_000, BODY)


def noise() -> Pushed:
    """Bytes at random."""
    return pick((LOKI, OTLP)), pick((JSON, PROTOBUF)), _chance.randbytes(pick((10, 10_000, 1_000_000)))


SHAPES: tuple[Callable[[], Pushed], ...] = (
    label_text, nested, empties, streams, labels, long_text, numbers, records, noise
)  # fmt: skip


def _memory(process: int, name: str) -> float:
    """MiB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(name))) / 1024.0


def _seconds(process: int) -> float:
    """Of the processor, since its start."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def _slowness() -> float:
    """How much slower the processor is now, beside other work, than one that counts to a million in 25 ms."""
    began, number = time.process_time(), 0
    while number < 1_000_000:
        number += 1
    return max(1.0, (time.process_time() - began) / 0.025)


def test_no_request_costs_more_than_64_mib_and_half_a_second(tmp_path: Path) -> None:
    """Point 3 of issue 48, with the shapes of the attack."""
    port = free_port()
    settings = (f"listen=127.0.0.1:{port}", f"directory={tmp_path}/spool", "max_bytes_per_second=1000000000")
    command = [*TETHERED, *MONITOR, "receive", *(f"--set=receiver.{one}" for one in settings)]
    dear = list[str]()
    with subprocess.Popen(command) as receiver:
        wait(lambda: answers(f"http://127.0.0.1:{port}/-/ready"), 20.0, "it is not ready")
        for number in range(REQUESTS):
            shape = SHAPES[number % len(SHAPES)]
            path, kind, body = shape()
            headers = {"Content-Type": kind}
            if kind == JSON and pick((True, False)):
                body, headers = gzip.compress(body, 1), headers | {"Content-Encoding": "gzip"}
            Path(f"/proc/{receiver.pid}/clear_refs").write_text("5")  # the peak of memory begins anew
            memory, seconds, tries = _memory(receiver.pid, "VmRSS"), 1.0, 0
            while seconds > 0.5 and tries < 3:
                before, tries = _seconds(receiver.pid), tries + 1
                with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=slack(20))) as connection:
                    connection.request("POST", path, body, headers)
                    status = connection.getresponse().status
                seconds = (_seconds(receiver.pid) - before) / _slowness()
                assert status != 503, shape.__name__
            memory = _memory(receiver.pid, "VmHWM") - memory
            if memory > 64.0 or seconds > 0.5:
                dear.append(f"{shape.__name__} {number}: {memory:.0f} MiB, {seconds:.2f} s, answer {status}")
        receiver.terminate()
    assert not dear, "\n".join(dear)

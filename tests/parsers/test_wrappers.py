"""Every carrier of log lines: what is read from the wrapped log is what is read from the bare one."""

import json
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec
import pytest

from megatron_monitor.parsers.engine.prefixes import strip_prefixes
from megatron_monitor.parsers.events import ArgumentsDumped, Event, TracebackSeen, to_fields
from megatron_monitor.parsers.reader import Bookmark, SourceReader
from megatron_monitor.parsers.wrappers import Unwrapper, apart

_DUMP = """\
------------------------ arguments ------------------------
  bf16 ............................................ True
  hidden_size ..................................... 2048
  some_argument_with_a_name_as_long_as_the_column_is .. 3
  tokenizer_model ................................. /data/"tok" <a> \\b
-------------------- end of arguments ---------------------
"""
_MEGATRON = "".join(
    f" iteration {n:8d}/     500 | consumed samples: {n * 64:12d} | elapsed time per iteration (ms): {900 + n}.5 |"
    f" learning rate: 1.000E-04 | global batch size:    64 | lm loss: 2.{n:06d}E+00 | grad norm: 1.{n} |\n"
    for n in range(7, 16)
)
_HF = "".join(
    f"{{'loss': 9.{n}52, 'grad_norm': 2.{n}92, 'learning_rate': 4.6e-05, 'epoch': 0.{n}3}}\n" for n in range(1, 9)
)
_BARS = " 33%|###       | 1/3 [02:44<05:16, 158.34s/it]\r 66%|######    | 2/3 [04:30<01:45, 105.83s/it]\n"
_TRACEBACK = """\
Traceback (most recent call last):
  File "/work/pretrain_gpt.py", line 215, in <module>
    main(a["b"])
  File "/work/megatron/training.py", line 90, in main
    loss = model(batch)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of
"""
_SRUN = """\
srun: error: node05: task 3: Exited with exit code 1
srun: error: node07: tasks 4-7: Killed
slurmstepd: error: *** STEP 4711.0 ON node05 CANCELLED AT 2026-05-01T12:00:09 ***
"""
_LOGS = {"arguments": _DUMP, "megatron": _MEGATRON, "hf": _HF, "bars": _BARS, "traceback": _TRACEBACK, "srun": _SRUN}

_AT = "2026-05-01T12:00:0{}.123456Z"


def _stamp(index: int) -> str:
    return _AT.format(index % 10)


def _micros(index: int) -> int:
    return round(datetime.fromisoformat(_stamp(index)).replace(tzinfo=UTC).timestamp() * 1e6)


_WRAPPERS: dict[str, Callable[[int, str], str]] = {
    "kubectl --prefix": lambda _, line: f"[pod/train-worker-0/pytorch] {line}",
    "kubectl --prefix --timestamps": lambda n, line: f"[pod/train-worker-0/pytorch] {_stamp(n)} {line}",
    "docker json-file": lambda n, line: json.dumps({"log": line + "\n", "stream": "stderr", "time": _stamp(n)}),
    "docker json-file, Go's escapes": lambda n, line: (
        json.dumps({"log": line + "\n", "stream": "stderr", "time": _stamp(n)}, separators=(",", ":"))
        .replace("<", "\\u003c")
        .replace(">", "\\u003e")
        .replace("&", "\\u0026")
    ),
    "docker compose": lambda _, line: f"trainer-1  | {line}",
    "docker compose -t": lambda n, line: f"trainer-12  | {_stamp(n)} {line}",
    "journalctl": lambda n, line: f"May  1 12:00:0{n % 10} node01 train.sh[4711]: {line}",
    "journalctl short-precise": lambda n, line: f"May 11 12:00:0{n % 10}.123456 node01 python3[4711]: {line}",
    "journalctl short-iso": lambda n, line: f"2026-05-01T12:00:0{n % 10}+0000 node01 train.sh[4711]: {line}",
    "journalctl json": lambda n, line: json.dumps(
        {"__REALTIME_TIMESTAMP": str(_micros(n)), "_HOSTNAME": "node01", "_PID": "4711", "MESSAGE": line}
    ),
    "journalctl json, bytes": lambda n, line: json.dumps(
        {"__CURSOR": "s=1", "__REALTIME_TIMESTAMP": str(_micros(n)), "MESSAGE": list(line.encode())}
    ),
    "syslog 5424": lambda n, line: f"<14>1 {_stamp(n)} node01 train 4711 - - {line}",
    "syslog 5424 with data": lambda n, line: f'<14>1 {_stamp(n)} node01 train 4711 ID4 [m@1 a="b]" c="d"][x] {line}',
    "syslog 3164": lambda n, line: f"<13>May  1 12:00:0{n % 10} node01 train[4711]: {line}",
    "vector": lambda n, line: json.dumps(
        {"file": "/logs/a.out", "host": "node01", "message": line, "source_type": "file", "timestamp": _stamp(n)}
    ),
    "vector on kubernetes": lambda n, line: json.dumps(
        {
            "kubernetes": {"container_name": "pytorch", "pod_name": "train-worker-0", "pod_node_name": "node01"},
            "message": line,
            "source_type": "kubernetes_logs",
            "timestamp": _stamp(n),
        }
    ),
    "vector that reads docker's file": lambda n, line: json.dumps(
        {"message": json.dumps({"log": line + "\n", "stream": "stdout", "time": _stamp(n)}), "source_type": "file"}
    ),
    "fluent bit": lambda n, line: json.dumps({"date": _micros(n) / 1e6, "log": line}),
    "fluent bit on kubernetes": lambda n, line: json.dumps(
        {"date": _stamp(n), "stream": "stdout", "_p": "F", "log": line, "kubernetes": {"pod_name": "a-0", "host": "n1"}}
    ),
    "logcli": lambda n, line: f'{_stamp(n)} {{app="train", pod="train-worker-0"}} {line}',
    "logcli, blanks cut": lambda n, line: f"{_stamp(n)} {{}} {line.strip()}",
    "logcli jsonl": lambda n, line: json.dumps({"labels": {"pod": "a-0"}, "line": line, "timestamp": _stamp(n)}),
    "stern": lambda _, line: f"train-worker-0 pytorch {line}",
    "stern of a Job, with times": lambda n, line: f"train-bx2vq pytorch {_stamp(n)} {line}",
    "stern json": lambda _, line: json.dumps(
        {"message": line, "nodeName": "n1", "namespace": "ml", "podName": "train-0", "containerName": "pytorch"}
    ),
}


def _wrapped(text: str, wrap: Callable[[int, str], str]) -> bytes:
    return "".join(wrap(n, line) + "\n" for n, line in enumerate(text.removesuffix("\n").split("\n"))).encode()


def _read(data: bytes, cut: int = 1 << 20) -> list[tuple[int, Event]]:
    reader = SourceReader()
    found = [entry for start in range(0, len(data), cut) for entry in reader.feed(data[start : start + cut])]
    assert reader.consumed_bytes == len(data)
    return [(entry.line, entry.event) for entry in [*found, *reader.flush()]]


def _reported(events: list[tuple[int, Event]]) -> list[tuple[int, dict[str, object]]]:
    """Without what a carrier may add."""
    return [
        (line, {name: value for name, value in to_fields(event).items() if name not in ("node", "logged_at")})
        for line, event in events
    ]


@pytest.mark.parametrize("wrapper", _WRAPPERS)
def test_reads_as_the_bare_log(wrapper: str) -> None:
    """The same events at the same lines, in any chunks."""
    for log, text in _LOGS.items():
        if log == "bars" and "json" not in wrapper:
            text = text.replace("\r", "\n")  # noqa: PLW2901  whoever writes text puts its prefix before each
        data, bare = _wrapped(text, _WRAPPERS[wrapper]), _read(text.encode())
        assert bare
        events = _read(data)
        assert _reported(events) == _reported(bare), log
        assert _read(data, 97) == events


@pytest.mark.parametrize("wrapper", _WRAPPERS)
def test_what_the_wrapper_adds(wrapper: str) -> None:
    """Time and node where the line has none, and evidence is shown as its program wrote it."""
    wrap = _WRAPPERS[wrapper]
    last = SourceReader().feed(_wrapped(_TRACEBACK, wrap))[-1]
    assert last.text == _TRACEBACK.splitlines()[-1]
    sample = wrap(5, "x")
    if "12:00:05" in sample or "1777636805" in sample:
        assert last.event.logged_at is not None
        assert "05-01T12:00:05" in last.event.logged_at.replace("--05-11", "--05-01")
    for node in ("node01", "n1", "train-worker-0", "trainer-1", "a-0"):
        if node in sample:
            assert last.event.node is not None
            assert last.event.node.startswith(node)
            break
    stamped = "[2026-05-01 13:00:00.5] iteration 5/ 10 | elapsed time per iteration (ms): 900.5 | lm loss: 2.1E+00 |"
    [(_, event)] = _read(_wrapped(stamped, wrap))
    assert event.logged_at == "2026-05-01T13:00:00.5", "the line's own time is the line's"


@pytest.mark.parametrize(
    "line",
    [
        '{"log": 5, "stream": "stdout", "time": "x"}',
        '{"log": "iteration", "step": 3}',
        '{"message": "epoch 3", "level": "INFO"}',
        '{"MESSAGE": [300], "__CURSOR": "x"}',
        '{"line": "x"}',
        '{"log": "cut',
        '{"a": ' + "[" * 3000,
        '{"train_runtime": 5.0}',
    ],
)
def test_other_json_is_no_wrapper(line: str) -> None:
    """A program's own JSON, and what is none, stays as it is."""
    assert Unwrapper().read(line.encode(), 1000) is None


def test_a_byte_that_is_no_text_costs_itself_alone() -> None:
    """In a string of JSON, as a damaged file or an agent that hands bytes on has it."""
    line = b'{"log":"step \x80 7\\n","stream":"stdout","time":"2026-05-01T12:00:00Z"}'
    assert Unwrapper().read(line, 1000) == ["2026-05-01T12:00:00Z step \ufffd 7".encode()]
    assert Unwrapper().read(b'{"step": "\x80"}', 1000) is None


@pytest.mark.parametrize(
    "line",
    [
        "epoch-3 step 10: loss 3.5",
        "gpt-neox tokenizer loaded",
        "layer-norm eps 1e-5",
        "2026-05-01T12:00:00Z RuntimeError in main: x",
        "2026-05-01T12:00:00Z {'loss': 2.5}",
        "May be slow: x",
        "March 5 was cold: y",
        "loss  | 3.5",
        "<pad>1 token",
        "[pod/] x",
    ],
)
def test_other_text_is_no_wrapper(line: str) -> None:
    """Text that only begins like one keeps its words; a stamp alone goes, as it did."""
    assert strip_prefixes(line)[1] == line.removeprefix("2026-05-01T12:00:00Z ")
    assert strip_prefixes(line)[0].node is None


def test_the_end_of_a_cut_line_is_no_argument() -> None:
    """Of a name that other ranks' words have cut in two: its end has fewer dots than a name of that length."""
    whole = "  tokenizer_cache_path ............................ None"
    for line, names in ((whole, {"bf16", "tokenizer_cache_path"}), (whole.strip()[11:], {"bf16"})):
        dump = [*_DUMP.splitlines()[:2], line, _DUMP.splitlines()[-1], ""]
        [(_, event)] = _read("\n".join(dump).encode())
        assert isinstance(event, ArgumentsDumped)
        assert event.values.keys() == names


def _docker(log: str, stream: str = "stdout") -> str:
    return json.dumps({"log": log, "stream": stream, "time": _stamp(1)}) + "\n"


def _cri(text: str, stream: str = "stdout") -> str:
    tag, text = ("F", text.removesuffix("\n")) if text.endswith("\n") else ("P", text)
    return f"{_stamp(1)} {stream} {tag} {text}\n"


def _pushed(text: str, stream: str = "stdout") -> str:
    return f"{_stamp(2)} [pod/a-0/main] <14>1 - n7 log - - - {_cri(text, stream)}"


def _spooled(text: str, stream: str = "stdout", **more: object) -> str:
    """As the spool keeps a record that Fluent Bit has tagged."""
    record = {"stream": stream, "logtag": "F" if text.endswith("\n") else "P", "log": text.removesuffix("\n"), **more}
    (line,) = apart(json.dumps(record).encode(), 50_000, _stamp(3)) or ()
    return f"{_stamp(2)} [pod/a-0/main] {line.decode()}\n"


def _spooled_with_host(text: str, stream: str = "stdout") -> str:
    return _spooled(text, stream, kubernetes={"pod_name": "a-0", "host": "n1"})


@pytest.mark.parametrize("write", [_docker, _cri, _pushed, _spooled, _spooled_with_host])
def test_parts_of_a_line_are_joined(write: Callable[..., str]) -> None:
    """Runtimes cut long lines: each stream's parts are joined, and the line is where its last part stands, in any
    chunks and over a resume. No secret of a part is saved.
    """
    line = _MEGATRON.splitlines()[0]
    records = [
        write("x\n"), write(line[:70]), write("Traceback (most", "stderr"), write(line[70:90]),
        write(line[90:] + "\n"), write(" recent call last):\n", "stderr"), write("ValueError: x\n", "stderr"),
    ]  # fmt: skip
    bare = _read(f"{line}\nTraceback (most recent call last):\nValueError: x\n".encode())
    events = _read("".join(records).encode())
    assert [number for number, _ in events] == [5, 7]
    assert [fields for _, fields in _reported(events)] == [fields for _, fields in _reported(bare)]
    assert _read("".join(records).encode(), 41) == events
    first, second = SourceReader(), SourceReader()
    first.feed("".join(records[:4]).encode())
    second.restore(msgspec.json.decode(msgspec.json.encode(first.save()), type=Bookmark))
    assert [entry.line for entry in second.feed("".join(records[4:]).encode())] == [5, 7]
    first.feed(write("--wandb-api-key 0123456789abcdef0123").encode())
    assert "0123456789abcdef" not in repr(first.save())


@pytest.mark.parametrize("cut", [1 << 20, 1, 30])
def test_bars_that_a_runtime_has_cut(cut: int) -> None:
    """A bar is drawn over itself until the runtime's buffer is full: only what stands behind the last return is cut."""
    first, second = _BARS.rstrip("\n").split("\r")
    parts = f"x\r{first[:20]}", f"{first[20:]}\r{second}\r{first[:9]}", f"{first[9:]}\r{second}\n"
    reported = [fields for _, fields in _reported(_read("".join(map(_cri, parts)).encode(), cut))]
    assert reported == [fields for _, fields in _reported(_read("".join(parts).encode()))]
    assert len(reported) == 4


def test_lines_without_ends_are_whole() -> None:
    """Some write docker's form and leave the line end out: nothing is joined, whichever comes first."""
    records = [_docker(line) for line in _MEGATRON.splitlines()]
    assert [number for number, _ in _read("".join(records).encode())] == [2, *range(2, 10)]
    assert len(_read(records[0].encode())) == 1, "the last line counts when the source ends"


def test_a_line_without_end_is_bounded() -> None:
    """What never ends is cut."""
    unwrapper, part = Unwrapper(ends=True), _docker("x" * 16_384).encode()
    lines = [line for _ in range(10) for line in unwrapper.read(part, 50_000) or ()]
    assert len(lines) == 2
    assert len(unwrapper.parts["stdout"]) < 50_000


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("[pod/train-0/pytorch] ", "[pod/train-1/pytorch] "),
        ("train-0 pytorch ", "train-1 pytorch "),
        ("train-1  | ", "train-2  | "),
    ],
)
def test_pods_are_writers(first: str, second: str) -> None:
    """The tracebacks of two pods in one stream do not mix: each exception is of its own pod and script."""
    lines = [
        f"{first}Traceback (most recent call last):", f"{second}Traceback (most recent call last):",
        f'{first}  File "/work/train.py", line 5, in <module>', f'{second}  File "/work/copy.py", line 5, in <module>',
        f"{second}ValueError: b", f"{first}ValueError: a",
    ]  # fmt: skip
    found = [event for _, event in _read("".join(line + "\n" for line in lines).encode())]
    assert [(event.message, event.role) for event in found if isinstance(event, TracebackSeen)] == [
        ("b", "helper"), ("a", "trainer"),
    ]  # fmt: skip
    assert found[0].node != found[1].node

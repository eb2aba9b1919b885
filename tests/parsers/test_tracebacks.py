"""Tracebacks: what came out of a chain, what TorchScript wraps, whose program it was, what a text names, and what
torchrun prints of a rank's error file.
"""

from typing import Any

import pytest

from megatron_monitor.parsers.events import to_fields
from megatron_monitor.parsers.reader import SourceReader

TRAIN = '  File "/home/me/train.py", line 12, in <module>\n    main()\n'
HEADER = "Traceback (most recent call last):\n"
BUILD = (
    HEADER + '  File "/env/lib/torch/utils/cpp_extension.py", line 2100, in _run_ninja_build\n'
    "    subprocess.run(\n"
    "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.\n"
)
DIRECT = "\nThe above exception was the direct cause of the following exception:\n\n"
DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"
OOM = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.00 GiB of which 1.10 GiB is free."
)


def events(text: str, *, end: bool = True) -> list[dict[str, Any]]:
    """The events of a text, as `parse --json` shows them; `end`: nothing more can come."""
    reader = SourceReader()
    found = reader.feed(text.encode())
    return [to_fields(entry.event) for entry in found + (reader.flush() if end else [])]


def tracebacks(text: str) -> list[dict[str, Any]]:
    """The tracebacks among them."""
    return [event for event in events(text) if event["event"] == "traceback"]


# --- chains ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sentence", [DIRECT, DURING])
@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "3: ", "[default3]:[rank3]: "])
def test_the_last_of_a_chain_came_out_and_names_the_first(sentence: str, prefix: str) -> None:
    """A compiler that failed is no launcher's word; the exception that nobody caught is the trainer's."""
    text = BUILD + sentence + HEADER + TRAIN + "RuntimeError: Error building extension 'cpu_adam'\n"
    inner, outer = tracebacks("".join(prefix + line for line in text.splitlines(keepends=True)))
    assert (inner["exception"], inner["role"], inner.get("top_level"), inner.get("root")) == (
        "CalledProcessError", "helper", None, None,
    )  # fmt: skip
    assert (outer["message"], outer["role"], outer["top_level"]) == (
        "Error building extension 'cpu_adam'", "trainer", True,
    )  # fmt: skip
    assert outer["root"].endswith("CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.")


def test_a_chain_of_three_begins_at_its_first() -> None:
    """The root is what all of it goes back to, though messages of several lines stand between."""
    text = HEADER + '  File "a.py", line 1, in read\nOSError: [Errno 5] Input/output error\nwhile reading /data\n'
    text += DIRECT + HEADER + '  File "b.py", line 1, in load\nValueError: bad shard\n' + DURING
    text += HEADER + TRAIN + "RuntimeError: giving up\n"
    assert [event.get("root") for event in tracebacks(text)] == [
        None, "OSError: [Errno 5] Input/output error", "OSError: [Errno 5] Input/output error",
    ]  # fmt: skip


def test_two_tracebacks_that_no_sentence_joins_are_no_chain() -> None:
    """Near miss: one after the other. What a library says between them is no sentence of Python's."""
    text = BUILD + "\nretrying\n\n" + HEADER + TRAIN + "ValueError: bad batch\n"
    assert [event.get("root") for event in tracebacks(text)] == [None, None]


def test_chains_of_two_ranks_are_each_its_own() -> None:
    """Line by line in one file: each rank's frames, roots and ends stay with it."""
    first = BUILD + DIRECT + HEADER + TRAIN + "RuntimeError: Error building extension 'cpu_adam'\n"
    second = HEADER + '  File "/x/prepare.py", line 3, in load\n' + "KeyError: 'text'\n"
    lines = ["[rank0]: " + line for line in first.splitlines(keepends=True)]
    for place, line in enumerate(second.splitlines(keepends=True)):
        lines.insert(2 * place + 1, "[rank1]: " + line)
    found = {(event["rank"], event["exception"]): event for event in tracebacks("".join(lines))}
    assert found[1, "KeyError"]["script"] == "/x/prepare.py"
    assert found[0, "CalledProcessError"]["script"].endswith("cpp_extension.py")
    assert found[0, "RuntimeError"]["root"].startswith("subprocess.CalledProcessError")
    assert found[1, "KeyError"].get("root") is None


# --- what the last line says ----------------------------------------------------------------------------------------


def test_what_failed_inside_torchscript_is_the_exception() -> None:
    """The wrapper's sentence is no exception of its own; the frame of the program that died stays."""
    text = HEADER + TRAIN + "RuntimeError: The following operation failed in the TorchScript interpreter.\n"
    text += "Traceback of TorchScript (most recent call last):\n"
    text += '  File "/m/fused_bias_gelu.py", line 15, in bias_gelu\n    x = bias + y\n        ~~~~~~~~ <--- HERE\n'
    seen, failure = sorted(events(text + f"RuntimeError: {OOM}\n"), key=lambda event: str(event["event"]), reverse=True)
    assert (seen["message"], seen["failure"], seen["top_level"]) == (OOM, "cuda_oom", True)
    assert (seen["script"], seen["role"], failure["failure"]) == ("/home/me/train.py", "trainer", "cuda_oom")


@pytest.mark.parametrize(
    ("line", "failure"),
    [
        (f"torch.OutOfMemoryError: {OOM}", "cuda_oom"),
        ("RuntimeError: CUDA error: device-side assert triggered", "cuda_error"),
        ("RuntimeError: Triton Error [CUDA]: device-side assert triggered", "cuda_error"),
        ("RuntimeError: Triton Error [CUDA]: out of memory", "cuda_oom"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "ecc"),
        ("MemoryError", "host_oom"),
        ("OSError: [Errno 12] Cannot allocate memory", "host_oom"),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried to "
         "allocate 8589934592 bytes. Error code 12 (Cannot allocate memory)", "host_oom"),
        ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.", "host_oom"),
        ("OSError: [Errno 28] No space left on device", "disk_full"),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Segmentation fault. ", "segfault"),
        ("torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:230, unhandled cuda error", "nccl"),
        ("KeyboardInterrupt", "stopped"),
        ("ValueError: bad batch", None),
        ("RuntimeError: expected a MemoryError here", None),
    ],
)  # fmt: skip
def test_a_text_names_its_cause(line: str, failure: str | None) -> None:
    """The kind stands on the traceback: no text has to be read again."""
    (event,) = tracebacks(HEADER + TRAIN + line + "\n")
    assert event.get("failure") == failure


@pytest.mark.parametrize(
    ("script", "line", "role"),
    [
        ("/x/pretrain_gpt.py", "KeyError: 'text'", "trainer"),
        ("/x/tools/preprocess_data.py", "KeyError: 'text'", "helper"),
        ("<stdin>", "KeyError: 'text'", "helper"),
        ("/app/src/llamafactory/launcher.py", "KeyError: 'text'", "trainer"),
        ("/env/bin/wandb", "ModuleNotFoundError: No module named 'click'", "bystander"),
        ("/x/pretrain_gpt.py", "wandb.errors.CommError: timed out", "bystander"),
        ("/home/claimont/train.py", "KeyError: 'text'", "trainer"),
        ("/usr/bin/torchrun", "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", "launcher"),
        ("/usr/bin/torchrun", "torch.distributed.elastic.api.SignalException: Process 7 got signal: 1", "launcher"),
        ("/usr/bin/accelerate",
         "subprocess.CalledProcessError: Command '['/env/python3', 'train.py']' returned non-zero exit status 1.",
         "launcher"),
        ("/x/train.py", "subprocess.CalledProcessError: Command 'torchrun t.py' died with <Signals.SIGKILL: 9>.",
         "launcher"),
        ("/x/pretrain_gpt.py", "subprocess.CalledProcessError: Command '['make', '-C', '/m']' returned non-zero exit "
         "status 2.", "trainer"),
        (None, "KeyError: 'text'", None),
    ],
)  # fmt: skip
def test_whose_traceback_it_is(script: str | None, line: str, role: str | None) -> None:
    """By the program's name, and by the exceptions that only who started the processes raises."""
    frame = f'  File "{script}", line 3, in <module>\n' if script else ""
    (event,) = tracebacks(HEADER + frame + line + "\n")
    assert event.get("role") == role


def test_frames_of_runpy_are_not_the_program() -> None:
    """`python -m train` begins in Python's own module, in two forms."""
    for runpy in ("<frozen runpy>", "/usr/lib/python3.10/runpy.py"):
        frames = f'  File "{runpy}", line 198, in _run_module_as_main\n  File "{runpy}", line 88, in _run_code\n'
        (event,) = tracebacks(HEADER + frames + TRAIN + "KeyError: 'text'\n")
        assert (event["script"], event["role"], event["top_level"]) == ("/home/me/train.py", "trainer", True)


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("ModuleNotFoundError: No module named 'apex'", {"optional": True}),
        ("importlib.metadata.PackageNotFoundError: No package metadata was found for apex", {"optional": True}),
        ("RuntimeError: [pair.cc:598] Connection closed by peer [10.0.0.1]:1234", {"lost_peer": True}),
        ("torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15",
         {"signal": 15, "failure": "stopped"}),
        ("torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 1",
         {"signal": 1, "failure": "killed"}),
        ("ValueError: got signal: 15", {"signal": None, "optional": False, "lost_peer": False}),
    ],
)  # fmt: skip
def test_what_else_a_reader_needs(line: str, values: dict[str, Any]) -> None:
    """Imports that a program can do without, ranks that lost another one, the agent's signal."""
    (event,) = tracebacks(HEADER + TRAIN + line + "\n")
    assert {name: event.get(name) for name in values} == values


# --- what torchrun prints of a rank's error file --------------------------------------------------------------------


def entry(index: int, rank: int, code: int, when: str, told: str) -> str:
    """One failed rank, as torchrun writes it."""
    file = "<N/A>" if "Traceback" not in told else f"/tmp/torchelastic/attempt_0/{rank}/error.json"
    return (
        f"[{index}]:\n  time      : 2026-05-10_20:46:{when}\n  host      : node-07\n"
        f"  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : {code} (pid: {7410 + rank})\n  error_file: {file}\n  traceback : {told}\n"
    )


def report(root: str, others: str = "  <NO_OTHER_FAILURES>\n") -> str:
    """The text of torchrun's ChildFailedError."""
    return (
        HEADER + '  File "/usr/local/bin/torchrun", line 6, in <module>\n    sys.exit(main())\n'
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n" + "=" * 60 + "\n"
        "train.py FAILED\n" + "-" * 60 + "\nFailures:\n" + others + "-" * 60 + "\n"
        "Root Cause (first observed failure):\n" + root + "=" * 60 + "\n"
    )  # fmt: skip


def recorded(line: str, before: str = "") -> str:
    """A traceback as it stands in the report: `format_exc()`, its further lines two blanks deeper."""
    rows = [
        *before.splitlines(), HEADER.strip(), '  File "/env/errors/__init__.py", line 357, in wrapper',
        "    return f(*args, **kwargs)", '  File "/x/train.py", line 9, in step', "    run(grid)", line, "",
    ]  # fmt: skip
    return "\n  ".join(rows)


DEVICE = "RuntimeError: Triton Error [CUDA]: device-side assert triggered"
SIGTERM = "Signal 15 (SIGTERM) received by PID 7411"


@pytest.mark.parametrize(
    ("line", "code", "failure", "consequence"),
    [
        (DEVICE, -6, "cuda_error", False),
        (f"torch.OutOfMemoryError: {OOM}", 1, "cuda_oom", False),
        ("KeyError: 'text'", 1, "python_exception", False),
        ("KeyError: 'text'", -15, "python_exception", False),  # it raised, and was ended on its way out
        ("RuntimeError: [pair.cc:598] Connection closed by peer [10.0.0.1]:1234", 1, "python_exception", True),
    ],
)
@pytest.mark.parametrize("prefix", ["", "0: "])
def test_the_exception_of_an_error_file_is_the_cause(
    line: str, code: int, failure: str, consequence: bool, prefix: str
) -> None:
    """Its rank, its node, its time, and what it names; one failure and one end, once the report is whole."""
    text = report(entry(0, 7, code, "26", recorded(line)))
    seen, cause, end = events("".join(prefix + row for row in text.splitlines(keepends=True)), end=False)
    assert (seen["exception"], seen["role"]) == ("ChildFailedError", "launcher")
    assert (cause["failure"], cause["rank"], cause["node"], cause["logged_at"]) == (
        failure, 7, "node-07", "2026-05-10T20:46:26",
    )  # fmt: skip
    assert (cause["consequence"], cause["exit_code"], cause["by"]) == (consequence, code, "launcher")
    assert cause["message"] == line.removeprefix("torch.")
    assert (end["event"], end["exit_code"], end["rank"]) == ("process_exit", code, 7)
    if failure == "cuda_oom":
        assert (cause["requested_bytes"], cause["device_bytes"]) == (2 << 30, 79 << 30)


def test_the_line_that_is_shown_is_the_exception() -> None:
    """Not the border that ends the report."""
    found = SourceReader().feed(report(entry(0, 7, -6, "26", recorded(DEVICE))).encode())
    assert [entry.text for entry in found[1:]] == [DEVICE, DEVICE]


def test_the_last_of_a_recorded_chain_came_out() -> None:
    """As on a rank's own output."""
    before = HEADER + '  File "/x/data.py", line 3, in read\nOSError: [Errno 5] Input/output error\n' + DIRECT
    told = recorded("ValueError: bad shard", before.rstrip("\n") + "\n")
    assert [
        event["message"] for event in events(report(entry(0, 7, 1, "26", told))) if event["event"] == "failure"
    ] == [
        "ValueError: bad shard",
    ]


def test_the_others_of_a_report_came_later() -> None:
    """Their entries say nothing of the cause; a line of another rank may stand between."""
    lost = recorded("torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:230, remote process exited")
    others = entry(0, 0, 1, "27", lost) + entry(1, 1, -15, "28", SIGTERM)
    text = report(entry(2, 7, -6, "26", recorded(DEVICE)), others).replace(
        "Failures:\n", "Failures:\n3: another rank\n"
    )
    assert [(event["failure"], event["rank"]) for event in events(text) if event["event"] == "failure"] == [
        ("cuda_error", 7)
    ]


def test_a_report_that_was_cut_tells_what_it_has() -> None:
    """The end of the file, or silence behind a whole line; without the exit code there is nothing to tell."""
    text = report(entry(0, 7, -6, "26", recorded(DEVICE)))
    whole = text[: text.index("triggered\n") + len("triggered\n")]
    assert [event["event"] for event in events(whole)] == ["traceback", "failure", "process_exit"]
    assert [event["event"] for event in events(whole + "START\n", end=False)] == [
        "traceback",
        "failure",
        "process_exit",
    ]
    reader = SourceReader()
    assert len(reader.feed(whole.encode())) == 1
    assert reader.holds_back
    assert [entry.event.kind for entry in reader.settle()] == ["failure", "process_exit"]
    assert [event["event"] for event in events(text[: text.index("  exitcode")])] == ["traceback"]


def test_another_program_s_failures_are_none() -> None:
    """The word alone opens nothing: what follows is read as ever."""
    text = "Failures:\n  3 of 7 shards\n" + HEADER + TRAIN + "KeyError: 'text'\n"
    assert [event["event"] for event in events(text)] == ["traceback"]


def test_frames_whose_header_was_lost_are_a_traceback() -> None:
    """The output.log of wandb leaves the header out; of a stack that somebody prints no exception follows."""
    (seen,) = tracebacks("q_cos: 64\n" + TRAIN + "RuntimeError: two devices\nValueError: a text\n")
    assert (seen["exception"], seen["message"], seen["top_level"]) == ("RuntimeError", "two devices", True)
    assert tracebacks("Call stack:\n" + TRAIN + "Message: it is slow\nValueError: a text\n") == []
    assert len(tracebacks(HEADER + TRAIN + "ValueError: no data\n")) == 1

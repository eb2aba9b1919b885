"""What launchers put before a line: stripped in any nesting, and what each tells."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_monitor.parsers.engine.prefixes import Prefix, iso_time, segments, strip_prefixes


@pytest.mark.parametrize(
    ("text", "prefix", "rest"),
    [
        ("7: text", Prefix(task=7), "text"),
        ("  7:  iteration", Prefix(task=7), " iteration"),
        ("55:", Prefix(task=55), ""),
        ("[default3]: iteration", Prefix(local_rank=3), " iteration"),
        ("[rank13]:[W1] text", Prefix(rank=13), "[W1] text"),
        ("[1,3]<stdout>:text", Prefix(rank=3), "text"),
        (
            "[2023-10-19 23:07:45,931] [INFO] [logging.py:96:log_dist] [Rank 0] step=1",
            Prefix(rank=0, logged_at="2023-10-19T23:07:45.931", location="logging.py:96:log_dist"),
            "step=1",
        ),
        (
            "[2023-10-19 23:07:45,931] [INFO] [comm.py:1:init] [Rank -1] text",
            Prefix(logged_at="2023-10-19T23:07:45.931", location="comm.py:1:init"),
            "text",
        ),
        (
            "[2024-06-21 10:50:42][INFO][training_log:661] -  iteration=1",
            Prefix(logged_at="2024-06-21T10:50:42", location="training_log:661"),
            " iteration=1",
        ),
        (" [2026-03-27 15:42:15.545150] iteration", Prefix(logged_at="2026-03-27T15:42:15.545150"), "iteration"),
        ("INFO:megatron.core.timers:text", Prefix(location="megatron.core.timers"), "text"),
        (
            "[INFO|trainer.py:1165] 2021-05-25 07:09:47,832 >>   text",
            Prefix(location="trainer.py:1165", logged_at="2021-05-25T07:09:47.832"),
            "  text",
        ),
        (
            "2023-10-26 21:31:16,318 [Rank 15]:  text",
            Prefix(rank=15, logged_at="2023-10-26T21:31:16.318"),
            " text",
        ),
        (
            "[20251202 06:56:28][rank-7/8][INFO ] [-----trainer.py:2560] : text",
            Prefix(rank=7, logged_at="2025-12-02T06:56:28", location="-----trainer.py:2560"),
            "text",
        ),
        (
            "2026-05-01T12:00:00.123456Z stdout F text",
            Prefix(logged_at="2026-05-01T12:00:00.123456Z"),
            "text",
        ),
        ("slurmstepd-node-05: error: *** STEP", Prefix(node="node-05"), "error: *** STEP"),
        ("slurmstepd-lulu: error: *** JOB", Prefix(node="lulu"), "error: *** JOB"),
        ("slurmstepd: error: *** STEP", Prefix(), "slurmstepd: error: *** STEP"),
        ("(RayTrainWorker pid=1234, ip=10.0.0.1) text", Prefix(node="10.0.0.1"), "text"),
        ("(Worker pid=1234) text", Prefix(), "text"),
        ("node01: text", Prefix(node="node01"), "text"),
        ("192.168.205.202: text", Prefix(node="192.168.205.202"), "text"),
        ("worker: iteration 5", Prefix(node="worker"), "iteration 5"),
        ("warning: text", Prefix(), "warning: text"),
        ("bf16: True", Prefix(), "bf16: True"),
        ("  indented text", Prefix(), "  indented text"),
        (
            "9: [default3]: [2026-04-15 11:25:00.541769]  iteration",
            Prefix(task=9, local_rank=3, logged_at="2026-04-15T11:25:00.541769"),
            " iteration",
        ),
        ("[default1]: [default2]: text", Prefix(local_rank=2), " text"),
        ("", Prefix(), ""),
    ],
)
def test_prefix(text: str, prefix: Prefix, rest: str) -> None:
    """Each prefix is taken off and told; the program's own blanks stay."""
    assert strip_prefixes(text) == (prefix, rest)


def test_rank_in_the_world() -> None:
    """A srun label is a rank, but under torchrun's tee it is a node."""
    assert Prefix(task=9).global_rank == 9
    assert Prefix(task=9, local_rank=3).global_rank is None
    assert Prefix(task=9, local_rank=3, rank=39).global_rank == 39
    assert Prefix(task=9, local_rank=3).key != Prefix(task=8, local_rank=3).key


def test_iso_time() -> None:
    """Printed times become ISO 8601, and no zone is added."""
    assert iso_time("2023-10-19 23:07:45,931") == "2023-10-19T23:07:45.931"
    assert iso_time("20251202 06:56:28") == "2025-12-02T06:56:28"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("plain", ["plain"]),
        ("[default3]: text", ["[default3]: text"]),
        ("0: [default3]: text", ["0: [default3]: text"]),
        ("[default1]: [default2]: text", ["[default1]: [default2]: text"]),
        ("one |[default3]: two", ["one |", "[default3]: two"]),
        (
            "[default1]: one |[default3]: two[default4]:three",
            ["[default1]: one |", "[default3]: two", "[default4]:three"],
        ),
        ("one |[default3]:", ["one |[default3]:"]),
        ("table[row1]: 5", ["table[row1]: 5"]),
        (" 15%|#| 60/400 [06:00<34:00, 6.00s/it]Killed", [" 15%|#| 60/400 [06:00<34:00, 6.00s/it]", "Killed"]),
        ("60it [1:06:00,  1.5it/s, lr=[1e-5]] Killed", ["60it [1:06:00,  1.5it/s, lr=[1e-5]]", " Killed"]),
        ("1%|#| 1/9 [00:01<00:08, 1it/s] 2%|#| 2/9 [00:02<00:07, 1it/s]", None),
        ("15%|#| 60/400 [06:00<34:00, 6.00s/it]{'loss': 1.5}", None),
        ("15%|#| 60/400 [06:00<34:00, 6.00s/it] ", None),
        ("15% of [06:00] and more", None),
    ],
)
def test_segments(text: str, parts: list[str] | None) -> None:
    """A tee label in the middle of a line starts another writer's text, and so does the end of a bar. None: nothing
    does.
    """
    assert segments(text) == (parts or [text])


@given(st.lists(st.one_of(st.sampled_from(["[default3]:", "7: ", "[rank1]:", " ", "n1: ", "x"]), st.text(max_size=4))))
def test_segments_lose_nothing(pieces: list[str]) -> None:
    """The segments of a line are the line."""
    text = "".join(pieces)
    assert "".join(segments(text)) == text
    prefix, rest = strip_prefixes(text)
    assert text.endswith(rest)
    assert prefix.global_rank is None or prefix.global_rank >= 0


@pytest.mark.parametrize(
    "form",
    [
        "[default{}]:x",
        "[rank{}]:x",
        "[1,{}]<stdout>:x",
        "2023-10-26 21:31:16,318 [Rank {}]: x",
        "[2023-10-19 23:07:45,931] [INFO] [a:1:b] [Rank {}] x",
        "[20251202 06:56:28][rank-{}/8][INFO ] x",
        "{}: x",
    ],
)
def test_absurd_ranks(form: str) -> None:
    """More digits than Python turns into an int are no rank, and no error."""
    assert strip_prefixes(form.format("1" * 5000))[0].global_rank is None


def test_hostile_lines_cost_no_time() -> None:
    """Prefix characters without end are read in linear time."""
    started = time.process_time()
    for filler in ("[a1", "[default1]:", "[", "1", "a", " ", "a.", "7: ", "[rank", "]:", "[default1"):
        text = filler * (65_536 // len(filler))
        for line in (text, "[a" + text, "x" + text + "]:", "[default" + text):
            segments(line)
            strip_prefixes(line)
    assert time.process_time() - started < 5

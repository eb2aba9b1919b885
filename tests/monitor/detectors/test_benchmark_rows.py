"""The audit over every row of the benchmark tables that the rules were drawn from: what is wrong in one is found, and
rows in which nothing is wrong wake nobody. A row becomes arguments and three iteration lines.
"""

import json
from typing import Any

import pytest

from megatron_monitor.audit import Finding, audit
from megatron_monitor.parsers.events import ArgumentsDumped, Event, IterationLogged, LogEvent, ModelSettingLogged
from megatron_monitor.run.fold import fold
from megatron_monitor.run.state import RunState
from tests.conftest import SHARED

ROWS = SHARED / "data" / "seed-benchmarks.json"
pytestmark = pytest.mark.real_logs

EXPECTED: dict[str, tuple[str, ...]] = {
    "E3": ("K08",),  # 2048 in the row, 512 in the heading: four times
    "E8": ("K08",),  # a digit slipped
    "E9": ("K08",),  # the figure of another size
    "E10": ("K08",),  # twice
    "E34": ("K21",),  # 32 % (8 x 8)
}
"""Exceptions of single rows whose inputs a log has. Others compare rows (the report), are slips of a document, or are
layouts that Megatron refuses.
"""


def rows() -> list[dict[str, Any]]:
    """Every measurement or attempt."""
    if not ROWS.is_file():
        return []
    return [row for row in json.loads(ROWS.read_text("utf-8")) if row["kind"] == "table_row"]


def padded(row: dict[str, Any]) -> int:
    """Vocabulary as Megatron pads it."""
    vocab = {"250k": 250680}.get(str(row.get("vocab")), row.get("vocab"))
    if row["source"].startswith("004"):
        return 250880
    multiple = 128 * (row.get("tp") or 1)
    return -(-int(vocab or 50257) // multiple) * multiple


def state_of(row: dict[str, Any]) -> RunState:
    """The run that this row would have logged."""
    size, gpus = row.get("model_size_b"), row.get("gpus") or row.get("nodes")
    state = RunState(name=f"gpt-{size:g}B" if size else "run")
    exceptions = row.get("exceptions", ())
    corrected = row.get("interpretation") or {}
    unchecked = row.get("activation_checkpointing") == "false"
    values = {
        "world_size": gpus, "tensor_model_parallel_size": row.get("tp"), "pipeline_model_parallel_size": row.get("pp"),
        "data_parallel_size": row.get("dp"), "micro_batch_size": row.get("mbs"), "global_batch_size": row.get("gbs"),
        "gradient_accumulation_steps": row.get("pp_chunks"), "num_layers": row.get("layers"), "swiglu": False,
        "hidden_size": row.get("hidden"), "num_attention_heads": row.get("heads"), "seq_length": row.get("seq_len"),
        "ffn_hidden_size": corrected.get("ffn_hidden_size"), "checkpoint_activations": not unchecked, "zero_stage": 1,
        "rampup_batch_size": "['32', '32', '1000000']" if "E34" in exceptions else None,
        "padded_vocab_size": padded(row) if row.get("layers") else None,
    }  # fmt: skip
    events: list[Event] = [ArgumentsDumped(values={k: str(v) for k, v in values.items() if v is not None})]
    if size and not row.get("layers"):
        events.append(ModelSettingLogged(name="parameters_billions", value=float(size)))
    seconds, tflops = row.get("sec_per_it"), row.get("tflops")
    events += [
        IterationLogged(
            iteration=iteration, seconds_per_iteration=seconds, global_batch_size=row.get("gbs"), tflops=tflops,
            train_iterations=95367, consumed_samples=iteration * row["gbs"] if row.get("gbs") else None,
            dialect="bigscience",
        )
        for iteration in (1, 2, 3)
        if seconds
    ]  # fmt: skip
    for event in events:
        fold(state, LogEvent(1, "test", event, ""), "a", 0.0, True)
    return state


def name_of(row: dict[str, Any]) -> str:
    """Where the row stands."""
    return f"{row['source'][:3]}-L{row['line']}"


def findings(row: dict[str, Any]) -> dict[str, Finding]:
    """Check -> finding."""
    return {finding.check: finding for finding in audit(state_of(row))}


@pytest.mark.parametrize(
    "row", [row for row in rows() if set(row.get("exceptions", ())) & EXPECTED.keys()], ids=name_of
)
def test_what_is_wrong_is_found(row: dict[str, Any]) -> None:
    """Each exception of this row by its check."""
    found = findings(row)
    for exception in row["exceptions"]:
        for check in EXPECTED.get(exception, ()):
            assert check in found, (exception, found)


def test_every_exception_that_a_log_shows_has_a_row() -> None:
    """Nothing in the table above is without a case."""
    seen = {exception for row in rows() for exception in row.get("exceptions", ())}
    assert seen >= EXPECTED.keys()


@pytest.mark.parametrize(
    "row", [row for row in rows() if not set(row.get("exceptions", ())) & EXPECTED.keys()], ids=name_of
)
def test_sound_rows_wake_nobody(row: dict[str, Any]) -> None:
    """All the others: nothing above a hint."""
    loud = [finding for finding in findings(row).values() if finding.severity != "info"]
    assert loud == []

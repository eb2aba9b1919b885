"""Runs side by side: K13 swapped columns, K14 repeatability, K15 scaling with the batch, K16 memory, K18 epochs.

A product of time and TFLOPs cannot tell that the two were swapped, and one sample cannot tell that it was slow: both
take another record of the same configuration. In: one `Record` a run or table row. Out: findings with its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from monitor.run import derived
from monitor.run.audit.finding import Finding
from monitor.run.state import RunState

_SWAPPED = 2e-4  # of both figures of the other record: at 0.5 % four sound rows of the tables look swapped
_APART = 0.05  # between records of one configuration: A100 runs repeat within 1.1 %
_MEMORY = 0.10  # the same for memory
_SCALING = 0.10  # from the pipeline's law in the batch size: 3 % is usual
_Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """One configuration and what it took. Seconds per iteration, TFLOP/s per GPU, bytes; None is unknown."""

    name: str
    world_size: int | None = None
    data_parallel_size: int | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    micro_batch_size: int | None = None
    global_batch_size: int | None = None
    sequence_length: int | None = None
    model: _Key = ()
    """What tells one model from another: sizes, checkpointing, ZeRO stage."""
    epoch: _Key = ()
    """What makes figures comparable: hardware, program, precision, CUDA_LAUNCH_BLOCKING."""
    formula: str | None = None
    seconds: float | None = None
    tflops: float | None = None
    memory_bytes: float | None = None

    def key(self, *without: str) -> _Key | None:
        """The configuration; None where a part of it is not known."""
        names = (
            "world_size", "data_parallel_size", "tensor_parallel_size", "pipeline_parallel_size", "micro_batch_size",
            "global_batch_size", "sequence_length",
        )  # fmt: skip
        parts = tuple(getattr(self, name) for name in names if name not in without)
        return None if None in parts or not self.model else (*parts, *self.model, *self.epoch)


def record_of(state: RunState) -> Record:
    """A run as a record: the learned normal time and the last figures."""
    topology = state.topology
    return Record(
        name=state.name,
        world_size=topology.world_size,
        data_parallel_size=topology.data_parallel_size,
        tensor_parallel_size=topology.tensor_parallel_size,
        pipeline_parallel_size=topology.pipeline_parallel_size,
        micro_batch_size=topology.micro_batch_size,
        global_batch_size=derived.batch_size(state),
        sequence_length=derived.sequence_length(state),
        model=(
            topology.layers, topology.hidden_size, topology.attention_heads, topology.ffn_hidden_size, topology.experts,
            topology.activation_checkpointing, topology.zero_stage,
        ) if topology.layers and topology.hidden_size else (),
        epoch=(topology.gpu_name, state.dialect, topology.dtype, state.environment.get("CUDA_LAUNCH_BLOCKING")),
        formula=state.tflops_formula,
        seconds=state.pace.baseline or state.pure_seconds,
        tflops=state.latest.tflops,
        memory_bytes=state.memory.max_reserved or state.memory.max_allocated,
    )  # fmt: skip


def compare(records: Sequence[Record]) -> list[tuple[int, Finding]]:
    """(place, finding): of a pair the finding stands at the record that is the odder one, else at the later."""
    found: list[tuple[int, Finding]] = []
    for same in _groups(records):
        found += _swapped(records, same)
        found += _repeated(records, same)
    for same in _groups(records, "global_batch_size"):
        found += _scaled(records, same)
    for same in _groups(records, "micro_batch_size"):
        found += _fuller(records, same)
    return found


def _groups(records: Sequence[Record], *without: str) -> list[list[int]]:
    groups: dict[_Key, list[int]] = {}
    for place, record in enumerate(records):
        key = record.key(*without)
        if key is not None:
            groups.setdefault(key, []).append(place)
    return [places for places in groups.values() if len(places) > 1]


def _pairs(places: list[int]) -> Iterator[tuple[int, int]]:
    return ((one, two) for at, two in enumerate(places) for one in places[:at])


def _near(one: float, two: float, share: float) -> bool:
    return abs(one / two - 1) <= share


def _swapped(records: Sequence[Record], places: list[int]) -> Iterator[tuple[int, Finding]]:
    for one, two in _pairs(places):
        first, second = records[one], records[two]
        if not (first.seconds and first.tflops and second.seconds and second.tflops):
            continue
        crossed = _near(first.seconds, second.tflops, _SWAPPED) and _near(first.tflops, second.seconds, _SWAPPED)
        if crossed and not _near(first.seconds, second.seconds, _APART):
            text = f"seconds and TFLOPs are those of {first.name} the other way round: columns swapped"
            yield two, Finding("K13", "warning", text, first.name)


def _repeated(records: Sequence[Record], places: list[int]) -> Iterator[tuple[int, Finding]]:
    for one, two in _pairs(places):
        first, second = records[one], records[two]
        if first.formula and second.formula and first.formula != second.formula:
            text = f"TFLOPs by another formula than {first.name} ({second.formula}, {first.formula}): not comparable"
            yield two, Finding("K18", "info", text, first.name)
        apart = []
        for what, before, now, most in (
            ("time", first.seconds, second.seconds, _APART),
            ("memory", first.memory_bytes, second.memory_bytes, _MEMORY),
        ):
            if before and now and not _near(max(before, now), min(before, now), most):
                apart.append(f"{what} {now / before - 1:+.1%}")
        if apart:
            text = f"the same configuration as {first.name}, but {' and '.join(apart)}"
            yield two, Finding("K14", "info", text, first.name)
        elif first.seconds and first.seconds == second.seconds and first.tflops == second.tflops:
            yield two, Finding("K14", "info", f"the same figures as {first.name}: a copy?", first.name)


def _scaled(records: Sequence[Record], places: list[int]) -> Iterator[tuple[int, Finding]]:
    """Time over a pipeline's law in its batch: t2 / t1 = (m2 + PP - 1) / (m1 + PP - 1)."""
    for one, two in _pairs(places):
        first, second = records[one], records[two]
        if first.global_batch_size == second.global_batch_size or not first.seconds or not second.seconds:
            continue
        expected = first.seconds * _filled(second) / _filled(first)
        off = second.seconds / expected - 1
        if abs(off) <= _SCALING:
            continue
        slow, fast, share = (two, first, off) if off > 0 else (one, second, 1 / (1 + off) - 1)
        text = f"{share:+.1%} over what {fast.name} lets expect at this batch size: not an effect of the batch"
        yield slow, Finding("K15", "info", text, fast.name)


def _filled(record: Record) -> float:
    micro, data, stages = (
        record.micro_batch_size or 1,
        record.data_parallel_size or 1,
        record.pipeline_parallel_size or 1,
    )
    return (record.global_batch_size or 0) / (micro * data) + stages - 1


def _fuller(records: Sequence[Record], places: list[int]) -> Iterator[tuple[int, Finding]]:
    for one, two in _pairs(places):
        small, large = sorted((one, two), key=lambda place: records[place].micro_batch_size or 0)
        less, more = records[small], records[large]
        if less.micro_batch_size == more.micro_batch_size or not less.memory_bytes or not more.memory_bytes:
            continue
        if less.memory_bytes > (1 + _APART) * more.memory_bytes:
            text = f"more memory at micro batch {less.micro_batch_size} than {more.name} at {more.micro_batch_size}"
            yield small, Finding("K16", "info", text, more.name)

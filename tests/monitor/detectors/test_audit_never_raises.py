"""Whatever a log says: the audit and the detectors of this family answer, and their memories can be saved."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from megatron_monitor.audit import audit
from megatron_monitor.parsers.events import (
    ArgumentsDumped,
    BatchSizeRampupPlanned,
    CheckpointSaved,
    CheckpointSaveScheduled,
    CheckpointSaveStarted,
    Event,
    FailureSeen,
    IterationLogged,
    IterationsSkipped,
    LogEvent,
    MemoryReported,
    ModelSettingLogged,
    ParametersCounted,
    TopologyLogged,
    TracebackSeen,
)
from tests.monitor.detectors.replaying import _MEGATRON, Replaying

COUNT = st.none() | st.sampled_from([0, 1, 2, 3, 7, 8, 64, 1024, 2048, 10**9, 10**15]) | st.integers(0, 4000)
FIGURE = st.none() | st.sampled_from([0.0, -1.0, 1e-300, 1e300, float("inf"), float("nan")]) | st.floats(0.001, 1000)
TEXT = st.sampled_from(
    ["None", "True", "False", "0", "-1", "[", "['32', '1', '10']", "8", "2048", "1e400", "full", "104B"]
)
NAMES = [*_MEGATRON, "rampup_batch_size", "save"]
ITERATION = st.builds(
    IterationLogged, iteration=st.integers(0, 200), train_iterations=COUNT, consumed_samples=COUNT,
    seconds_per_iteration=FIGURE, learning_rate=FIGURE, global_batch_size=COUNT, lm_loss=FIGURE,
    samples_per_second=FIGURE, tflops=FIGURE, sequence_length=COUNT,
    dialect=st.sampled_from(["bigscience", "microsoft", "megatron-lm", "gpt-neox"]),
)  # fmt: skip
EVENTS: st.SearchStrategy[Event] = st.one_of(
    ITERATION,
    ITERATION,
    st.builds(ArgumentsDumped, values=st.dictionaries(st.sampled_from(NAMES), TEXT)),
    st.builds(TopologyLogged, world_size=COUNT, nodes=COUNT, processes_per_node=COUNT, data_parallel_size=COUNT),
    st.builds(ModelSettingLogged, name=st.sampled_from(["padded_vocab_size"]), value=st.floats(0, 1e9)),
    st.builds(ModelSettingLogged, name=st.just("gpu_name"), value=st.sampled_from(["Tesla V100-SXM2-32GB", "MI250X"])),
    st.builds(BatchSizeRampupPlanned, start=st.integers(-5, 99), end=st.integers(-5, 10**14),
              increment=st.integers(-1, 64), samples=st.integers(0, 10**9)),
    st.builds(ParametersCounted, parameters=st.integers(0, 10**12), tensor_rank=st.integers(0, 3), pipeline_rank=COUNT),
    st.builds(MemoryReported, rank=COUNT, iteration=COUNT, allocated_bytes=COUNT, max_reserved_bytes=COUNT,
              host_used_ratio=st.none() | st.floats(0, 2)),
    st.builds(CheckpointSaveStarted, iteration=COUNT),
    st.builds(CheckpointSaved, iteration=COUNT),
    st.builds(CheckpointSaveScheduled, iteration=COUNT),
    st.builds(FailureSeen, failure=st.sampled_from(["cuda_oom", "disk_full"]), message=st.text(max_size=5),
              device_bytes=COUNT),
    st.builds(TracebackSeen, exception=st.just("OSError"), message=st.text(max_size=5)),
    st.builds(IterationsSkipped, first=st.integers(0, 9), last=st.integers(0, 99)),
)  # fmt: skip


@given(st.lists(EVENTS, max_size=60))
def test_any_events(events: list[Event]) -> None:
    """In any order, with any figures."""
    run = Replaying("gpt-104B")
    for event in events:
        run.at += 10.0
        run.told += run.judge.take(run.run, [LogEvent(1, "test", event, "the line")], "a", run.at, True)
        run.told += run.judge.judge(run.run, run.at)
    for finding in audit(run.run.state):
        assert finding.message
        msgspec.json.encode(finding)
    kept = msgspec.json.decode(msgspec.json.encode(run.run.state.memory_of))
    run.run.state.memory_of = kept
    run.judge.judge(run.run, run.at + 1.0)

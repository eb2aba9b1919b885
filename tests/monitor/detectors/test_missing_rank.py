"""The rank that did not arrive: what watchdogs say of their collectives, as evidence."""

from collections.abc import Iterable

import pytest

from tests.monitor.playing import Played, play

_HEAD = "using world size: 16, data-parallel-size: 4, tensor-model-parallel size: 4, pipeline-model-parallel size: 1\n"


def _line(rank: int, text: str) -> str:
    return f"{rank}: [rank{rank}]:[E522 03:55:59.960586137 ProcessGroupNCCL.cpp:694] {text}\n"


def _gave_up(rank: int, work: int, place: str, operation: str = "ALLREDUCE", enqueued: int | None = None) -> str:
    """What PyTorch 2.7 prints for one rank: the timeout, then how far its group had come."""
    in_group = place.rpartition(" ")[2]
    return _line(
        rank,
        f"[Rank {in_group}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={work}, OpType={operation}, "
        "NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.",
    ) + _line(
        rank,
        f"[PG ID 5 PG GUID {place}]  failure detected by watchdog at work sequence id: {work} PG status: last enqueued "
        f"work: {enqueued or work + 2}, last completed work: {work - 1}",
    )


def _played(lines: Iterable[str], head: str = "") -> Played:
    training = [
        (10.0 + n, f"7:  iteration {n:8d}/    1000 | elapsed time per iteration (ms): 1000.0 | lm loss: 2.1E+00 |\n")
        for n in range(1, 40)
    ]
    return play([(0.0, _HEAD + head), *training, (660.0, "".join(lines))], 60.0, "detectors: {hang: {minimum: 2000s}}")


def test_the_silent_rank_of_the_world_is_named_with_its_node() -> None:
    """All others gave up on one collective; srun's list tells whose node the silent one ran on."""
    lines = [_gave_up(rank, 81234, f"0(default_pg) Rank {rank}") for rank in range(16) if rank != 13]
    reported = _played(lines, "SLURM_JOB_NODELIST=jz-[010-013]\n").firing("crash")
    assert (
        "rank 13 on node jz-013 did not arrive at ALLREDUCE 81234 and reported nothing; the other 15 wait for it"
        in (reported.summary)
    )
    assert (reported.evidence["ranks"], reported.evidence["nodes"]) == ([13], ["jz-013"])


def test_a_rank_that_says_that_it_is_behind_never_reached_it() -> None:
    """The dump signal makes it tell how far it had come; its group of four alone names it, in whatever order."""
    signal = (
        "[PG ID 5 PG GUID 9(DATA_PARALLEL_GROUP) Rank 2] Received a dump signal due to a collective timeout from "
        " rank 1 and we will try our best to dump the debug info. Last enqueued NCCL work: 699, last completed NCCL "
        "work: 699."
    )
    lines = [_gave_up(4 * place + 1, 700, f"9(DATA_PARALLEL_GROUP) Rank {place}") for place in (3, 0, 1)]
    reported = _played([_line(9, signal), *lines]).firing("crash")
    assert "rank 9 never reached ALLREDUCE 700 of DATA_PARALLEL_GROUP; 3 ranks wait for it" in reported.summary
    assert reported.evidence["missing_proof"] == "behind"
    assert "nodes" not in reported.evidence  # nothing tells where it ran


def test_who_waits_for_somebody_else_is_not_accused() -> None:
    """Rank 5 is late for one group because it waits in another: rank 6 holds them all up."""
    pipeline = [_gave_up(rank, 40, f"3(PIPELINE) Rank {rank // 4}") for rank in (1, 9, 13)]
    tensor = [_gave_up(rank, 90, f"7(TENSOR) Rank {rank - 4}") for rank in (4, 5, 7)]
    reported = _played([*pipeline, *tensor]).firing("crash")
    assert reported.evidence["ranks"] == [6]
    assert (
        "rank 6 did not arrive at ALLREDUCE 90 of TENSOR and reported nothing; 6 ranks wait for it" in reported.summary
    )


def test_half_a_log_accuses_nobody() -> None:
    """Only the first node's lines are in the file; or the first rank of each pair waits elsewhere."""
    first_node = [_gave_up(rank, 81234, f"0(default_pg) Rank {rank}") for rank in range(4)]
    pairs = [
        _gave_up(rank, 5, f"{20 + rank}(TENSOR_MODEL_PARALLEL_GROUP) Rank 1", "BROADCAST") for rank in range(1, 16, 2)
    ]
    for lines in (first_node, pairs):
        evidence = _played(lines, "SLURM_JOB_NODELIST=jz-[010-013]\n").firing("crash").evidence
        assert "ranks" not in evidence
        assert "nodes" not in evidence


def test_slurms_node_failure_names_the_node_that_failed() -> None:
    """Not the node whose daemon writes that the job was cancelled, which is the job's first."""
    lines = [
        "slurmstepd: error: *** JOB 1395206 ON n-003-17 CANCELLED AT 2026-08-17T12:39:53 DUE TO NODE FAILURE, SEE "
        "SLURMCTLD LOG FOR DETAILS ***\n",
        "srun: error: Node failure on n-026-42\n",
    ]
    for order in (lines, lines[::-1]):
        assert _played(order).firing("crash").evidence["nodes"] == ["n-026-42"]


@pytest.mark.parametrize(("listed", "named"), [("n-003-17", ["n-003-17"]), ("n-003-[17-18]", None)])
def test_a_node_failure_of_a_job_with_one_node_names_that_node(listed: str, named: list[str] | None) -> None:
    """The line names the first node of the job only: it is the failed one if the job has no other."""
    lines = [
        "slurmstepd: error: *** JOB 1395206 ON n-003-17 CANCELLED AT 2026-08-17T12:39:53 DUE TO NODE FAILURE, SEE "
        "SLURMCTLD LOG FOR DETAILS ***\n",
    ]
    assert _played(lines, f"SLURM_JOB_NODELIST={listed}\n").firing("crash").evidence.get("nodes") == named

"""LSF's report of a job: how it ended is told once, behind its output, wherever the report stands."""

from typing import Any

import pytest

from megatron_monitor.parsers.events import to_fields
from megatron_monitor.parsers.reader import SourceReader

DASHES = 60 * "-"
STEP = "steps: 3 loss: 9.8 iter time (s): 0.250 samples/sec: 32.0\n"
ENDED = "2026-04-02T15:10:00"


def report(end: str, *, word: str = "Exited", output: str = "is above this job summary.", cluster: bool = True) -> str:
    """What LSF writes when a job is over."""
    where = "in cluster <summit> " if cluster else ""
    return (
        f"\n{DASHES}\nSender: LSF System <lsfadmin@batch2>\nSubject: Job 4242: <gpt3> {where}{word}\n\n"
        "Job <gpt3> was submitted from host <login1> by user <alice> in cluster <summit> at Thu Apr  2 13:00:00 2026\n"
        "Job was executed on host(s) <8*n1>, in queue <batch>, as user <alice> in cluster <summit> at Thu Apr  2 "
        "13:10:00 2026\n                            <8*n2>\n"
        "</home/alice> was used as the home directory.\n</home/alice/run> was used as the working directory.\n"
        "Started at Thu Apr  2 13:10:00 2026\nTerminated at Thu Apr  2 15:10:00 2026\n"
        "Results reported at Thu Apr  2 15:10:00 2026\n\nYour job looked like:\n\n"
        f"{DASHES}\n# LSBATCH: User input\n#!/bin/sh\n#BSUB -W 2:00\nexport NCCL_DEBUG=INFO\n"
        f"python train.py || echo training exited with code 1\n{DASHES}\n\n{end}\n\n"
        "Resource usage summary:\n\n    CPU time :                                   581.00 sec.\n"
        "    Max Memory :                                 9868 MB\n"
        "    Run time :                                   7200 sec.\n\n"
        f"The output (if any) {output}\n"
    )  # fmt: skip


def events(text: str) -> list[dict[str, Any]]:
    """The events of a text that is whole."""
    reader = SourceReader()
    return [to_fields(entry.event) for entry in reader.feed(text.encode()) + reader.flush()]


ENDS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "exit code": ("Exited with exit code 1.", [{"event": "process_exit", "exit_code": 1, "ends_attempt": True}]),
    "time limit": (
        "TERM_RUNLIMIT: job killed after reaching LSF run time limit.\nExited with exit code 140.",
        [{"failure": "time_limit", "by": "lsf", "consequence": False}, {"event": "process_terminated"},
         {"failure": "unknown", "exit_code": 140, "consequence": True}, {"exit_code": 140, "ends_attempt": True}],
    ),
    "memory": (
        "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.\nExited with signal termination: Killed.",
        [{"failure": "host_oom", "message": "LSF: job killed after reaching LSF memory usage limit."},
         {"event": "process_terminated"},
         {"failure": "killed", "message": "LSF: the job ended by signal: Killed", "consequence": True},
         {"event": "process_exit", "exit_code": None, "ends_attempt": True}],
    ),
    "owner": (
        "TERM_OWNER: job killed by owner.\nExited with exit code 130.",
        [{"failure": "stopped"}, {"event": "process_terminated"}, {"failure": "stopped", "consequence": True},
         {"exit_code": 130}],
    ),
    "the cloud": (
        "TERM_RC: job killed by LSF when an LSF resource connector execution host is reclaimed by cloud.\n"
        "Exited with signal termination: 12.",
        [{"failure": "preempted"}, {"event": "process_terminated"}, {"consequence": True}, {"exit_code": -12}],
    ),
    "core dumped": (
        "Exited with signal termination: Segmentation fault, and core dumped.",
        [{"failure": "segfault"}, {"event": "process_exit", "exit_code": None}],
    ),
    "unknown status": ("Exited with unknown status 0400", [{"exit_code": None, "ends_attempt": True}]),
    "queued again": (
        "Job was killed by user or admin, and will be re-queued with the same jobid.",
        [{"failure": "stopped", "by": "lsf"}, {"event": "process_exit", "ends_attempt": True}],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("end", "expected"), ENDS.values(), ids=ENDS.keys())
@pytest.mark.parametrize("before", [True, False], ids=["behind its output", "before its output"])
def test_how_a_job_ended_is_told_behind_its_output(end: str, expected: list[dict[str, Any]], before: bool) -> None:
    """Once, at the time of the end; of the job's script nothing is read."""
    text = STEP + report(end) if before else report(end, output="follows:") + "\n" + STEP
    step, *reported = events(text)
    assert step["event"] == "engine_step"
    assert len(reported) == len(expected), reported
    for event, values in zip(reported, expected, strict=True):
        assert event["logged_at"] == ENDED
        assert {name: event.get(name) for name in values} == values


@pytest.mark.parametrize("cluster", [True, False])
def test_a_job_that_completed(cluster: bool) -> None:
    """The whole attempt has ended well."""
    (end,) = events(report("Successfully completed.", word="Done", cluster=cluster))
    assert (end["event"], end["exit_code"], end["ends_attempt"]) == ("process_exit", 0, True)


@pytest.mark.parametrize(("word", "code"), [("Exited", None), ("Done", 0)])
def test_a_report_that_was_cut_tells_how_it_ended(word: str, code: int | None) -> None:
    """The subject says it; live, once nothing has followed for a while."""
    text = report("Exited with exit code 1.", word=word)
    cut = text[: text.index("Results reported")]
    (end,) = events(cut)
    assert (end.get("exit_code"), end["ends_attempt"], end["logged_at"]) == (code, True, ENDED)
    reader = SourceReader()
    assert reader.feed(cut.encode()) == []
    assert reader.holds_back
    assert [to_fields(entry.event) for entry in reader.settle()] == [end]


def test_the_line_that_is_shown_says_how_it_ended() -> None:
    """The reason, how it ended, or the subject: not the summary's last line."""
    limit = "TERM_RUNLIMIT: job killed after reaching LSF run time limit."
    for end, cut, shown in (
        (f"{limit}\nExited with exit code 140.", None, limit),
        ("Exited with exit code 1.", None, "Exited with exit code 1."),
        ("Exited with exit code 1.", "Started at", "Subject: Job 4242: <gpt3> in cluster <summit> Exited"),
    ):
        text, reader = report(end), SourceReader()
        found = reader.feed(text[: text.index(cut) if cut else len(text)].encode()) + reader.flush()
        assert {entry.text for entry in found} == {shown}


def test_the_next_job_of_the_file_is_another_s() -> None:
    """Its report comes later, and what is read of its lines is its own."""
    first, second = (
        report("Exited with exit code 1.", output="follows:"),
        report("Successfully completed.", word="Done"),
    )
    found = events(first + STEP + STEP.replace("3", "4", 1) + second)
    assert [event.get("exit_code", event["event"]) for event in found] == ["engine_step", "engine_step", 1, 0]
    cut = report("")[: report("").index("Results reported")]
    assert [event["event"] for event in events(cut + STEP)] == ["process_exit", "engine_step"]


def test_a_sentence_of_its_own_is_read_without_the_report() -> None:
    """Cut in front, or quoted by a script."""
    (end,) = events("Exited with exit code 1.\n")
    assert (end["exit_code"], end["ends_attempt"]) == (1, True)
    assert events("Subject: Job offer in cluster computing\nSender: LSF System <x@y>\n") == []

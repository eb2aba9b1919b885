"""What ends a job stands behind the bar that was drawn last: the cursor was left at its end."""

import pytest

from tests.monitor.playing import Played, play

ENDS = {
    "slurmstepd: error: *** JOB 7 ON n01 CANCELLED AT 2026-04-02T14:06:10 DUE TO TIME LIMIT ***": "time_limit",
    "slurmstepd: error: *** JOB 7 ON n01 CANCELLED AT 2026-04-02T14:06:10 ***": "stopped",
    "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.": (
        "host_oom"
    ),
    "srun: error: n01: task 1: Segmentation fault (core dumped)": "segfault",
    "E0402 14:06:10.100000 42 torch/distributed/elastic/multiprocessing/api.py:833] failed (exitcode: -9) "
    "local_rank: 0 (pid: 43) of binary: /usr/bin/python": "killed",
    "Killed": "killed",
}  # fmt: skip
HEADING = (
    "[INFO|trainer.py:2519] 2026-04-02 14:00:00,714 >> ***** Running training *****\n"
    "[INFO|trainer.py:2524] 2026-04-02 14:00:00,714 >>   Total optimization steps = 400\n"
)
BARS = {
    "HF Trainer": (HEADING, "\r {0:2d}%|#   | {0}/400 [{1:02d}:{2:02d}<34:00,  6.00s/it]"),
    "torchtune": ("", "\r1|{0}|Loss: 1.{0:04d}:  {0}%|#   | {0}/400 [{1:02d}:{2:02d}<34:00,  6.00s/it]"),
    "NeMo": (
        "",
        "\rEpoch 0: :   {0}%|#   | {0}/400 [{1:02d}:{2:02d}<34:00, v_num=ab, reduced_train_loss=7.21, "
        "global_step={3}.00, consumed_samples={0}00.0, train_step_timing in s=6.01]",
    ),
}


def ended(program: str, text: str, steps: int = 60) -> Played:
    """So many steps of 6 s of the program, the text behind the last bar, and ten minutes of silence."""
    heading, bar = BARS[program]
    drawn = [(6.0 * step, bar.format(step, step // 10, step % 10 * 6, step - 1)) for step in range(steps + 1)]
    return play([(0.0, heading), *drawn, (6.0 * steps + 5.0, text + "\n")], after=600.0)


@pytest.mark.parametrize("program", BARS)
@pytest.mark.parametrize(("text", "cause"), ENDS.items(), ids=ENDS.values())
def test_the_last_words_are_read(program: str, text: str, cause: str) -> None:
    """Told once, by its cause, and after as many iterations as the bars tell."""
    played = ended(program, text)
    assert [told.evidence["failure"] for told in played.of("crash")] == [cause]
    assert played.state.iterations_total >= 59

"""Reports of trainers that are read as data: logs of ours in their formats, with what real ones print between steps."""

import json
from datetime import UTC, datetime

import pytest

from megatron_monitor.run.steps.watch import Stopwatch
from tests.monitor.playing import play
from tests.monitor.reports.test_report_cases import Report, report  # noqa: F401


def mllog(at: float, key: str, value: object, **metadata: object) -> str:
    """One line, as mlperf_logging prints it."""
    head = {"namespace": "", "time_ms": round(at * 1000), "event_type": "POINT_IN_TIME", "key": key}
    return ":::MLLOG " + json.dumps({**head, "value": value, "metadata": metadata}) + "\n"


def submission(seconds: float = 3.75, evaluation: float = 30.0, blocks: int = 4) -> list[tuple[float, str]]:
    """A submission that tells its steps at evaluations alone, 48 apart; the first comes after 192."""
    now = 1_755_477_365.5
    out = [(now, mllog(now, "global_batch_size", 8)), (now, mllog(now, "run_start", None))]
    count = 0
    for block in range(blocks):
        steps = 192 if block == 0 else 48
        count += 8 * steps
        now += seconds * steps
        out += [
            (now, mllog(now, "tracked_stats", {"throughput": 8 / seconds}, step=count)),
            (now, mllog(now, "block_stop", None, samples_count=count)),
            (now, mllog(now, "eval_start", None, samples_count=count)),
        ]
        now += evaluation
        out += [
            (now, mllog(now, "eval_accuracy", 0.94 - block / 100, samples_count=count)),
            (now, mllog(now, "eval_stop", None, samples_count=count)),
        ]
    return [*out, (now, mllog(now, "run_stop", None, samples_count=count, status="success"))]


def test_steps_told_at_evaluations_alone(report: Report) -> None:  # noqa: F811
    """AMD's and others' MLPerf logs: from evaluation to evaluation by the stamps, without the evaluation."""
    text = "".join(line for _, line in submission())
    row = report(text)
    assert (row["iterations"], row["global_batch_size"]) == (336, 8)
    assert row["seconds_per_iteration"] == pytest.approx(3.75, rel=1e-3)
    assert row["samples_per_second"] == pytest.approx(8 / 3.75, rel=1e-3)
    played = play(submission())
    assert played.kinds() == set()  # a mean of the first 192 steps is no budget for one
    assert played.state.productive_seconds == pytest.approx(336 * 3.75, rel=1e-3)


def test_an_evaluation_in_the_middle_is_not_left_out() -> None:
    """Where steps lie before the evaluation, its end is not where the next ones begin."""
    watch = Stopwatch()
    usual = {"disturbed": False, "alone": True, "stamped": True}
    assert watch.lap(48, 100.5, **usual) is None
    watch.pause(145.5)
    assert not watch.go_on(175.5)
    assert watch.lap(96, 310.5, **usual) == (210.0 / 48, 48)
    watch.pause(310.5)
    assert watch.go_on(340.5)
    assert watch.lap(144, 520.5, **usual) == (180.0 / 48, 48)


def stamped(at: float) -> str:
    """As Python's logging prints it."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def fairseq(epochs: int = 12) -> list[tuple[float, str]]:
    """Epochs of 282 updates with an evaluation and a save behind each: its rates count both as training."""
    at = last = 1_686_677_421.0
    out: list[tuple[float, str]] = []
    update = before = 0

    def line(text: str) -> None:
        out.append((at, f"{stamped(at)} | INFO | {text}\n"))

    for epoch in range(1, epochs + 1):
        line(f"fairseq.trainer | begin training epoch {epoch}")
        for index in range(1, 283):
            at, update = at + 0.457, update + 1
            if update % 100 == 0:
                rate = 60_000.0 * (update - before) / (at - last)
                line(
                    f"train_inner | epoch {epoch:03}:  {index:5} / 282 loss=3.1, ppl=8.9, wps={rate:.6g}, "
                    f"ups={rate / 60_000:.3g}, wpb=60000.4, bsz=2141.4, num_updates={update}, lr=0.0001, gnorm=0.5, "
                    "clip=0, loss_scale=32768, train_wall=46, wall=0"
                )
                last, before = at, update
        line('fairseq_cli.train | begin validation on "valid" subset')
        at += 3.0
        line(
            f"valid | epoch {epoch:03} | valid on 'valid' subset | loss 12.6 | wps 88225 | wpb 21176.3 | bsz 666.3 "
            f"| num_updates {update} | best_bleu 30.53"
        )
        line("fairseq_cli.train | begin save checkpoint")
        at += 12.0
        line(
            f"fairseq.checkpoint_utils | saved checkpoint /ckpt/checkpoint{epoch}.pt (epoch {epoch} @ {update} "
            "updates, score 29.52) (writing took 12.2366 seconds)"
        )
    line("fairseq_cli.train | done training in 1730.1 seconds")
    return out


def test_fairseq(report: Report) -> None:  # noqa: F811
    """A line's rates hold what lies between its updates; a save that names no update when it begins has its end."""
    row = report("".join(line for _, line in fairseq()))
    assert (row["iterations"], row["last_iteration"], row["restarts"]) == (3300, 3300, 0)
    assert row["seconds_per_iteration"] == pytest.approx(0.457, rel=0.01)
    played = play(fairseq())
    assert played.kinds() == set()
    assert (played.state.past.checkpoints.last_iteration, played.state.past.checkpoints.saves) == (12 * 282, 12)
    assert played.state.launch.phase == "finished"


def paddle() -> str:
    """PaddleNLP's Trainer of 2022: HF Trainer's words behind its own logger, and a rate ten times too small."""
    at, out = 1_661_962_753.0, []

    def line(text: str) -> None:
        out.append(f"[{stamped(at)},747] [    INFO] - {text}\n")

    line("***** Running training *****")
    line("  Total train batch size (w. parallel, distributed & accumulation) = 8")
    line("  Total optimization steps = 37800.0")
    aside = 0.0
    for step in range(10, 410, 10):
        took, aside = 1.55 + aside, 0.0
        at += took
        line(
            f"loss: {3 / step + 2:.8f}, learning_rate: 2.99e-05, global_step: {step}, interval_runtime: {took:.4f}, "
            f"interval_samples_per_second: {8 / took:.3f}, interval_steps_per_second: {10 / took:.3f}, epoch: 0.0265"
        )
        if step % 100 == 0:
            line("***** Running Evaluation *****")
            line("  Total prediction steps = 43")
            line("eval_loss: 2.104, eval_accuracy: 0.4996, eval_runtime: 12.0756, epoch: 0.2646")
            line(f"Saving model checkpoint to ./checkpoints/checkpoint-{step}")
            aside = 18.14
    line("train_runtime: 151.3261, train_samples_per_second: 891.178, train_loss: 2.1, epoch: 2.6")
    return "".join(out)


def test_paddlenlp(report: Report) -> None:  # noqa: F811
    """Evaluation and saves are in the time of the next line; its batch size tells the rate."""
    row = report(paddle())
    assert (row["iterations"], row["train_iterations"], row["global_batch_size"]) == (400, 37800, 8)
    assert row["seconds_per_iteration"] == pytest.approx(0.155, rel=0.01)
    assert row["samples_per_second"] == pytest.approx(51.6, rel=0.01)
    assert row["outcome"] == "ok"

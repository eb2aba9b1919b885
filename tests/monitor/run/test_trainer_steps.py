"""Which bar of HF Trainer's log is the training's, where no heading says it; steps that only epochs tell."""

import pytest

from megatron_monitor.run.phases import ENDED
from tests.monitor.playing import Played, Playing, play


def bar(step: int, total: int, seconds: float, began: int = 0) -> str:
    """One drawing of a bar of so many seconds a step, whose process began behind step `began`."""
    ran = round((step - began) * seconds)
    return (
        f"\r {step * 100 // total:2d}%|#  | {step}/{total} [{ran // 60:02d}:{ran % 60:02d}<34:00, {seconds:5.2f}s/it]\r"
    )


def bars(total: int, seconds: float, begin: float = 0.0, last: int | None = None) -> list[tuple[float, str]]:
    """All drawings of a bar, each at its instant."""
    return [(begin + seconds * step, bar(step, total, seconds)) for step in range(1, (last or total) + 1)]


def dicts(
    every: int, total: int, begin: float = 0.0, seconds: float = 6.0, prefix: str = ""
) -> list[tuple[float, str]]:
    """Its metric dicts, two epochs in all."""
    return [
        (begin + seconds * step, f"{prefix}{{'loss': 1.9, 'learning_rate': 1e-05, 'epoch': {2 * step / total:.2f}}}\n")
        for step in range(every, total + 1, every)
    ]


def kinds(played: Played) -> list[str]:
    """What was told, worth a look."""
    return [item.incident for item in played.reported if item.severity != "info"]


def test_a_bar_without_a_heading_is_a_training_within_minutes() -> None:
    """From its first drawing on; a dict that comes late changes nothing."""
    early = play(bars(400, 6.0, last=21))
    assert early.state.proven
    assert (early.state.iterations_total, early.state.attempt.train_iterations) == (21, 400)
    played = play([*bars(400, 6.0, last=399), (2399.0, dicts(10, 400)[0][1])])
    assert (played.state.iterations_total, played.state.restarts, kinds(played)) == (399, 0, [])


@pytest.mark.parametrize("heading", ["***** Running Prediction *****", "[3/4] Running inference on 400 images..."])
def test_a_bar_behind_a_heading_of_inference_is_no_training(heading: str) -> None:
    """Without the heading the same bar is one."""
    played = play([(0.0, heading + "\n"), *bars(400, 6.0)], 3600.0)
    assert (played.state.iterations_total, kinds(played)) == (0, [])


def test_an_evaluation_amid_a_bar_takes_nothing_of_it() -> None:
    """No dict comes, as in a job's .err, and each 15 steps another bar: all of its steps count once it is believed."""
    drawn, late = [], 0.0
    for at, line in bars(400, 6.0, last=60):
        drawn.append((at + late, line))
        if round(at) % 90 == 0:
            drawn += bars(8, 1.0, at + late)
            late += 8.0
    played = play(drawn)
    assert (played.state.iterations_total, played.state.attempt.train_iterations, kinds(played)) == (60, 400, [])


@pytest.mark.parametrize(("total", "seconds"), [(200, 0.08), (9_000, 0.08), (9_000, 0.5)])
def test_dicts_behind_all_bars_tell_that_they_were_the_training(total: int, seconds: float) -> None:
    """As where a job's .out is read when its .err was: each step counts, and how long one took is known."""
    played = play([*bars(total, seconds), *dicts(total // 10, total, seconds * total, 0.0)])
    assert (played.state.iterations_total, kinds(played)) == (total, [])
    assert total == 200 or played.state.attempt.pure_seconds == pytest.approx(seconds, rel=0.05)


def test_the_last_steps_of_one_file_are_read_behind_the_end_in_the_other() -> None:
    """The final dict stands in a job's .out, bars and the last save in its .err: both are read at one instant."""
    drawn, playing = bars(600, 0.3), Playing()
    end = dicts(600, 600, 180.0, 0.0)[0][1] + "{'train_runtime': '180.1', 'train_loss': '3.5', 'epoch': '2'}\n"
    shards = "\nWriting model shards: 100%|##########| 1/1 [00:00<00:00, 278.86it/s]\n"
    playing.feed(drawn[:-3])
    playing.feed([(180.0, end)], "out")
    playing.feed([*((180.0, text) for _, text in drawn[-3:]), (180.1, shards)])
    played = playing.end(20_000.0)
    assert (played.state.attempt.phase, played.state.iterations_total, kinds(played)) == ("finished", 600, [])


def test_a_bar_that_is_too_fast_or_too_short_is_none() -> None:
    """Texts that are tokenised, shards that are read."""
    assert not play(bars(40_000, 0.1, last=5000)).state.proven
    assert not play(bars(8, 14.0)).state.proven


def test_what_a_heading_proves_to_be_no_training_is_withdrawn() -> None:
    """Three minutes of preparing data, then the training: no restart, and nothing of it in the totals."""
    heading = "***** Running training *****\n  Num Epochs = 2\n  Total optimization steps = 400\n"
    played = play([*bars(30, 6.0), (190.0, "\n" + heading), *bars(400, 6.0, 190.0, last=100)])
    assert (played.state.iterations_total, played.state.restarts, kinds(played)) == (100, 0, [])
    assert played.state.productive_seconds < 601.0


def test_of_two_bars_without_a_heading_the_last_is_the_training() -> None:
    """The first has come to its end: it was another one's."""
    played = play([*bars(30, 6.0), *bars(400, 6.0, 190.0, last=100)])
    assert (played.state.iterations_total, played.state.attempt.train_iterations, kinds(played)) == (100, 400, [])


def test_a_dict_tells_its_step_by_its_epoch() -> None:
    """LLaMA-Factory's running_log.txt: the heading says of how many steps and epochs; pace by the stamps."""
    prefix = "[INFO|2026-04-02 14:00:00] logging.py:157 >> "
    heading = (
        f"{prefix}***** Running training *****\n{prefix}  Num Epochs = 2\n{prefix}  Total optimization steps = 400\n"
    )
    stamped = [
        (at, text.replace("14:00:00", f"14:{int(at) // 60:02d}:{int(at) % 60:02d}"))
        for at, text in dicts(10, 400, prefix=prefix)
    ]
    played = play([(0.0, heading), *stamped])
    assert (played.state.iterations_total, played.state.attempt.last_iteration, kinds(played)) == (400, 400, [])
    assert played.state.attempt.pure_seconds == 6.0


def test_the_time_so_far_beside_each_loss_is_no_end() -> None:
    """`include_num_input_tokens_seen` writes `train_runtime` into each step's dict; the summary has no step's loss."""
    reported = "{{'loss': '4.{0}', 'learning_rate': '0.0009', 'epoch': '0.0{0}', 'train_runtime': '{0}.9'}}\n"
    lines = [(float(number), reported.format(number)) for number in range(1, 10)]
    assert play(lines).state.attempt.phase not in ENDED
    end = (10.0, "{'train_runtime': '10.1', 'train_loss': '4.1', 'epoch': '0.1'}\n")
    assert play([*lines, end]).state.attempt.phase == "finished"


HEADING = "***** Running training *****\n  Num Epochs = 2\n  Total optimization steps = 40\n"
EVALUATES = (
    "\n[INFO|trainer.py:4643] 2026-01-01 15:46:38,959 >> \n***** Running Evaluation *****\n  Num examples = 96\n"
)
SUMMARY = "{'train_runtime': 240.0, 'train_samples_per_second': 1.1, 'train_loss': 0.8, 'epoch': 2.0}\n"


def evaluation(begin: float, seconds: float = 2.0, total: int = 48) -> list[tuple[float, str]]:
    """Its heading and its bar."""
    return [(begin, EVALUATES), *bars(total, seconds, begin)]


def test_what_is_evaluated_behind_the_end_of_a_training_does_not_take_the_end_back() -> None:
    """A heading, its bar and its result, behind the final dict: the training is finished and not watched."""
    end = [(242.0, SUMMARY), *evaluation(250.0), (350.0, "{'eval_loss': 0.7, 'eval_runtime': 96.0, 'epoch': 2.0}\n")]
    played = play([(0.0, HEADING), *bars(40, 6.0), *end])
    assert (played.state.attempt.phase, played.state.iterations_total, kinds(played)) == ("finished", 40, [])


def test_the_sentence_that_a_training_is_completed_is_its_end() -> None:
    """As the running_log.txt of LLaMA-Factory ends: steps are missing, and an evaluation has a heading alone."""
    done = "Training completed. Do not forget to share your model on huggingface.co/models =)\n"
    end = [(235.0, f"\n\n{done}"), (236.0, EVALUATES)]
    played = play([(0.0, HEADING), *bars(40, 6.0, last=39), *end], after=160.0)
    assert (played.state.attempt.phase, kinds(played)) == ("finished", [])
    stands = play([(0.0, HEADING), *bars(40, 6.0, last=39)], after=160.0)
    assert (stands.state.attempt.phase, stands.kinds()) == ("training", {"hang"})


def test_the_heading_of_an_evaluation_comes_before_its_bar() -> None:
    """The phase is known at once; the steps behind it are the training's; one that moves no more hangs in it."""
    before = [(0.0, HEADING), *bars(40, 6.0, last=20)]
    assert play([*before, (121.0, EVALUATES)]).state.attempt.phase == "evaluating"
    later = [(at + 100.0, text) for at, text in bars(40, 6.0)[20:]]
    played = play([*before, *evaluation(121.0), *later])
    assert (played.state.iterations_total, kinds(played)) == (40, [])
    stands = play([*before, *evaluation(121.0)[:10]], after=7200.0)
    assert (stands.state.attempt.phase, stands.kinds()) == ("evaluating", {"hang"})


def save(at: float, step: int) -> tuple[float, str]:
    """HF Trainer's line: it prints none when the save is over."""
    return at, f"\n[INFO|trainer.py:4309] 2026-01-01 16:40:51,678 >> Saving model checkpoint to out/checkpoint-{step}\n"


def test_a_save_of_the_trainer_is_whole_with_the_next_step() -> None:
    """Or with the final dict; the model that is saved at the end is no checkpoint."""
    lines = [(0.0, HEADING), *bars(40, 6.0, last=20), save(121.0, 20)]
    checkpoints = play(lines).state.learned.checkpoints
    assert (checkpoints.saves, checkpoints.last_iteration) == (0, None)
    rest = [(at + 10.0, text) for at, text in bars(40, 6.0)[20:]]
    played = play([*lines, *rest])
    checkpoints = played.state.learned.checkpoints
    assert (checkpoints.saves, checkpoints.last_iteration, kinds(played)) == (1, 20, [])
    model = (262.0, "\nSaving model checkpoint to out\n")
    checkpoints = play([*lines, *rest, save(251.0, 40), (260.0, SUMMARY), model]).state.learned.checkpoints
    assert (checkpoints.saves, checkpoints.last_iteration) == (2, 40)


def test_a_save_under_deepspeed_is_whole_when_it_is_ready() -> None:
    """Four ranks say so, a step of 96 s follows: no hang, one save."""
    file = (
        "[2026-01-01 16:40:52,931] [INFO] [torch_checkpoint_engine.py:21:save] [Torch] Saving out/global_step20/a.pt\n"
    )
    ready = (
        "[2026-01-01 16:40:53,080] [INFO] [torch_checkpoint_engine.py:33:commit] [Torch] Checkpoint global_step20 is "
        "ready now!\n"
    )
    begun = [(0.0, HEADING), *bars(40, 96.0, last=20), save(1921.0, 20), (1922.0, file)]
    lines = [*begun, *((1923.0, ready) for _ in range(4))]
    assert (play(begun).state.attempt.phase, play(lines).state.attempt.phase) == ("saving", "training")
    played = play([*lines, *((at + 5.0, text) for at, text in bars(40, 96.0)[20:])])
    assert (played.state.learned.checkpoints.saves, played.state.learned.checkpoints.last_iteration) == (1, 20)
    assert kinds(played) == []


def test_files_of_a_first_save_do_not_say_how_long_the_largest_takes() -> None:
    """Two of a second each, then 94 s for the optimizer's."""
    file = "[2026-01-01 16:40:52,931] [INFO] [engine.py:21:save] [Torch] Saving out/global_step20/{}.pt\n"
    lines = [(0.0, HEADING), *bars(40, 6.0, last=20), save(121.0, 20), (122.0, file.format(1)), (123.0, file.format(2))]
    assert kinds(play([*lines, *((at + 100.0, text) for at, text in bars(40, 6.0)[20:])])) == []


def test_a_bar_that_goes_on_from_a_checkpoint_has_the_pace_of_its_own_steps() -> None:
    """465 steps were passed over: the first one took 72 s, not 0.15."""
    resumed = "  Continuing training from global step 465\n"
    first = "\r 50%|#  | 466/932 [01:12<01:12,  6.42it/s]\r"
    lines = [(0.0, HEADING.replace("40", "932") + resumed), (72.0, first)]
    assert play(lines).state.attempt.first_iteration_seconds == 72.0
    assert kinds(play([*lines, (170.0, "\r 50%|#  | 467/932 [02:50<01:12,  6.42it/s]\r")])) == []


def test_a_bar_that_moves_before_the_first_step_is_no_hang() -> None:
    """An epoch's own bar, of another total and name; one that stands still is one."""
    moving = [(at, text.replace("\r ", "\rIteration: ")) for at, text in bars(4000, 3.0)[::50]]
    assert kinds(play([(0.0, HEADING), *moving])) == []
    assert play([(0.0, HEADING), *moving[:9]], after=20_000.0).kinds() == {"hang"}


def test_silence_of_a_log_that_no_line_has_proved_a_training_means_nothing() -> None:
    """A server that loads a model draws bars too."""
    assert kinds(play(bars(8, 3.0), after=20_000.0)) == []


@pytest.mark.parametrize(("last", "reported"), [(200, []), (201, ["hang"])])
def test_a_loop_that_prints_its_bar_alone_may_evaluate_at_the_end_of_an_epoch(last: int, reported: list[str]) -> None:
    """Of five epochs of 200 steps; five minutes behind any other step are a hang."""
    drawn = [(at + 300.0 * (at > 6.0 * last), line) for at, line in bars(1000, 6.0, last=230)]
    assert kinds(play(drawn))[:1] == reported


def test_a_bar_of_fast_steps_between_evaluations_has_a_pace() -> None:
    """No heading, 3 steps a second, an evaluation each 40 steps: no stretch is as long as whole seconds need, several
    are. The steps before the first dict count; while the pace is unknown, silence is measured by the most a step takes.
    """
    drawn, begin = [], 0.0
    for first in range(0, 160, 40):
        for step in range(first + 1, first + 41):
            ran = int(begin + 0.3 * (step - first))
            line = f"\r {step * 100 // 160:2d}%|#  | {step}/160 [{ran // 60:02d}:{ran % 60:02d}<00:40,  3.20it/s]\r"
            drawn.append((begin + 0.3 * (step - first), line))
            if step == 5:
                drawn.append((begin + 1.5, "\n{'loss': '4.466', 'grad_norm': '1.054', 'epoch': '0.01'}\n"))
        begin += 12.0
        drawn += [(begin + 0.2 * batch, bar(batch, 10, 0.2)) for batch in range(1, 11)]
        begin += 2.0
        drawn.append((begin, f"\n{{'eval_loss': '4.46', 'eval_runtime': '2.0', 'epoch': '{(first + 40) / 1000}'}}\n"))
    played = play(drawn)
    assert (played.state.iterations_total, kinds(played)) == (160, [])
    assert played.state.attempt.pure_seconds == pytest.approx(0.3, rel=0.07)
    stands = play([item for item in drawn if item[0] < 22.0], after=300.0)
    assert (stands.kinds(), stands.firing("hang").time - drawn[0][0] < 100.0) == ({"hang"}, True)


def test_the_bar_of_a_checkpoints_files_is_a_save_and_no_training() -> None:
    """Version 5 without bars of its own: the dicts name neither step nor total, an evaluation is silent."""
    lines = [(5.0 * i, f"{{'loss': '4.4', 'grad_norm': '1.0', 'epoch': '{i / 100}'}}\n") for i in range(1, 41)]
    shards = "\nWriting model shards:   0%|          | 0/1 [00:00<?, ?it/s]"
    shards += "\rWriting model shards: 100%|##########| 1/1 [00:00<00:00,  7.37it/s]\n"
    lines += [(101.0, shards), (141.0, "{'eval_loss': '4.4', 'eval_runtime': '40.0', 'epoch': '0.2'}\n")]
    played = play(sorted(lines), after=5400.0)
    assert (played.state.iterations_total, played.state.attempt.train_iterations) == (40, None)
    assert played.state.learned.checkpoints.saves == 1
    assert played.firing("hang").time - 200.0 < 300.0


def test_reports_without_a_step_count_one_by_one() -> None:
    """A copy counts as none. Their pace is known; a bar that comes later continues the count."""
    stamps = [f"2026-04-02 14:{i:02d}:00" for i in range(40)]
    logger = [(60.0 * i, f"DLL {stamp}.000007 - loss : {3 - i / 100}  lr : 1e-05 \n") for i, stamp in enumerate(stamps)]
    played = play([(at, line * 2) for at, line in logger], 300.0)
    assert (played.state.iterations_total, played.state.attempt.pure_seconds) == (40, pytest.approx(60.0))
    assert played.kinds() == {"hang"}
    played = play([(at, line * 2) for at, line in dicts(10, 400)])
    assert played.state.iterations_total == 40
    played = play([*dicts(10, 400), (2401.0, "\n"), *bars(400, 6.0, 2402.0)])
    assert played.state.iterations_total == 400


def test_a_launch_without_a_heading_begins_behind_the_crash_of_the_one_before() -> None:
    """Its bar is at 0 anew and goes on behind the checkpoint; the save before had ended with the next step."""
    shards = "\nWriting model shards:   0%|          | 0/1 [00:00<?, ?it/s]"
    crash = (
        'Traceback (most recent call last):\n  File "train.py", line 35, in <module>\n    trainer.train()\n'
        "RuntimeError: shape '[8, 512]' is invalid for input of size 12\n"
    )
    first = [*bars(400, 6.0, last=70), (240.5, shards), (30.5, dicts(5, 400)[0][1]), (421.0, "\n" + crash)]
    again = [(440.0 + 6.0 * (step - 40), bar(step, 400, 6.0, 40)) for step in range(41, 121)]
    anew = [(430.0, "\n  0%|   | 0/400 [00:00<?, ?it/s]"), *again]
    played = play([*sorted(first), *anew])
    assert (played.state.restarts, played.state.lost_iterations_total, played.state.attempt.last_iteration) == (
        1,
        30,
        120,
    )
    assert set(kinds(played)) == {"crash"}

"""Which bar of HF Trainer's log is the training's, where no heading says it; steps that only epochs tell."""

from __future__ import annotations

from tests.monitor.playing import Played, play


def bar(step: int, total: int, seconds: float) -> str:
    """One drawing of a bar of so many seconds a step."""
    ran = round(step * seconds)
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
    return [item.incident for item in played.told if item.severity != "info"]


def test_a_bar_without_a_heading_is_a_training_within_minutes() -> None:
    """From its first drawing on; a dict that comes late changes nothing."""
    early = play(bars(400, 6.0, last=21))
    assert early.state.proven
    assert (early.state.iterations_total, early.state.launch.train_iterations) == (21, 400)
    played = play([*bars(400, 6.0, last=399), (2399.0, dicts(10, 400)[0][1])])
    assert (played.state.iterations_total, played.state.restarts, kinds(played)) == (399, 0, [])


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
    assert (played.state.iterations_total, played.state.launch.train_iterations, kinds(played)) == (100, 400, [])


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
    assert (played.state.iterations_total, played.state.launch.last_iteration, kinds(played)) == (400, 400, [])
    assert played.state.launch.pure_seconds == 6.0

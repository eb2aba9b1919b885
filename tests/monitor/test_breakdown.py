"""Where an iteration's time goes: timers read in every form, and the cause of a slowdown named from them alone."""

import re
from pathlib import Path
from typing import get_args

import pytest

from megatron_monitor.breakdown import saves
from megatron_monitor.breakdown.account import TimerLine, TimerReports
from megatron_monitor.breakdown.attribution import Cause, attribute
from megatron_monitor.breakdown.profile import profile, split
from megatron_monitor.incidents import Transition
from megatron_monitor.parsers.events import TimersReported
from megatron_monitor.parsers.reader import SourceReader
from megatron_monitor.simulate import Fault, Scenario, timeline
from tests.monitor.playing import Played, fault, healthy, play, texts
from tests.simulated import printed

LEVEL_2 = {
    "forward-backward": (1.50, 1.52), "forward-compute": (0.40, 0.50), "backward-compute": (0.80, 0.90),
    "batch-generator": (0.01, 0.02), "all-grads-sync": (0.10, 0.12), "optimizer": (0.10, 0.10),
    "optimizer-inner-step": (0.05, 0.05),
}  # fmt: skip
SMALL = {"world_size": 16, "tp": 1, "pp": 1, "global_batch_size": 256, "layers": 24, "hidden": 2048, "heads": 16}


def training(kind: str, form: str, *, every: int = 1, **more: object) -> Played:
    """240 iterations of 2 s whose 120th begins a fault of 5 %, with timers in `form`; none without a `kind`."""
    format_name = {"one": "megatron-lm-2021", "engine": "microsoft"}.get(form, "megatron-lm")
    faults = (Fault(kind, 120),) if kind else ()
    sizes = SMALL | more
    settings = {"inner": printed(form, every), "seed": 2, "iterations": 240, "save_interval": 0}
    scenario = Scenario(format=format_name, seconds_per_iteration=2.0, faults=faults, **settings, **sizes)  # type: ignore[arg-type]
    return play(texts(scenario))


def test_blocks_of_all_forms() -> None:
    """The least and the most, the most alone, and each rank's, behind a launcher's prefix; the lines after a block are
    read as ever.
    """
    text = (
        "(min, max) time across ranks (ms):\n"
        "    all-grads-sync .................................: (14.98, 15.22)\n"
        "max time across ranks (ms):\n"
        "    forward-compute ................................: 4715.22\n"
        "[default7]:times across ranks (ms):\n"
        "[default7]:  backward-compute:\n[default7]:     rank  0: 306.62\n[default7]:     rank 11: 316.62\n"
        "[default7]:  odd/name of a fork:\n[default7]:     rank  0: 1.50\n"
        "saving checkpoint at iteration      50 to /ckpt\n"
    )
    events = [entry.event for entry in SourceReader().feed(text.encode())]
    timers = [event for event in events if isinstance(event, TimersReported)]
    assert [event.timers for event in timers] == [
        {"all-grads-sync": (0.01498, 0.01522)}, {"forward-compute": (4.71522, 4.71522)},
        {"backward-compute": (0.30662, 0.31662)}, {"odd/name of a fork": (0.0015, 0.0015)},
    ]  # fmt: skip
    assert [event.across for event in timers] == ["range", "maximum", "range", "range"]
    assert timers[2].ranks == {0: 0.30662, 11: 0.31662}
    assert len(events) == 5


def test_a_part_is_counted_once() -> None:
    """The batch is taken inside the forward pass, the optimizer's steps are its own; an unknown timer is `other`."""
    parts = split(LEVEL_2 | {"fancy-router": (0.1, 0.2)})
    assert parts["data"] == (0.01, 0.02)
    assert parts["compute"] == pytest.approx((1.19, 1.38))
    assert parts["optimizer"] == (0.10, 0.10)
    assert parts["other"] == (0.1, 0.2)


def test_an_engine_that_reports_the_sum_of_ten_steps() -> None:
    """DeepSpeed's timers are those of one iteration, whether each step's are printed or their sum."""
    account = TimerReports()
    for _ in range(10):
        account.take(TimersReported(speaker="deepspeed", timers={"optimizer_allgather": (1.5, 1.5)}), True)
    whole = {"fwd": (23.0, 23.0), "bwd": (68.0, 68.0), "step": (17.0, 17.0), "fwd_microstep": (23.0, 23.0)}
    account.take(TimersReported(speaker="deepspeed", timers=whole), True)
    account.close(30, 12.9, 10)
    account.close(40, 12.9, 10)
    assert account.last is not None
    assert account.last.iteration == 40
    assert {name: round(duration, 6) for name, (duration, _) in account.last.timers.items()} == {
        "optimizer_allgather": 1.5, "fwd": 2.3, "bwd": 6.8, "step": 1.7,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "form", "cause", "scope"),
    [
        ("slow_data", "range", "data", "all"),
        ("slow_network", "range", "network", "all"),
        ("slow_rank", "range", "slow_rank", "one"),
        ("slow_gpu_clocks", "range", "compute", "all"),
        ("slow_rank", "ranks", "slow_rank", "one"),
        ("slow_rank", "one", "communication", "unknown"),  # the printing rank waits: for the network, or for another
        ("slow_data", "engine", "outside_timers", "unknown"),  # DeepSpeed has no timer of it
        ("slow_rank", "passes", "unknown", "all"),  # it is somewhere in the pass
    ],
)
def test_the_cause_is_told(kind: str, form: str, cause: str, scope: str) -> None:
    """As soon as it is seen, as far as this form of timers can tell it; and so with the first notification."""
    played = training(kind, form)
    reported, shown = played.firing("slowdown"), played.shown("slowdown")
    for item in (shown, reported):
        assert (item.evidence["cause"], item.evidence["cause_scope"]) == (cause, scope)
        assert "of it in" in item.summary
    assert shown.iteration is not None
    assert shown.iteration <= 127
    if form == "ranks":
        assert reported.evidence["cause_rank"] == 2
        assert "on rank 2, the others wait for it" in reported.summary


def test_a_slow_rank_of_a_stage_that_others_hide() -> None:
    """The most over all ranks does not grow, as the last stage has more to do; the rank is named by its own times."""
    found = training("slow_rank", "ranks", pp=2).firing("slowdown").evidence
    assert (found["cause"], found["cause_rank"]) == ("slow_rank", 2)


def test_timers_of_every_tenth_line_tell_it_later() -> None:
    """Not when it is first seen: nothing is guessed; once three lines with timers have come, as they have when told."""
    played = training("slow_data", "range", every=10)
    assert played.shown("slowdown").evidence["cause"] == "unknown"
    assert played.firing("slowdown").evidence["cause"] == "data"
    found = played.state.memory_of["slowdown"].shift.cause.found
    assert (found.cause, found.scope) == ("data", "all")


@pytest.mark.parametrize(
    ("format_name", "words", "others"),
    [
        ("megatron-lm", "at the next restart --timing-log-level 2 (", "wall_clock_breakdown"),
        ("bigscience", '"wall_clock_breakdown": true in DeepSpeed\'s configuration', "--timing-log-level"),
        ("gpt-neox", '"wall_clock_breakdown": true in its configuration', "--timing-log-level"),
        ("hf-trainer", "HF Trainer has none; DeepSpeed under it has", "--timing-log-level"),
        ("torchtitan", "metrics.enable_tensorboard", "--timing-log-level"),
        ("nemo", "NsysCallback", "wall_clock_breakdown"),
    ],
)
def test_without_timers_it_says_how_to_get_them(format_name: str, words: str, others: str) -> None:
    """From the program that wrote the log, in its own words, and names no cause."""
    reported: Transition = fault(
        "slowdown",
        120,
        iterations=150,
        format=format_name,
        seconds_per_iteration=60.0,
        factor=1.3,
        save_interval=0,
        **SMALL,
    ).firing("slowdown")
    assert reported.evidence["cause"] == "unknown"
    assert "the log has no timers that show the cause: " in reported.summary
    assert words in reported.summary
    assert others not in reported.summary


def lines(timers: dict[str, tuple[float, float]], seconds: float, first: int = 1, count: int = 20) -> list[TimerLine]:
    """Lines that all say the same."""
    return [TimerLine(first + index, seconds, timers, "range") for index in range(count)]


@pytest.mark.parametrize(
    "slower",
    [
        LEVEL_2,  # none grew
        LEVEL_2 | {"batch-generator": (0.06, 0.07), "all-grads-sync": (0.15, 0.17)},  # two by a half each
        LEVEL_2 | {"forward-compute": (9.0, 9.1)},  # by more than the iteration did
        {"forward-compute": (0.40, 0.50)},  # most are missing all at once
        {"fancy-router": (0.1, 0.2)},
        {},
    ],
)
def test_timers_that_do_not_explain_it_name_nothing(slower: dict[str, tuple[float, float]]) -> None:
    """An unknown cause is said to be unknown."""
    before, during = profile(lines(LEVEL_2, 1.65)), profile(lines(slower, 1.75, 100))
    assert before is not None
    assert during is not None
    found = attribute(before, during)
    assert found.cause in ("unknown", "outside_timers")
    assert found.cause == ("outside_timers" if slower is LEVEL_2 else "unknown")


@pytest.mark.parametrize("format_name", ["megatron-lm", "bigscience", "deepspeed"])
def test_saves_that_take_longer_are_told(format_name: str) -> None:
    """After the third, whether the loop's clock runs during a save or not, or no line tells of its end; saves that only
    vary are none.
    """
    sizes: dict[str, object] = {"seconds_per_iteration": 10.0, "save_interval": 50, "save_seconds": 20.0} | SMALL
    slow = fault("slow_save", 520, iterations=800, format=format_name, **sizes).firing("slowdown")
    assert (slow.evidence["cause"], slow.onset_iteration) == ("checkpoint", 550)
    assert slow.evidence["ratio"] == pytest.approx(1.048, abs=0.003)
    varied = [20.0, 26.0, 18.0, 31.0, 22.0, 24.0, 39.0, 44.0, 30.0, 47.0, 45.0, 38.0]
    for count in range(1, len(varied) + 1):
        duration = {50 * (index + 1): seconds for index, seconds in enumerate(varied[:count])}
        assert saves.updated(None, duration, 10.0, 0.0, 0.02) is None


def test_a_hang_says_what_the_pace_said_before() -> None:
    """The network had become slower; then it stood still."""
    faults = (Fault("slow_network", 120), Fault("hang", 150))
    scenario = Scenario(format="megatron-lm", inner=printed("range"), iterations=200, save_interval=0, faults=faults,
                        seconds_per_iteration=2.0, **SMALL)  # type: ignore[arg-type] # fmt: skip
    reported = play(texts(scenario), after=600).firing("hang")
    assert "before it iterations had taken +4.8 % since iteration 120" in reported.summary
    assert "communication on all ranks" in reported.summary


def test_launches_at_locked_clocks() -> None:
    """An attempt that is slower by as much as its GPUs' clocks are lower: that is the cause, and it is compute."""
    locked = "".join(f"GPU {gpu} locked to {{}} MHz\n" for gpu in range(8))
    text: list[tuple[float, str]] = []
    at = 0.0
    for attempt, (clock, seconds) in enumerate(((1050, 16.8), (967, 18.2))):
        texts_of = timeline(Scenario(format="microsoft", iterations=50, seconds_per_iteration=seconds, noise=0.002,
                                     save_interval=0, seed=attempt, **SMALL))  # type: ignore[arg-type] # fmt: skip
        text.append((at, locked.format(*[clock] * 8)))
        text += [(at + emission.at, emission.text) for emission in texts_of]
        at = text[-1][0] + 60
    reported = play(text).firing("slowdown")
    assert (reported.evidence["cause"], reported.evidence["gpu_clock_mhz"]) == ("compute", [1050, 967])
    assert "the GPU clocks explain it: locked to 967 MHz, 1050 MHz before, 1.086 x" in reported.summary


def test_the_runbook_has_a_section_for_each_cause() -> None:
    """Whoever is told of a cause finds what to do."""
    runbook = (Path(__file__).parents[2] / "deploy" / "runbook.md").read_text()
    sections = re.findall(r"^#### (\w+)$", runbook, re.MULTILINE)
    assert sorted(sections) == sorted(get_args(Cause))


def test_where_a_step_of_reinforcement_learning_goes() -> None:
    """Rollout, scoring, training and handing the weights over, as shares of the step."""
    state = healthy(250, format="verl", seconds_per_iteration=20.0, inner=printed("verl")).state
    parts = state.attempt.timers.last.timers
    assert set(parts) == {"rollout", "reference", "reward", "train", "sync"}
    assert parts["rollout"][1] == pytest.approx(11.0, rel=0.05)
    assert sum(high for _, high in parts.values()) == pytest.approx(20.0, rel=0.05)

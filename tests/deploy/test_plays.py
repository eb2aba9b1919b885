"""What people are told of a course of events, from the log's line to the phone: plays on a stage (stage.py).

All plays of a module's stage run at once, each with a monitor of its own. A play acts and waits; what the phone and the
chat had of it is asserted when all have ended.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Event

import pytest

from tests.deploy.stage import Play, Stage, played, stage

pytestmark = [pytest.mark.e2e, pytest.mark.prometheus]

DISK_FULL = (
    "saving checkpoint at iteration {:7d} to /ckpt\n"
    "Traceback (most recent call last):\n"
    '  File "/x/train.py", line 10, in <module>\n'
    "    main()\n"
    '  File "/x/save.py", line 3, in save\n'
    "    torch.save(x, f)\n"
    "OSError: [Errno 28] No space left on device\n"
)
SAVED = "saving checkpoint at iteration {0:7d} to /ckpt\n  successfully saved checkpoint at iteration {0:7d} to /ckpt\n"
CRASH = (
    "Traceback (most recent call last):\n"
    '  File "/x/train.py", line 10, in <module>\n'
    "    main()\n"
    "RuntimeError: CUDA error: device-side assert triggered\n"
)
FINISHED = "[after training is done] datetime: {:%Y-%m-%d %H:%M:%S} \n"
CANCELLED = "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT {:%Y-%m-%dT%H:%M:%S} ***\n"
APART = 150.0
"""Seconds of the play after which what happens to a run is another event."""


def now() -> datetime:
    """As a node's clock has it."""
    return datetime.now(UTC).astimezone()  # noqa: TID251 - real programs run on the real clock


def p1(play: Play) -> None:
    """A hang that ends by itself."""
    play.start()
    training = play.run()
    play.knows(training)
    training.hangs()
    play.has(*HANG)
    training.trains()
    play.has(*HANG, *ENDED)


def p2(play: Play) -> None:
    """The night: hang, cancelled, restarted, three times."""
    play.start()
    training, before = play.run(), 0
    for before in range(3):
        play.knows(training)
        training.hangs()
        play.has(*(HANG + ENDED) * before, *HANG)
        training.ends(CANCELLED.format(now()))
        play.has(*(HANG + ENDED) * (before + 1))
        play.rests(APART)
        training.restarts()


def p3(play: Play) -> None:
    """A full disk: the save fails, the run crashes. One page; it ends with the next whole save."""
    play.start()
    training = play.run()
    play.knows(training)
    training.ends(DISK_FULL.format(training.number))
    play.has("+a/checkpoint_failed/critical", "+a/crash/critical")
    play.rests(APART)
    training.restarts()
    play.has("+a/checkpoint_failed/critical", "+a/crash/critical", "-a/crash/critical")
    training.says(SAVED.format(training.number + 1))


def p6(play: Play) -> None:
    """A warning that becomes critical, and ends when it has been over for five minutes."""
    play.start()
    training = play.run()
    play.knows(training)
    training.trains(skips=2)
    play.has(*OVERFLOWS)
    training.trains(skips=1)
    play.has(*OVERFLOWS, *STORM)
    training.trains()
    play.is_over("overflow_storm")


def p7(play: Play) -> None:
    """A hang was told, then the monitor dies. Half an hour later it is back, and the run goes on."""
    play.start()
    training = play.run()
    play.knows(training)
    training.hangs()
    play.has(*HANG)
    play.daemon.kill()
    play.has(*HANG, "+MonitorDown/warning")
    play.rests(180.0)
    play.start()
    play.has(*HANG, "+MonitorDown/warning", "-MonitorDown/warning")
    training.trains()
    play.is_over("hang")


def p8(play: Play) -> None:
    """Two restarts of the monitor amid a hang of one run and a warning of another."""
    play.start()
    hanging, overflowing = play.run("a"), play.run("b")
    for training in (hanging, overflowing):
        play.knows(training)
    hanging.hangs()
    play.has(*HANG)
    overflowing.trains(skips=2)
    play.has(*HANG, "+b/overflow_storm/warning")
    for _ in range(2):
        play.daemon.kill()
        play.rests(30.0)
        play.start()
        play.stands("hang")
        play.stands("overflow_storm", "b", "warning")
        play.rests(200.0)
    hanging.trains()
    play.has(*HANG, "+b/overflow_storm/warning", *ENDED)
    overflowing.trains()
    play.is_over("overflow_storm", "b", "warning")


def p12(play: Play) -> None:
    """A run finishes with an open warning."""
    play.start()
    training = play.run()
    play.knows(training)
    training.trains(skips=2)
    play.has(*OVERFLOWS)
    training.ends(FINISHED.format(now()))
    play.is_over("overflow_storm", "a", "warning")


def p14(play: Play) -> None:
    """A hang ends while somebody has silenced the run; when the silence is over it hangs again."""
    play.start()
    training = play.run()
    play.knows(training)
    training.hangs()
    play.has(*HANG)
    play.silence(200.0)
    training.trains()
    play.rests(260.0)
    training.hangs()
    play.has(*HANG, *ENDED, *HANG)
    training.trains()
    play.is_over("hang")


def dead(play: Play) -> None:
    """The monitor dies, then the run hangs: its last deadline pages. When the monitor is back the run goes on."""
    play.start()
    training = play.run()
    play.knows(training)
    play.daemon.kill()
    training.hangs()
    play.has("+MonitorDown/warning", "+a/DeadlinePassed/critical")
    training.trains()
    play.start()


def stopped(play: Play) -> None:
    """The monitor is stopped in order, and nobody watches: that is no page, whatever the run does."""
    play.start()
    training = play.run()
    play.knows(training)
    assert play.daemon.terminate() == 0
    training.hangs()
    play.rests(400.0)


def job(play: Play) -> None:
    """A monitor that ends with its job, amid a hang: the hang ends, and nobody misses the monitor."""
    play.start("--set", "ends_with_job=true")
    training = play.run()
    play.knows(training)
    training.hangs()
    play.has(*HANG)
    assert play.daemon.terminate() == 0
    play.rests(400.0)


def night(play: Play) -> None:
    """Hang, cancelled, restarted, hang that ends, crash, a restart of the monitor, restarted."""
    play.start()
    training = play.run()
    play.knows(training)
    training.hangs()
    play.has(*HANG)
    training.ends(CANCELLED.format(now()))
    play.has(*HANG, *ENDED)
    play.rests(APART)
    training.restarts()
    play.knows(training)
    training.hangs()
    play.has(*HANG, *ENDED, *HANG)
    training.trains()
    play.has(*(HANG + ENDED) * 2)
    play.rests(APART)
    training.ends(CRASH)
    play.has(*(HANG + ENDED) * 2, "+a/crash/critical")
    assert play.daemon.terminate() == 0
    play.start()
    play.stands("crash")
    play.rests(60.0)
    training.restarts()
    play.is_over("crash")


Facts = tuple[str, ...]
HANG, ENDED = ("+a/hang/critical",), ("-a/hang/critical",)
OVERFLOWS, STORM = ("+a/overflow_storm/warning",), ("+a/overflow_storm/critical", "-a/overflow_storm/warning")
PLAYS: dict[Callable[[Play], None], tuple[int, Facts]] = {
    p1: (1, HANG + ENDED),
    p2: (3, (HANG + ENDED) * 3),
    p3: (
        1,
        ("+a/checkpoint_failed/critical", "+a/crash/critical", "-a/crash/critical", "-a/checkpoint_failed/critical"),
    ),
    p6: (1, (*OVERFLOWS, *STORM, "-a/overflow_storm/critical")),
    p7: (1, (*HANG, "+MonitorDown/warning", "-MonitorDown/warning", *ENDED)),
    p8: (1, (*HANG, "+b/overflow_storm/warning", *ENDED, "-b/overflow_storm/warning")),
    p12: (0, (*OVERFLOWS, "-a/overflow_storm/warning")),
    p14: (2, (HANG + ENDED) * 2),
    dead: (
        1,
        ("+MonitorDown/warning", "+a/DeadlinePassed/critical", "-MonitorDown/warning", "-a/DeadlinePassed/critical"),
    ),
    stopped: (0, ("+MonitorDown/warning",)),
    job: (1, HANG + ENDED),
    night: (3, ((HANG + ENDED) * 2 + ("+a/crash/critical", "-a/crash/critical"))),
}  # fmt: skip
"""Of each play, how often the phone rings and is closed again, and what the chat has."""


@dataclass(frozen=True)
class Played:
    """The stage when all plays have ended."""

    stage: Stage
    plays: dict[str, Play]
    failed: dict[str, Exception]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """All plays, at once."""
    scripts = {script.__name__: script for script in PLAYS}
    with stage(tmp_path_factory.mktemp("stage"), [*scripts]) as (made, plays):
        failed = played(plays, scripts)
        Event().wait(5.0)  # whatever else comes
        yield Played(made, plays, failed)


@pytest.mark.parametrize("script", PLAYS, ids=lambda script: script.__name__)
def test_a_play(ended: Played, script: Callable[[Play], None]) -> None:
    """Its rings, its messages in the chat, and their ends."""
    name = script.__name__
    print(name, ended.plays[name].phone(), ended.plays[name].chat())
    if name in ended.failed:
        raise ended.failed[name]
    rings, facts = PLAYS[script]
    assert ended.plays[name].phone() == ["ring", "closed"] * rings
    assert Counter(ended.plays[name].chat()) == Counter(facts)


def test_what_pagerduty_and_slack_are_sent(ended: Played) -> None:
    """The title is the event's headline; the end says what has ended; one key an event and cluster."""
    pages = [body for path, _, body in ended.stage.receiver.received if path == "/pager"]
    triggers = [body for body in pages if body["event_action"] == "trigger"]
    (night,) = [
        body for body in triggers
        if body["payload"]["custom_details"]["cluster"] == "night" and "crash" in body["payload"]["summary"]
    ]  # fmt: skip
    assert night["payload"]["severity"] == "critical"
    assert re.match(r"\[critical\] a: crash since \d\d:\d\d UTC, cuda_error", night["payload"]["summary"])
    assert "RuntimeError: CUDA error" in night["payload"]["custom_details"]["text"]
    rings = sum(rings for rings, _ in PLAYS.values())
    assert len({body["dedup_key"] for body in pages}) == rings
    titles = [body["attachments"][0]["title"] for body in ended.stage.slack()]
    assert any(re.fullmatch(r"\[critical\] a: hang since \d\d:\d\d UTC, training", title) for title in titles)
    assert any(re.fullmatch(r"ended: \[critical\] a: hang since \d\d:\d\d UTC, training", title) for title in titles)
    assert {body["attachments"][0]["color"] for body in ended.stage.slack()} == {"danger", "warning", "good"}

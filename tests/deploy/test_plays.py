"""What people are told of a course of events, from the log's line to the phone: plays on a stage (stage.py).

All plays of a module's stage run at once, each with a monitor of its own. A play acts and waits; what the phone and the
chat had of it is asserted when all have ended.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Event

import pytest

from tests.deploy.stage import Play, Stage, Training, Way, played, stage

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


def trained(play: Play) -> Training:
    """A run that the monitor knows."""
    play.start()
    training = play.run()
    play.knows(training)
    return training


def hanging(play: Play) -> Training:
    """The same, and its hang has rung."""
    training = trained(play)
    training.hangs()
    play.has(*HANG)
    return training


def p1(play: Play) -> None:
    """A hang that ends by itself."""
    training = hanging(play)
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
    """A full disk: the save fails, the run crashes. One page; it ends with the next attempt."""
    training = trained(play)
    training.ends(DISK_FULL.format(training.number))
    play.has("+a/crash/critical")
    play.rests(APART)
    training.restarts()


def p6(play: Play) -> None:
    """A warning that becomes critical, and ends when it has been over for five minutes."""
    training = trained(play)
    training.trains(skips=2)
    play.has(*OVERFLOWS)
    training.trains(skips=1)
    play.has(*OVERFLOWS, *STORM)
    training.trains()
    play.is_over("overflow_storm")


def p7(play: Play) -> None:
    """A hang was told, then the monitor dies. Half an hour later it is back, and the run goes on."""
    training = hanging(play)
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
    play.knows(hanging, overflowing)
    hanging.hangs()
    play.has(*HANG)
    overflowing.trains(skips=2)
    play.has(*HANG, "+b/overflow_storm/warning")
    for _ in range(2):
        play.daemon.kill()
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
    training = trained(play)
    training.trains(skips=2)
    play.has(*OVERFLOWS)
    training.ends(FINISHED.format(now()))
    play.is_over("overflow_storm", "a", "warning")


def p14(play: Play) -> None:
    """A hang ends while somebody has silenced the run; when the silence is over it hangs again."""
    training = hanging(play)
    play.silence(200.0)
    training.trains()
    play.rests(260.0)
    training.hangs()
    play.has(*HANG, *ENDED, *HANG)
    training.trains()
    play.is_over("hang")


def dies_before_a_hang(play: Play) -> Training:
    """The monitor dies, then the run hangs: its last deadline pages."""
    training = trained(play)
    play.is_saved()
    play.is_scraped()
    play.daemon.kill()
    training.hangs()
    play.has("+MonitorDown/warning", "+a/DeadlinePassed/critical")
    return training


def dead(play: Play) -> None:
    """When the monitor is back the run goes on."""
    training = dies_before_a_hang(play)
    training.trains()
    play.start()


def p7b(play: Play) -> None:
    """The run still hangs when the monitor is back: that is no second page."""
    training = dies_before_a_hang(play)
    play.start()
    play.has(
        "+MonitorDown/warning",
        "-MonitorDown/warning",
        "+a/DeadlinePassed/critical",
        "-a/DeadlinePassed/critical",
        *HANG,
    )
    training.trains()
    play.is_over("hang")


def stopped(play: Play) -> None:
    """The monitor is stopped in order, and nobody watches: that is no page, whatever the run does."""
    training = trained(play)
    play.is_scraped()
    assert play.daemon.terminate() == 0
    training.hangs()
    play.has("+MonitorDown/warning")
    play.rests(200.0)


def job(play: Play) -> None:
    """A monitor that ends with its job, amid a hang: the hang ends, and nobody misses the monitor."""
    play.start("--set", "ends_with_job=true")
    training = play.run()
    play.knows(training)
    training.hangs()
    play.has(*HANG)
    assert play.daemon.terminate() == 0
    play.rests(400.0)


def p18(play: Play) -> None:
    """A hang that NCCL's time-out ends by a crash: the same page."""
    training = hanging(play)
    play.rests(APART)
    training.ends(CRASH)
    play.has(*HANG, *ENDED, "+a/crash/critical")
    training.restarts()
    play.is_over("crash")


def night(play: Play) -> None:
    """Hang, cancelled, restarted, hang that ends, crash, a restart of the monitor, restarted."""
    training = hanging(play)
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
    p3: (1, ("+a/crash/critical", "-a/crash/critical")),
    p6: (1, (*OVERFLOWS, *STORM, "-a/overflow_storm/critical")),
    p7: (1, (*HANG, "+MonitorDown/warning", "-MonitorDown/warning", *ENDED)),
    p7b: (
        1,
        (
            "+MonitorDown/warning", "+a/DeadlinePassed/critical", "-MonitorDown/warning", "-a/DeadlinePassed/critical",
            *HANG, *ENDED,
        ),
    ),
    p8: (1, (*HANG, "+b/overflow_storm/warning", *ENDED, "-b/overflow_storm/warning")),
    p12: (0, (*OVERFLOWS, "-a/overflow_storm/warning")),
    p14: (2, (HANG + ENDED) * 2),
    dead: (
        1,
        ("+MonitorDown/warning", "+a/DeadlinePassed/critical", "-MonitorDown/warning", "-a/DeadlinePassed/critical"),
    ),
    p18: (1, (*HANG, *ENDED, "+a/crash/critical", "-a/crash/critical")),
    stopped: (0, ("+MonitorDown/warning",)),
    job: (1, HANG + ENDED),
    night: (3, ((HANG + ENDED) * 2 + ("+a/crash/critical", "-a/crash/critical"))),
}  # fmt: skip
"""Of each play, how often the phone rings and is closed again, and what the chat has."""


POSTED = Way()
WAYS = {
    "posts": POSTED,
    "rule": Way(posts=False, relayed=True),
    "both": Way(relayed=True),
    "pairs": Way(servers=2),
}


@dataclass(frozen=True)
class Played:
    """The stage when all plays have ended."""

    stage: Stage
    plays: dict[str, Play]
    failed: dict[str, Exception]

    def check(self, name: str, rings: Collection[int], facts: Facts | None) -> None:
        """The play went as it should, the phone rang so often, and the chat had this (None: whatever it had)."""
        if name in self.failed:
            raise self.failed[name]
        phone = self.plays[name].phone()
        assert phone.count("ring") in rings, phone
        assert (phone.count("closed"), phone[-1:]) == (phone.count("ring"), ["closed"][: len(phone)])
        assert facts is None or Counter(self.plays[name].chat()) == Counter(facts)


@contextmanager
def all_played(directory: Path, scripts: Iterable[Callable[[Play], None]], way: Way = POSTED) -> Iterator[Played]:
    """All plays, at once."""
    acts = {script.__name__: script for script in scripts}
    with stage(directory, acts, way) as (made, plays):
        failed = played(plays, acts)
        Event().wait(9.0)  # an end is posted after 2 s, and sent within 3 s; whatever else comes
        yield Played(made, plays, failed)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(way, id=name, marks=[] if way is POSTED else pytest.mark.nightly) for name, way in WAYS.items()
    ],
)
def ended(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """The plays, each way that incidents come to Alertmanager."""
    with all_played(tmp_path_factory.mktemp("stage"), PLAYS, request.param) as done:
        yield done


@pytest.mark.parametrize("script", PLAYS, ids=lambda script: script.__name__)
def test_a_play(ended: Played, script: Callable[[Play], None]) -> None:
    """Its rings, its messages in the chat, and their ends."""
    rings, facts = PLAYS[script]
    # Prometheus may scrape between the end of the hang and the crash: then it is closed, and rings again.
    again = int(script is p18 and ended.stage.way.relayed)
    ended.check(script.__name__, range(rings, rings + again + 1), facts)


def test_what_pagerduty_and_slack_are_sent(ended: Played) -> None:
    """The title is the event's headline; the end says what has ended; one key an event and cluster."""
    way = ended.stage.way

    def title(incident: str, brief: str) -> str:
        posted, relayed = rf"\[critical\] a: {incident} since \d\d:\d\d UTC, {brief}", f"a: {incident}"
        return f"({'|'.join([posted] * way.posts + [relayed] * way.relayed)})"

    pages = [body for path, _, body in ended.stage.receiver.received if path == "/pager"]
    triggers = [body for body in pages if body["event_action"] == "trigger"]
    crashes = [
        body["payload"] for body in triggers
        if body["payload"]["custom_details"]["cluster"] == "night" and "crash" in body["payload"]["summary"]
    ]  # fmt: skip
    for crash in crashes:
        assert crash["severity"] == "critical"
        assert re.match(title("crash", "cuda_error.*"), crash["summary"])
        assert "RuntimeError: CUDA error" in crash["custom_details"]["text"]
    assert crashes
    rings = sum(rings for rings, _ in PLAYS.values())
    assert len({body["dedup_key"] for body in pages}) == rings
    titles = [body["attachments"][0]["title"] for body in ended.stage.slack()]
    assert any(re.fullmatch(title("hang", "training"), one) for one in titles)
    assert any(re.fullmatch(f"ended: {title('hang', 'training')}", one) for one in titles)
    assert {body["attachments"][0]["color"] for body in ended.stage.slack()} == {"danger", "warning", "good"}


# --- what takes longer, or a stage of its own -------------------------------------------------------------------------


def p4(play: Play) -> None:
    """Attempt after attempt crashes: one page, of the crashes and of the loop."""
    training = trained(play)
    for _ in range(6):
        training.ends(CRASH)
        play.stands("crash_loop" if play.standing("crash_loop") else "crash")
        play.rests(10.0)
        training.restarts()
        play.is_over("crash")
    play.rests(APART)
    training.says(SAVED.format(training.number + 1))
    play.is_over("crash_loop")


def p5(play: Play) -> None:
    """Overflows come three times in five minutes: one message, and one end."""
    play.start()
    training = play.run()
    for _ in range(3):
        play.knows(training)
        training.trains(skips=2)
        play.has(*OVERFLOWS)
        training.trains()
        play.rests(60.0)
    play.is_over("overflow_storm", severity="warning")


def p11(play: Play) -> None:
    """One of forty runs hangs, then a file system stops and the others crash; later another one hangs."""
    play.start()
    runs = [play.run(f"r{number:02}", seconds=0.3) for number in range(40)]
    play.knows(*runs)
    runs[3].hangs()
    play.rings("ring")
    play.rests(APART)
    crashing = [training for training in runs if training is not runs[3]]
    for training in crashing:
        training.ends(CRASH)
    play.rings("ring", "ring")
    for training in crashing:
        play.stands("crash", training.path.stem)
    play.rests(APART)
    for training in crashing:
        training.restarts()
    runs[3].trains()
    play.rings("ring", "ring", "closed", "closed")
    play.knows(runs[7])
    runs[7].hangs()
    play.rings("ring", "ring", "closed", "closed", "ring")
    runs[7].trains()
    play.is_over("hang", "r07")


def p15(play: Play) -> None:
    """A hang ends, and the run hangs again before Alertmanager has looked."""
    training = hanging(play)
    play.rests(APART)
    training.trains()
    play.is_over("hang")
    training.hangs()
    play.rings("ring", "closed", "ring")
    play.has(*HANG, *ENDED, *HANG)
    training.trains()
    play.is_over("hang")


def p16(play: Play) -> None:
    """A failed save has been acknowledged and stands; twenty minutes later the run hangs."""
    play.start()
    training = play.run(printed=5.0)
    play.knows(training)
    training.says(SAVED.format(training.number))
    for facts in (FAILED[:1], FAILED):
        training.says(f"saving checkpoint at iteration {training.number + 1:7d} to /ckpt\n")
        play.has(*facts)
    play.rests(APART)
    training.hangs()
    play.has(*FAILED, *HANG)
    training.trains()
    play.has(*FAILED, *HANG, *ENDED)
    training.says(SAVED.format(training.number + 1))
    play.is_over("checkpoint_failed")


def p17(play: Play) -> None:
    """As p14, and the silence outlasts the end by far."""
    training = hanging(play)
    play.silence(900.0)
    training.trains()
    play.rests(960.0)
    training.hangs()
    play.has(*HANG, *ENDED, *HANG)
    training.trains()
    play.is_over("hang")


def case61(play: Play) -> None:
    """The second hang of two runs, one of which was cancelled between, is paged."""
    play.start()
    cancelled, other = play.run("a"), play.run("b")
    reported: list[str] = []
    for training, name in ((cancelled, "a"), (other, "b")):
        for _ in range(2):
            play.knows(training)
            training.hangs()
            reported.append(f"+{name}/hang/critical")
            play.has(*reported)
            if name == "a":
                training.ends(CANCELLED.format(now()))
            else:
                training.trains()
            reported.append(f"-{name}/hang/critical")
            play.has(*reported)
            play.rests(APART)
            training.restarts() if name == "a" else training.trains()


FAILED = ("+a/checkpoint_failed/warning", "+a/checkpoint_failed/critical", "-a/checkpoint_failed/warning")
CRASHES = tuple(f"{sign}r{number:02}/crash/critical" for number in range(40) if number != 3 for sign in "+-")
RARER: dict[Callable[[Play], None], tuple[int, Facts | None]] = {
    p4: (1, None),
    p5: (0, (*OVERFLOWS, "-a/overflow_storm/warning")),
    p11: (3, (*CRASHES, *(f"{sign}{run}/hang/critical" for run in ("r03", "r07") for sign in "+-"))),
    p15: (2, (HANG + ENDED) * 2),
    p16: (2, (*FAILED, *HANG, *ENDED, "-a/checkpoint_failed/critical")),
    p17: (2, (HANG + ENDED) * 2),
    case61: (4, ("+a/hang/critical", "-a/hang/critical", "+b/hang/critical", "-b/hang/critical") * 2),
}  # fmt: skip


@pytest.fixture(scope="module")
def rarer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """All of these plays, at once."""
    with all_played(tmp_path_factory.mktemp("rarer"), RARER) as done:
        yield done


@pytest.mark.nightly
@pytest.mark.parametrize("script", RARER, ids=lambda script: script.__name__)
def test_a_rarer_play(rarer: Played, script: Callable[[Play], None]) -> None:
    """Its rings, its messages in the chat, and their ends."""
    rings, facts = RARER[script]
    rarer.check(script.__name__, [rings], facts)


def p9(play: Play) -> None:
    """Prometheus is away for ten minutes: a hang before, one meanwhile, both end when it is back."""
    play.start()
    first, second = play.run("a"), play.run("b")
    play.knows(first, second)
    first.hangs()
    play.has(*HANG)
    play.stage.stop("prometheus")
    play.rests(200.0)
    second.hangs()
    play.has(*HANG, "+b/hang/critical")
    play.rests(400.0)
    play.stage.start_prometheus()
    play.rests(200.0)
    first.trains()
    second.trains()
    play.has(*HANG, *ENDED, "+b/hang/critical", "-b/hang/critical")


def p10(play: Play) -> None:
    """Alertmanager is away while one hang ends and another begins; a third stands."""
    play.start()
    runs = {name: play.run(name) for name in "abc"}
    play.knows(*runs.values())
    for name in "ac":
        runs[name].hangs()
        play.stands("hang", name)
        play.rests(80.0)
    play.has(*HANG, "+c/hang/critical")
    play.stage.stop("alertmanager")
    runs["b"].hangs()
    runs["a"].trains()
    play.stands("hang", "b")
    play.is_over("hang", "a")
    play.rests(30.0)
    play.stage.start_alertmanager()
    reported = (*HANG, *ENDED, "+c/hang/critical", "+b/hang/critical")
    play.has(*reported)
    for name in "bc":
        runs[name].trains()
    play.has(*reported, "-b/hang/critical", "-c/hang/critical")


@pytest.mark.nightly
@pytest.mark.parametrize(("script", "rings"), [(p9, 2), (p10, 3)], ids=["p9", "p10"])
def test_a_play_in_which_a_program_is_away(script: Callable[[Play], None], rings: int, tmp_path: Path) -> None:
    """Each hang rings once, and is closed once."""
    with all_played(tmp_path, [script]) as done:
        name = script.__name__
        assert done.failed == {}
        assert sorted(done.plays[name].phone()) == sorted(["ring", "closed"] * rings)
        chat = Counter(done.plays[name].chat())
        assert {fact: many for fact, many in chat.items() if "/hang/" in fact} == {
            f"{sign}{run}/hang/critical": 1 for sign in "+-" for run in "abc"[:rings]
        }

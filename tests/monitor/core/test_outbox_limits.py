"""The outbox at each of its limits: pauses, refusals, what waits to be saved, and what is put together when."""

from typing import Literal

import pytest

from megatron_monitor.core.outbox import Outbox, Owed, Result, Tried
from megatron_monitor.detectors.base import Severity
from megatron_monitor.incidents import Transition

AT = 1_700_000_000.0  # Unix seconds at the core's instant 0
FIRING, RESOLVED = "firing", "resolved"


def message(
    run: str, status: str = FIRING, now: float = 0.0, kind: str = "hang", severity: Severity = "critical"
) -> Transition:
    """A transition at an instant."""
    told: Literal["firing", "resolved"] = "firing" if status == FIRING else "resolved"
    return Transition(kind, severity, f"{status} at {now:g}", run=run, status=told, time=AT + now)


def outbox(*messages: Transition, now: float = 0.0, saved: bool = True) -> Outbox:
    """One that owes these to a chat."""
    made = Outbox()
    made.receivers(["chat"])
    owe(made, *messages, now=now, saved=saved)
    return made


def owe(to: Outbox, *messages: Transition, now: float = 0.0, saved: bool = True) -> None:
    """These as well."""
    for one in messages:
        to.owe(one, ["chat"], now)
    if saved:
        to.saved = to.last


def handed(of: Outbox, now: float, *, last: bool = False) -> list[Owed]:
    """What the receiver would be asked to take at an instant; it is given back untried."""
    chosen = of.batch("chat", now, last=last)
    of.settle("chat", [Tried(one.number, "untried") for one in chosen], now)
    return chosen


def answer(of: Outbox, now: float, result: Result) -> int:
    """The receiver says the same to all that it is asked to take: how many."""
    chosen = of.batch("chat", now)
    of.settle("chat", [Tried(one.number, result) for one in chosen], now)
    return len(chosen)


def outcomes(of: Outbox) -> dict[str, int]:
    """What is not zero."""
    return {outcome: many for (_, outcome), many in of.take_outcomes().items() if many}


# --- a receiver that is away ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "pauses"),
    [
        ("later", (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0)),
        ("refused", (300.0, 600.0, 1200.0, 2400.0, 3600.0, 3600.0)),
    ],
)
def test_pauses_double_up_to_a_limit(result: Result, pauses: tuple[float, ...]) -> None:
    """Of a receiver that is away from a second to a minute; of a message that is refused, where somebody has to mend
    something, from five minutes to an hour. Asked at the very end of each, and not before.
    """
    box, now = outbox(message("a")), 0.0
    for pause in pauses:
        assert answer(box, now, result) == 1
        assert handed(box, now + pause - 0.001) == []
        assert len(handed(box, now + pause)) == 1
        now += pause
    assert outcomes(box) == {"retried": len(pauses)}


@pytest.mark.parametrize("between", ["sent", "refused", "final"])
def test_a_receiver_that_came_back_is_asked_again_after_a_second(between: Result) -> None:
    """When it goes away anew: what it did an hour ago makes no message late. A refusal is an answer as well."""
    box, now = outbox(message("a"), message("b")), 0.0
    for _ in range(7):
        answer(box, now, "later")
        now += 60.0
    answer(box, now, between)
    owe(box, message("c"), now=now)
    assert answer(box, now, "later") == 1
    assert handed(box, now + 0.999) == []
    assert [one.message.run for one in handed(box, now + 1.0)] == ["c"]


def test_one_failure_of_a_batch_counts_for_each_message() -> None:
    """Two that were tried in vain: two seconds, as after two tries."""
    box = outbox(message("a"), message("b"))
    assert answer(box, 0.0, "later") == 2
    assert handed(box, 1.999) == []
    assert len(handed(box, 2.0)) == 2


def test_chance_takes_up_to_half_of_a_pause_away() -> None:
    """Many daemons do not come back at once."""
    box = outbox(message("a"))
    box.settle("chat", [Tried(one.number, "later") for one in box.batch("chat", 0.0)], 0.0, 0.5)
    assert handed(box, 0.749) == []
    assert len(handed(box, 0.75)) == 1


def test_at_the_end_no_pause_is_kept() -> None:
    """Neither a receiver's, nor a message's, nor that for saving, and no batch has a limit."""
    box = outbox(message("x"))
    answer(box, 0.0, "refused")
    owe(box, *(message(f"r{number}") for number in range(60)), saved=False)
    box.settle("chat", [Tried(1, "later")], 0.0)
    assert handed(box, 0.5) == []
    assert len(handed(box, 0.5, last=True)) == 61


def test_a_receiver_that_nobody_knows_is_handed_nothing() -> None:
    """Nor does its report do anything."""
    box = outbox(message("a"))
    assert box.batch("other", 0.0) == []
    box.settle("other", [Tried(1, "sent")], 0.0)
    box.settle("chat", [Tried(99, "sent")], 0.0)
    assert box.owed() == {"chat": 1}


def test_a_receiver_has_one_batch_at_a_time() -> None:
    """Until all of it is reported, tried or not."""
    box = outbox(message("a"), message("b"))
    first, second = box.batch("chat", 0.0)
    owe(box, message("c"))
    assert box.batch("chat", 0.0) == []
    box.settle("chat", [Tried(first.number, "sent")], 0.0)
    assert box.batch("chat", 0.0) == []
    box.settle("chat", [Tried(second.number, "untried")], 0.0)
    assert [one.message.run for one in box.batch("chat", 0.0)] == ["b", "c"]


def test_a_batch_has_fifty_messages() -> None:
    """The next one has the rest."""
    box = outbox(*(message(f"r{number}") for number in range(51)))
    assert answer(box, 0.0, "sent") == 50
    assert [one.message.run for one in handed(box, 0.0)] == ["r50"]


# --- a message that is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "owed"), [(86399.0, 1), (86400.0, 0)])
def test_a_message_has_failed_after_a_day_of_refusals(seconds: float, owed: int) -> None:
    """Counted from the first one, not from when it was owed, and over a restart."""
    box = outbox(message("a"))
    answer(box, 50_000.0, "refused")
    again = Outbox()
    again.restore(box.save())
    again.receivers(["chat"])
    assert answer(again, 50_000.0 + seconds, "refused") == 1
    assert again.owed() == {"chat": owed}
    assert outcomes(again) == ({"retried": 1} if owed else {"failed": 1})


def test_a_receivers_last_word_is_not_asked_for_again() -> None:
    """It has failed at once."""
    box = outbox(message("a"))
    answer(box, 0.0, "final")
    assert (box.owed(), outcomes(box)) == ({"chat": 0}, {"failed": 1})


def test_what_stands_behind_a_refused_message_goes_first_unless_it_is_its_incidents() -> None:
    """The end of an incident never overtakes its beginning; another kind of the same run, and another run, do."""
    box = outbox(message("a"))
    answer(box, 0.0, "refused")
    owe(box, message("a", RESOLVED), message("a", kind="crash"), message("b"), message("b", RESOLVED))
    told = [(one.message.run, one.message.incident, one.message.status) for one in handed(box, 0.0)]
    assert told == [("a", "crash", FIRING), ("b", "hang", FIRING), ("b", "hang", RESOLVED)]


@pytest.mark.parametrize(
    ("result", "known", "changed"),
    [("untried", False, False), ("later", True, False), ("refused", True, True)],
)
def test_who_was_tried_may_know(result: Result, known: bool, changed: bool) -> None:
    """A try that failed may have arrived; what was answered is to be saved."""
    box = outbox(message("a"))
    answer(box, 0.0, result)
    ((owed,),) = box.save().values()
    assert (owed.known, box.changed) == (known, changed)


# --- saved ------------------------------------------------------------------------------------------------------------


def test_a_message_waits_two_seconds_to_be_saved() -> None:
    """One that is saved does not wait, and what stands behind one that is not does."""
    box = outbox(message("a"))
    owe(box, message("b"), now=10.0, saved=False)
    assert [one.message.run for one in handed(box, 10.0)] == ["a"]
    assert [one.message.run for one in handed(box, 11.999)] == ["a"]
    assert [one.message.run for one in handed(box, 12.0)] == ["a", "b"]
    assert [one.message.run for one in handed(box, 12.5)] == ["a", "b"]
    box.saved = box.last
    assert [one.message.run for one in handed(box, 10.0)] == ["a", "b"]


def test_nothing_overtakes_what_waits_to_be_saved() -> None:
    """A digest that is older by its first message stands in the place of its newest."""
    ends = [message(f"r{number}", RESOLVED, number) for number in range(21)]
    box = outbox(*(message(f"r{number}") for number in range(21)), *ends[:20], saved=False)
    owe(box, *(message(f"x{number}") for number in range(460)), now=9.0, saved=False)
    owe(box, ends[20], now=9.5, saved=False)
    assert handed(box, 10.0) == []
    assert handed(box, 11.0)[-1].message.run == "x49"
    assert handed(box, 11.0, last=True)[-1].message.run == "21 runs"


def test_a_new_outbox_numbers_from_one() -> None:
    """Nothing of it is saved."""
    box = Outbox()
    box.restore({})
    assert (box.last, box.saved) == (0, 0)
    owe(box, message("a"), saved=False)
    assert (box.last, box.saved) == (1, 0)


def test_numbers_go_on_over_a_restart() -> None:
    """Those of every receiver; what was owed is saved, what comes is not."""
    box = outbox(message("a"), message("b"))
    box.owe(message("c"), ["pager"], 0.0)
    again = Outbox()
    again.restore(box.save())
    assert (again.last, again.saved) == (3, 3)
    again.owe(message("d"), ["chat"], 0.0)
    assert (again.last, again.saved) == (4, 3)
    assert [one.number for one in again.save()["chat"]] == [1, 2, 4]


def test_a_receiver_that_was_owed_nothing_leaves_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """Those that stay are counted from zero."""
    box = outbox()
    box.take_outcomes()
    box.receivers(["pager"])
    assert caplog.text == ""
    assert box.take_outcomes() == {("pager", one): 0 for one in ("sent", "retried", "failed", "dropped")}


def test_outcomes_are_counted_from_the_last_time_they_were_taken() -> None:
    """Each once."""
    box = outbox(message("a"), message("b"))
    answer(box, 0.0, "sent")
    assert outcomes(box) == {"sent": 2}
    assert outcomes(box) == {}


# --- put together -----------------------------------------------------------------------------------------------------


def told(of: Outbox, now: float) -> list[tuple[str, str]]:
    """(run, summary) of what would be sent."""
    return [(one.message.run, one.message.summary) for one in handed(of, now, last=True)]


@pytest.mark.parametrize(("now", "count"), [(599.999, 2), (600.0, 1)])
def test_what_began_and_ended_is_one_message_after_ten_minutes(now: float, count: int) -> None:
    """Before that it is sent as it was. The minutes are the first message's."""
    box = outbox(message("a"), now=1000.0)
    owe(box, message("a", RESOLVED), now=1500.0)
    assert len(told(box, 1000.0 + now)) == count


@pytest.mark.parametrize("status", [FIRING, RESOLVED])
def test_a_message_by_itself_stays_as_it_is(status: str) -> None:
    """However long it is owed."""
    box = outbox(message("a", status))
    before = box.save()
    assert handed(box, 6000.0, last=True) == before["chat"]
    assert box.save() == before


@pytest.mark.parametrize(("others", "count"), [(498, 500), (499, 500)])
def test_above_500_messages_nothing_is_kept_as_it_was(others: int, count: int) -> None:
    """500 are sent as they were; of 501 what began and ended is one."""
    box = outbox(message("a"), message("a", RESOLVED), *(message(f"r{number}") for number in range(others)))
    assert len(told(box, 0.0)) == count


def stale(*messages: Transition) -> list[Owed]:
    """What is left of these messages after ten minutes."""
    return handed(outbox(*messages), 600.0, last=True)


def test_one_incident_that_ended_is_told_with_its_end() -> None:
    """Its evidence counts it."""
    (one,) = stale(message("a"), message("a", RESOLVED, 5.0))
    assert one.message.summary == "began and ended before this could be delivered; resolved at 5: firing at 0"
    assert one.message.status == RESOLVED
    assert one.message.evidence == {"kept_back": 1}
    assert (one.ended, one.known) == ({"hang": 1}, False)


def test_incidents_that_came_and_went_are_counted() -> None:
    """Two of them, in one message."""
    (one,) = stale(message("a"), message("a", RESOLVED), message("a"), message("a", RESOLVED, 7.0))
    assert one.message.summary == (
        "began and ended 2 times before this could be delivered; the last time resolved at 7: firing at 0"
    )
    assert (one.message.evidence, one.ended) == ({"kept_back": 2}, {"hang": 2})


def test_what_still_fires_is_told_behind_what_ended() -> None:
    """Two messages."""
    ended, firing = stale(message("a"), message("a", RESOLVED, 1.0), message("a", FIRING, 2.0))
    assert (ended.message.status, ended.message.evidence["kept_back"]) == (RESOLVED, 1)
    assert (firing.message.status, firing.message.summary) == (FIRING, "firing at 2")


def test_what_grew_worse_is_told_once_in_the_first_ones_place() -> None:
    """The newest says it all."""
    box = outbox(message("a"), message("b"), message("a", FIRING, 2.0, severity="warning"))
    owe(box, message("a", FIRING, 9.0), now=9.0)
    first, second = handed(box, 600.0, last=True)
    assert (first.number, first.since, first.message.summary) == (1, 0.0, "firing at 9")
    assert second.message.run == "b"


def test_what_was_put_together_is_not_told_twice() -> None:
    """A second look changes nothing; another time is added."""
    box = outbox(message("a"), message("a", RESOLVED, 1.0))
    (one,) = handed(box, 600.0, last=True)
    owe(box, message("a", FIRING, 601.0), now=601.0)
    ended, firing = handed(box, 1300.0, last=True)
    assert ended.message == one.message
    assert firing.message.summary == "firing at 601"
    owe(box, message("a", RESOLVED, 602.0), now=602.0)
    (again,) = handed(box, 1300.0, last=True)
    assert again.message.summary == (
        "began and ended 2 times before this could be delivered; the last time resolved at 602: firing at 601"
    )
    assert again.ended == {"hang": 2}


def test_the_end_of_what_was_told_is_no_news_of_an_incident() -> None:
    """Its receiver waits for it: nothing says that it began meanwhile, and it is in no digest."""
    ended, firing = stale(message("a", RESOLVED, 1.0), message("a", FIRING, 2.0))
    assert (ended.message.summary, ended.message.evidence, ended.ended) == ("resolved at 1", {}, {})
    assert ended.known
    assert not firing.known
    (one,) = stale(message("a", RESOLVED, 1.0), message("a"), message("a", RESOLVED, 3.0))
    assert one.known
    assert one.message.evidence["kept_back"] == 1


@pytest.mark.parametrize("tried", [0, 1, 2])
def test_what_was_tried_is_not_taken_for_unknown(tried: int) -> None:
    """Its beginning, its repetition or its end: the receiver may have heard of it."""
    box = outbox(message("a"))
    if tried == 1:
        owe(box, message("a", FIRING, 1.0))
    if tried == 2:
        owe(box, message("a", RESOLVED, 1.0))
    chosen = box.batch("chat", 0.0)
    box.settle("chat", [Tried(one.number, "later" if one is chosen[-1] else "untried") for one in chosen], 0.0)
    if tried != 2:
        owe(box, message("a", FIRING, 2.0), message("a", RESOLVED, 3.0))
    (one,) = handed(box, 600.0, last=True)
    assert one.known


@pytest.mark.parametrize("tried", [0, 1, None])
def test_what_was_tried_stays_known_behind_its_repetition(tried: int | None) -> None:
    """The newest takes the place of one that was tried, or was itself: its end is awaited, and goes into no digest."""
    box = outbox(message("a"), message("a", FIRING, 300.0))
    chosen = box.batch("chat", 0.0)
    box.settle("chat", [Tried(one.number, "later" if at == tried else "untried") for at, one in enumerate(chosen)], 0.0)
    assert len(handed(box, 600.0, last=True)) == 1
    owe(box, message("a", RESOLVED, 601.0))
    (one,) = handed(box, 1200.0, last=True)
    assert one.known is (tried is not None)


# --- a storm ----------------------------------------------------------------------------------------------------------


def storm(count: int, **more: Severity) -> list[Transition]:
    """So many runs hang and go on, in this order."""
    told = [
        (message(f"r{number}", FIRING, number), message(f"r{number}", RESOLVED, number, **more))
        for number in range(count)
    ]
    return [one for pair in told for one in pair]


def test_twenty_incidents_that_nobody_heard_of_are_told_one_by_one() -> None:
    """Of 21 it is a digest."""
    assert len(stale(*storm(20))) == 20
    (digest,) = stale(*storm(21))
    assert digest.message.run == "21 runs"


def test_those_that_somebody_may_have_heard_of_are_no_storm() -> None:
    """Each end is awaited."""
    box = outbox(*(message(f"r{number}") for number in range(21)))
    answer(box, 0.0, "later")
    owe(box, *(message(f"r{number}", RESOLVED) for number in range(21)))
    assert len(handed(box, 600.0, last=True)) == 21


def test_a_digest_counts_kinds_and_names_runs() -> None:
    """The most frequent kind first, twenty runs, the worst severity, the last end, and over how long it was."""
    box = outbox(message("x", kind="crash"), message("x", RESOLVED, 5.0, kind="crash"), now=1000.0)
    owe(box, *storm(21, severity="warning"), now=1180.0)
    owe(box, message("z"), now=1181.0)
    digest, still = handed(box, 1800.0, last=True)
    told = digest.message
    assert (told.incident, told.status, told.severity, told.time) == ("hang", RESOLVED, "critical", AT + 20.0)
    assert told.summary == (
        "22 incidents of 22 runs began and ended within 3 min before this could be delivered: 21 hang, 1 crash"
    )
    assert told.evidence == {
        "kept_back": 22,
        "kinds": {"hang": 21, "crash": 1},
        "runs": "x, " + ", ".join(f"r{number}" for number in range(19)) + " and 2 more",
    }
    assert (digest.since, len(digest.runs)) == (1000.0, 22)
    assert still.message.run == "z"
    assert digest.number < still.number


@pytest.mark.parametrize("runs", [11, 20])
def test_a_digest_that_names_all_its_runs_counts_no_more(runs: int) -> None:
    """Two kinds of incidents in each."""
    pairs = [
        message(f"r{number}", status, number, kind=kind)
        for kind in ("hang", "crash")
        for number in range(runs)
        for status in (FIRING, RESOLVED)
    ]
    (digest,) = stale(*pairs)
    assert digest.message.evidence["runs"] == ", ".join(f"r{number}" for number in range(runs))


def test_a_digest_that_waits_takes_a_second_storm_in() -> None:
    """One message, with the kinds and runs of both; by itself it stays as it is."""
    box = outbox(*storm(21))
    (first,) = handed(box, 600.0, last=True)
    (again,) = handed(box, 700.0, last=True)
    assert again == first
    for number in range(20, 41):
        owe(box, message(f"r{number}", FIRING, 700.0), message(f"r{number}", RESOLVED, 701.0), now=700.0)
    (both,) = handed(box, 1300.0, last=True)
    assert (both.message.run, both.ended, both.message.time) == ("41 runs", {"hang": 42}, AT + 701.0)

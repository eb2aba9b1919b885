"""The outbox at each of its limits: pauses, refusals, what waits to be saved, and what is put together when."""

from typing import Literal

import pytest

from megatron_monitor.core.outbox import OUTCOMES, Outbox, Owed, Result, Tried
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


@pytest.mark.parametrize(("result", "changed"), [("untried", False), ("later", False), ("refused", True)])
def test_what_was_answered_is_to_be_saved(result: Result, changed: bool) -> None:
    """A try that failed changes nothing."""
    box = outbox(message("a"))
    answer(box, 0.0, result)
    assert box.changed == changed


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
    assert box.take_outcomes() == {("pager", one): 0 for one in OUTCOMES}


def test_outcomes_are_counted_from_the_last_time_they_were_taken() -> None:
    """Each once."""
    box = outbox(message("a"), message("b"))
    answer(box, 0.0, "sent")
    assert outcomes(box) == {"sent": 2}
    assert outcomes(box) == {}


# --- too many ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("others", "left"), [(498, 500), (499, 500)])
def test_above_500_messages_the_newest_of_each_incident_is_kept(others: int, left: int) -> None:
    """500 are sent as they were; of 501 the beginning of what has ended is suppressed, and counted."""
    box = outbox(message("a"), message("a", RESOLVED), *(message(f"r{number}") for number in range(others)))
    assert len(handed(box, 0.0, last=True)) == left
    assert outcomes(box) == ({"suppressed": 1} if others == 499 else {})

"""The one theory of time: what of a report's seconds are iterations alone, at each of its limits."""

import pytest

from megatron_monitor.run.steps.timing import Interval, NetTime, StepTimer, net_time


def interval(**reported: object) -> Interval:
    """Ten iterations of 10 s each, of whose interruption nobody knows when it was; keyword arguments say otherwise."""
    plain = {"iterations": 10, "seconds": 10.0, "arrived": None, "behind": 10, "timer_seconds": 0.0}
    return Interval(**{**plain, **reported})  # type: ignore[arg-type]


def test_a_loop_that_stops_its_timer_tells_iterations_alone() -> None:
    """Up to 5 % over the usual; it is exact where it is long beside the follower's delay: 100 s."""
    assert net_time(interval(seconds=10.5), 10.0) == NetTime(10.5, True)
    assert net_time(interval(seconds=9.9), 10.0) == NetTime(9.9, False)
    assert net_time(interval(seconds=10.51), 10.0) == NetTime(None, False, pytest.approx(5.1))


def test_what_timers_tell_is_taken_out() -> None:
    """20 s of 120 s: ten iterations of 10 s, exactly 100 s of them."""
    assert net_time(interval(seconds=12.0, timer_seconds=20.0), 10.0) == NetTime(10.0, True, 20.0)
    assert net_time(interval(seconds=13.0, timer_seconds=20.0), 10.0) == NetTime(11.0, True, 20.0)
    assert net_time(interval(seconds=11.9, timer_seconds=20.0), 10.0) == NetTime(pytest.approx(9.9), False, 20.0)


def test_what_leaves_too_little_is_not_believed() -> None:
    """At least half of the usual must be left, a tenth of what is told where nothing is usual yet."""
    assert net_time(interval(seconds=12.0, timer_seconds=70.0), 10.0).seconds == 5.0
    assert net_time(interval(seconds=12.0, timer_seconds=70.1), 10.0) == NetTime(None, False, pytest.approx(20.0))
    assert net_time(interval(seconds=10.0, timer_seconds=90.0), None).seconds == pytest.approx(1.0)
    assert net_time(interval(seconds=10.0, timer_seconds=90.1), None) == NetTime(None, False, None)


def test_an_interruption_is_measured_by_arrivals() -> None:
    """It ended 30 s after the report before; the longer of what timers and arrivals tell counts."""
    reported = interval(seconds=13.0, arrived=(30.0, 130.0))
    assert net_time(reported, 10.0) == NetTime(10.0, True, 30.0)
    assert net_time(reported._replace(timer_seconds=40.0), 10.0).interruption == 40.0
    assert net_time(reported._replace(arrived=None), 10.0) == NetTime(None, False, pytest.approx(30.0))


def test_iterations_behind_the_interruption_tell_what_one_takes() -> None:
    """Four came behind it in 40 s of 130 s: ten take 100 s, so that it took 30 s."""
    reported = interval(seconds=13.0, arrived=(90.0, 130.0), behind=4)
    assert net_time(reported, 10.0) == NetTime(10.0, False, 30.0)
    assert net_time(reported._replace(seconds=26.0, arrived=(180.0, 260.0)), 20.0).exact is False
    assert net_time(reported._replace(seconds=32.5, arrived=(225.0, 325.0)), 25.0).exact is True


def test_within_a_report_of_the_usual_pace() -> None:
    """Told at the usual pace, no longer than from line to line: the interruption lies in it, the rest was faster."""
    reported = interval(seconds=10.0, arrived=(30.0, 100.0))
    assert net_time(reported, 10.0) == NetTime(7.0, False, 30.0)
    assert net_time(reported._replace(arrived=(30.0, 114.0)), 10.0) == NetTime(7.0, False, 30.0)
    assert net_time(reported._replace(arrived=(30.0, 115.0)), 10.0) == NetTime(
        10.0, True
    )  # half of it lies beside what is told
    assert net_time(reported._replace(arrived=(30.0, 116.0)), 10.0) == NetTime(10.0, True)
    assert net_time(reported._replace(arrived=(60.0, 100.0)), 10.0) == NetTime(10.0, True)  # it would leave too little
    assert net_time(reported._replace(arrived=None, timer_seconds=30.0), 10.0) == NetTime(10.0, True)
    assert net_time(reported._replace(iterations=1, seconds=100.0, behind=1), 100.0) == NetTime(100.0, True)
    assert net_time(reported._replace(iterations=2, seconds=50.0, behind=2), 50.0) == NetTime(35.0, False, 30.0)


def test_little_is_an_interruption_too() -> None:
    """Half a second of twelve: what is measured counts, however little; nothing measured is none."""
    assert net_time(interval(seconds=1.2, timer_seconds=0.5), 1.0).interruption == 0.5
    assert net_time(interval(seconds=1.2, arrived=(0.0, 12.0)), 1.0) == NetTime(None, False, pytest.approx(2.0))
    behind = interval(seconds=1.2, arrived=(1.0, 12.0), behind=1)  # one took 11 s: no time is left for it
    assert net_time(behind, 1.0) == NetTime(None, False, pytest.approx(2.0))


def test_a_watch_hands_over_what_came_since_the_last_report() -> None:
    """Two interruptions: the end of the last one counts; a report clears all of it."""
    watch = StepTimer()
    assert not watch.interrupted
    watch.interrupt(5.0)
    assert watch.interrupted
    assert watch.interval(10, 2.0, 20, 30.0) == interval(seconds=2.0)  # no report before
    watch.restart(10.0)
    assert not watch.interrupted
    assert watch.interval(10, 2.0, 20, 30.0).arrived is None
    watch.interrupt(15.0, 16)
    watch.interrupt(18.0)
    watch.timer_seconds = 3.0
    reported = watch.interval(10, 2.0, 20, 30.0)
    assert reported == interval(seconds=2.0, arrived=(8.0, 20.0), behind=4, timer_seconds=3.0)
    assert watch.interval(10, 2.0, 20, None).arrived is None
    behind = [watch.interval(10, 2.0, last, 30.0).behind for last in (15, 16, 17, 25, 26, 27, None)]
    assert behind == [10, 10, 1, 9, 10, 10, 10]
    watch.restart(30.0)
    state = watch.at, watch.interrupted, watch.interrupted_until, watch.iteration, watch.timer_seconds
    assert state == (30.0, False, None, None, 0.0)

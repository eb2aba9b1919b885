"""Pages are made when somebody asks: who asks sees what was folded before, and waits for a busy loop a moment only."""

import threading

from megatron_monitor.serve.latest import LatestSnapshot
from megatron_monitor.snapshot import CARDS, EVERYTHING, FIGURES, Snapshot, ViewRequest

LONG = 10.0


def test_who_asks_gets_a_page_made_after_the_question() -> None:
    """The loop is woken; a page that was made before does not do."""
    woken = threading.Event()
    latest = LatestSnapshot(Snapshot(at=0.0), woken.set, wait=LONG)
    assert not latest.wanted
    latest.show(Snapshot(at=1.0))
    got: list[Snapshot] = []
    asking = threading.Thread(target=lambda: got.append(latest(EVERYTHING)))
    asking.start()
    assert woken.wait(LONG)
    assert latest.wanted
    asking.join(0.05)
    assert got == []
    latest.show(Snapshot(at=3.0))
    asking.join(LONG)
    assert [snapshot.at for snapshot in got] == [3.0]
    assert not latest.wanted
    assert latest.last.at == 3.0


def test_a_loop_that_does_not_turn_is_not_waited_for() -> None:
    """The last page must do, and the question stands until the next one."""
    latest = LatestSnapshot(Snapshot(at=7.0), lambda: None, wait=0.01)
    assert latest(EVERYTHING).at == 7.0
    assert latest.wanted


def test_who_asks_for_figures_does_not_wait_for_pages() -> None:
    """And who asks for a page is not content with figures; the question for it stands meanwhile."""
    asked = threading.Semaphore(0)
    latest = LatestSnapshot(Snapshot(at=0.0), asked.release, wait=LONG)
    got: dict[str, float] = {}
    scrape = threading.Thread(target=lambda: got.update(scrape=latest(FIGURES).at))
    scrape.start()
    assert asked.acquire(timeout=LONG)
    assert latest.wanted
    assert not latest.asked.pages
    page = threading.Thread(target=lambda: got.update(page=latest(EVERYTHING).at))
    page.start()
    assert asked.acquire(timeout=LONG)
    assert latest.asked.pages
    latest.show(Snapshot(at=1.0), FIGURES)
    scrape.join(LONG)
    page.join(0.05)
    assert got == {"scrape": 1.0}
    assert latest.wanted
    latest.show(Snapshot(at=2.0), EVERYTHING)
    page.join(LONG)
    assert got == {"scrape": 1.0, "page": 2.0}
    assert not latest.wanted
    assert not latest.asked.pages


def test_who_asks_for_one_run_does_not_get_the_whole_of_another() -> None:
    """All who wait are asked for together; a snapshot answers those who wanted no more than it holds."""
    latest = LatestSnapshot(Snapshot(at=0.0), lambda: None, wait=0.01)
    a, b = (ViewRequest(pages=False, whole=frozenset({name})) for name in ("a", "b?"))
    for question in (a, b, CARDS):
        latest(question)
    asked = latest.asked
    assert [asked.page_of(run) for run in ("a", "c")] == [True, True]
    assert [asked.whole_of(run) for run in ("a", "b\udcff", "c")] == [True, True, False]
    latest.show(Snapshot(at=1.0), a)
    assert latest.asked == b | CARDS
    latest.show(Snapshot(at=2.0), EVERYTHING)
    assert not latest.wanted


def test_a_loop_that_has_ended_is_not_waited_for() -> None:
    """Who waits as it ends has the last page at once, as who asks behind that: outputs delete their figures in time."""
    asked, got = threading.Event(), list[Snapshot]()
    latest = LatestSnapshot(Snapshot(at=7.0), asked.set, wait=LONG)
    for before in (True, False):
        asking = threading.Thread(target=lambda: got.append(latest(EVERYTHING)), daemon=True)
        asking.start()
        if before:
            assert asked.wait(LONG)
            latest.end()
        asking.join(LONG / 2)
        assert not asking.is_alive()
    assert [snapshot.at for snapshot in got] == [7.0, 7.0]

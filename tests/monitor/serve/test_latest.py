"""Pages are made when somebody asks: who asks sees what was folded before, and waits for a busy loop a moment only."""

import threading

from monitor.serve.latest import Latest
from monitor.snapshot import Snapshot

LONG = 10.0


def test_who_asks_gets_a_page_made_after_the_question() -> None:
    """The loop is woken; a page that was made before does not do."""
    woken = threading.Event()
    latest = Latest(Snapshot(at=0.0), woken.set, wait=LONG)
    assert not latest.wanted
    latest.show(Snapshot(at=1.0))
    got: list[Snapshot] = []
    asking = threading.Thread(target=lambda: got.append(latest()))
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


def test_one_page_answers_all_who_wait() -> None:
    """Ten scrapes at once cost one page."""
    all_there = threading.Semaphore(0)
    latest = Latest(Snapshot(at=0.0), all_there.release, wait=LONG)
    got: list[float] = []
    threads = [threading.Thread(target=lambda: got.append(latest().at)) for _ in range(10)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert all_there.acquire(timeout=LONG)
    latest.show(Snapshot(at=5.0))
    for thread in threads:
        thread.join(LONG)
    assert got == [5.0] * 10


def test_a_loop_that_does_not_turn_is_not_waited_for() -> None:
    """The last page must do, and the question stands until the next one."""
    latest = Latest(Snapshot(at=7.0), lambda: None, wait=0.01)
    assert latest().at == 7.0
    assert latest.wanted


def test_a_loop_that_is_busy_for_half_a_second_is_waited_for() -> None:
    """A turn with 500 runs takes so long on a loaded machine, and the last snapshot is as old as the scrape before."""
    latest = Latest(Snapshot(at=7.0), lambda: None)
    threading.Timer(0.5, latest.show, (Snapshot(at=8.0),)).start()
    assert latest.figures().at == 8.0


def test_who_asks_for_figures_does_not_wait_for_pages() -> None:
    """And who asks for a page is not content with figures; the question for it stands meanwhile."""
    asked = threading.Semaphore(0)
    latest = Latest(Snapshot(at=0.0), asked.release, wait=LONG)
    got: dict[str, float] = {}
    scrape = threading.Thread(target=lambda: got.update(scrape=latest.figures().at))
    scrape.start()
    assert asked.acquire(timeout=LONG)
    assert latest.wanted
    assert not latest.pages_wanted
    page = threading.Thread(target=lambda: got.update(page=latest().at))
    page.start()
    assert asked.acquire(timeout=LONG)
    assert latest.pages_wanted
    latest.show(Snapshot(at=1.0), pages=False)
    scrape.join(LONG)
    page.join(0.05)
    assert got == {"scrape": 1.0}
    assert latest.wanted
    latest.show(Snapshot(at=2.0), pages=True)
    page.join(LONG)
    assert got == {"scrape": 1.0, "page": 2.0}
    assert not latest.wanted
    assert not latest.pages_wanted

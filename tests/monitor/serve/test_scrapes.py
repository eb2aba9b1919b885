"""Who is waited for at an orderly stop."""

from megatron_monitor.serve.exchange import Request
from megatron_monitor.serve.http import Scrapes

SCRAPER = {"x-prometheus-scrape-timeout-seconds": "10"}


def test_each_scraper_is_waited_for() -> None:
    """A pair of Prometheus, of which each must see the last word; a person's request is waited for by nobody."""
    scrapes = Scrapes()
    none = float("-inf")
    scrapes.answered(Request(path="/metrics", peer="10.0.0.9"), 99.0)
    assert scrapes.expected_until(100.0) == none
    for peer, instants in (("10.0.0.1", (80.0, 95.0)), ("10.0.0.2", (40.0, 100.0))):
        for at in instants:
            scrapes.answered(Request(path="/metrics", peer=peer, headers=SCRAPER), at)
    assert scrapes.expected_until(100.0) == 190.0
    scrapes.answered(Request(path="/metrics", peer="10.0.0.2", headers=SCRAPER), 100.5)
    assert scrapes.expected_until(100.0) == 185.0
    scrapes.answered(Request(path="/metrics", peer="10.0.0.1", headers=SCRAPER), 110.0)
    assert scrapes.expected_until(100.0) == none


def test_a_scraper_that_stays_away_is_forgotten() -> None:
    """After the time in which it is awaited."""
    scrapes = Scrapes()
    for number in range(40):
        scrapes.answered(Request(path="/metrics", peer=f"10.0.0.{number}", headers=SCRAPER), 10.0 * number)
    assert scrapes.expected_until(390.0) == 480.0
    assert len(scrapes._scrapers) == 10

"""The pages in a real browser: they load, stay up to date, draw, obey mouse and keys, are accessible, run nothing foreign."""

import gzip
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from megatron_monitor.serve.formats import count, instant, number
from megatron_monitor.serve.http import App
from megatron_monitor.serve.server import HttpServer
from megatron_monitor.simulate import Fault, Scenario, write
from megatron_monitor.snapshot import RunSnapshot, Snapshot
from megatron_monitor.system.clock import SystemClock
from tests.e2e.browser import Browser, Page
from tests.e2e.conftest import RunningDaemon, Start, daemons
from tests.lines import line
from tests.programs import slack
from tests.simulated import printed

pytestmark = [pytest.mark.e2e, pytest.mark.chromium]
AXE = Path(__file__).parent / "axe-core" / "axe.min.js.gz"
LIVE = "document.getElementById('connection').textContent.includes('live')"
LONG = "a-long-name-" + 188 * "x"
HOSTILE = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One process for all tests."""
    running = Browser(tmp_path_factory.mktemp("chromium"))
    yield running
    running.close()


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """Its tabs end with the test."""
    yield chromium
    chromium.close_pages()


def rich_log(path: Path) -> None:
    """A run with everything that is drawn: evaluation, saves, a crash, a restart, work computed again."""
    scenario = Scenario(
        format="megatron-lm", iterations=120, seconds_per_iteration=2.0, seed=3, world_size=16, tp=2, pp=2, layers=24,
        hidden=2048, heads=16, global_batch_size=64, vocab=50304, save_interval=20, save_seconds=5.0, eval_interval=25,
        eval_seconds=4.0, fp16=True, inner=printed("range"), faults=(Fault("crash_and_restart", at=70),),
    )  # fmt: skip
    with path.open("wb") as stream:
        write(scenario, stream)


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon on a run that hangs, so that an incident is open, and on one that has restarted and finished.

    One for all tests that only look.
    """
    folder = tmp_path_factory.mktemp("hung")
    (folder / "logs").mkdir()
    log = folder / "logs" / "train.log"
    log.write_text("".join(line(number) for number in range(1, 40)))
    rich_log(folder / "logs" / "rich.log")
    (folder / "logs" / f"{LONG}.log").write_text("".join(line(number) for number in range(1, 40)))
    with daemons(folder) as start:
        yield hang(start("--set", "detectors.hang.minimum=1s", str(folder / "logs" / "*.log")), log, line(40))


def hang(daemon: RunningDaemon, log: Path, last: str) -> RunningDaemon:
    """The daemon, once it has seen the log move and stop."""
    daemon.wait(lambda: daemon.status("/-/ready") == 200 and "progress_at" in daemon.get("/api/v1/runs"), timeout=30)
    with log.open("a") as stream:
        stream.write(last)
    daemon.wait(lambda: '"incident": "hang"' in daemon.get("/api/v1/incidents"), timeout=30)
    daemon.wait(lambda: '"state": "hung"' in daemon.get("/api/v1/runs"), timeout=30)
    return daemon


def opened(browser: Browser, address: str, **options: Any) -> Page:
    """A page that has heard from the daemon."""
    page = browser.page(**options)
    page.open(address)
    page.wait(LIVE)
    return page


def test_all_runs_and_the_open_incident(browser: Browser, hung: RunningDaemon) -> None:
    """State in words, figures, the incident with its evidence; nothing is asked of another host; no error."""
    page = opened(browser, f"http://{hung.address}/")
    page.wait("document.querySelector('tr[data-key=train] [data-k=state]').textContent === '■ hung'")
    row = page.text("tr[data-key=train]")
    with urllib.request.urlopen(f"http://{hung.address}/api/v1/runs", timeout=slack(5)) as answer:
        (timeout,) = [run["timeout_seconds"] for run in json.load(answer)["runs"] if run["run"] == "train"]
    assert timeout >= 1.0  # more where a busy machine's gaps were learned
    allowed = f"of {timeout:.1f} s allowed"
    for words in ("40", "of 1,000, 4.0\u00a0%", "s ago", allowed, "no checkpoint yet", "■ hang critical"):
        assert words in row
    article = page.text("#incidents article[data-key='train hang']")
    for words in ("no progress for", "timeout seconds", "iteration       40/"):
        assert words in article
    assert page.text("tr[data-key=rich] [data-k=state]") == "✔ finished"
    assert {address.split("/")[2] for address in page.requests} == {hung.address}
    assert page.problems == []


def test_the_log_of_a_hang_opens_at_its_line(browser: Browser, hung: RunningDaemon) -> None:
    """The marked line is visible in the box without scrolling, though forty lines come before it."""
    page = opened(browser, f"http://{hung.address}/runs/train")
    page.wait("document.querySelector('.log[open] mark') !== null")
    assert "iteration       40/" in page.text(".log[open] mark")
    page.wait(
        "(([box, mark]) => mark.bottom <= box.bottom + 1 && mark.top >= box.top - 1)"
        "(['.log[open] pre', '.log[open] mark'].map((part) => document.querySelector(part).getBoundingClientRect()))"
    )
    at = page.evaluate("document.querySelector('.log[open] pre').scrollTop")
    page.wait("performance.getEntriesByType('resource').filter(({ name }) => name.endsWith('/runs/train')).length > 2")
    assert page.evaluate("document.querySelector('.log[open] pre').scrollTop") == at > 0


def test_the_page_moves_with_the_run_without_loading_anew(browser: Browser, start: Start, tmp_path: Path) -> None:
    """New lines, a new run, an end: shown within seconds in the same document, and a lost daemon is told."""
    log = tmp_path / "train.log"
    log.write_text("".join(line(number) for number in range(1, 9)))
    daemon = start(str(tmp_path / "*.log"), "--set", "poll_interval=25ms")
    daemon.wait(lambda: "training" in daemon.get("/api/v1/runs"))
    page = opened(browser, f"http://{daemon.address}/")
    page.evaluate("window.marker = document.querySelector('tr[data-key=train]')")
    with log.open("a") as stream:
        stream.write(line(9))
    page.wait("document.querySelector('[data-k=iteration]').textContent === '9'")
    assert page.evaluate("window.marker.isConnected")
    (tmp_path / "another.log").write_text(line(5) + line(6))
    page.wait("document.querySelectorAll('tbody tr').length === 2")
    link = "document.querySelector('tr[data-key=another] a').href"
    assert page.evaluate(link) == f"http://{daemon.address}/runs/another"
    assert page.problems == []
    daemon.kill()
    page.wait("document.getElementById('connection').textContent.includes('not connected')")


def test_a_runs_charts_have_data_and_follow(browser: Browser, start: Start, tmp_path: Path) -> None:
    """Every series is drawn, its figures are those of the log, and a new line reaches the chart."""
    log = tmp_path / "train.log"
    log.write_text("".join(line(number) for number in range(1, 101)))
    daemon = start(str(log))
    daemon.wait(lambda: "training" in daemon.get("/api/v1/runs"))
    page = opened(browser, f"http://{daemon.address}/runs/train")
    titles = "[...document.querySelectorAll('.chart h3')].map((h) => h.firstChild.textContent)"
    page.wait("document.querySelectorAll('.chart').length === 2")
    assert page.evaluate(titles) == ["Loss", "Grad norm"]
    constant = "Constant: Seconds per iteration 0.25, Learning rate 0.00015, Loss scale 1, Batch size 8"
    assert page.text("#constants") == constant
    label = "document.querySelector('.frame').getAttribute('aria-label')"
    assert "Chart of Loss: last 2.9, lowest 2.9, highest 2.999." in page.evaluate(label)
    assert all(count > 150 for count in page.evaluate(PIXELS)), page.evaluate(PIXELS)
    with log.open("a") as stream:
        stream.write(line(101))
    page.wait(f"{label}.includes('last 2.899, lowest 2.899')")
    page.wait("document.getElementById('range').textContent === 'all: 1 to 101'")
    page.evaluate("[...document.querySelectorAll('#controls label')].at(-1).click()")
    page.wait("document.querySelectorAll('.chart').length === 6")
    assert (page.text("#constants"), page.evaluate("location.hash")) == ("", "#constant=1")
    page.evaluate("localStorage.clear()")
    with log.open("a") as stream:
        stream.write(line(102, seconds=0.5, batch=16))
    page.wait("document.querySelectorAll('.chart').length === 6")
    again = opened(browser, f"http://{daemon.address}/runs/train")
    again.wait("document.getElementById('constants').textContent === 'Constant: Learning rate 0.00015, Loss scale 1'")
    assert page.problems == again.problems == []


PIXELS = """[...document.querySelectorAll('canvas')].map((canvas) => {
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  let blue = 0;
  for (let at = 0; at < data.length; at += 4) if (data[at + 3] > 99 && data[at + 2] > data[at] + 60) blue += 1;
  return blue;
})"""


def test_a_reader_explores_a_run(browser: Browser, hung: RunningDaemon) -> None:
    """A restart is told; axis, smoothing, zoom by mouse and keys, another run beside it. The address
    holds the choices: who opens it sees the same.
    """
    page = opened(browser, f"http://{hung.address}/runs/rich")
    page.wait("document.querySelectorAll('.chart').length >= 8")
    assert "┆ restart61after iteration 69: 9 computed again" in page.text("#past")
    choose(page, "#controls", "x-axis", "samples")
    page.wait("document.getElementById('range').textContent === 'all: 64 to 7,680'")  # 120 iterations of 64
    choose(page, "#controls", "x-axis", "iteration")
    page.evaluate("document.querySelector('.chart').scrollIntoView()")
    left, top, width, height = page.evaluate(
        "(({left, top, width, height}) => [left, top, width, height])(document.querySelector('.u-over').getBoundingClientRect())"
    )
    page.drag((left + width * 0.25, top + height / 2), (left + width * 0.75, top + height / 2))
    low, high = map(int, page.text("#range").split(" to "))
    assert (25 <= low <= 35, 85 <= high <= 95) == (True, True), (low, high)
    page.evaluate("document.querySelector('.frame').focus()")
    page.key("0")
    assert page.text("#range") == "all: 1 to 120"
    choose(page, "#controls", "smoothing", "10")
    for value in ("train", LONG):
        page.evaluate(f"document.querySelector('[name=with][value={value}]').click()")
        page.wait(f"document.querySelector('.chart .readout').textContent.includes('{value}')")
    swatches = "[...document.querySelectorAll('.chart')].map((c) => [...c.querySelectorAll('.readout i')].map((i) => i.style.borderTop))"
    legends = page.evaluate(swatches)
    assert 3 in map(len, legends)  # the normal pace and two runs
    assert all(len(set(looks)) == len(looks) for looks in legends)
    page.wait("document.querySelector('.compared').textContent.includes('tp')")
    assert page.text(".compared thead").startswith("KindSettingricha-long")
    again = browser.page()
    again.open(page.evaluate("location.href"))
    again.wait("document.querySelector('.chart .readout')?.textContent.includes('xxx train')")
    assert again.evaluate("[...document.querySelectorAll('#controls select')].at(-1).value") == "10"
    page.evaluate("localStorage.clear()")
    assert page.problems == again.problems == []


def choose(page: Page, where: str, label: str, value: str) -> None:
    """Choose in the charts' controls, as a reader does."""
    page.evaluate(
        f"(() => {{ const s = [...document.querySelectorAll('{where} label')].find((l) => l.textContent.startsWith('{label}'))"
        f".querySelector('select'); s.value = '{value}'; s.dispatchEvent(new Event('change')); }})()"
    )


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1600, True), (390, False), (390, True)])
def test_accessible(browser: Browser, hung: RunningDaemon, width: int, dark: bool) -> None:
    """Axe finds nothing on either page, light and dark, wide and on a phone; nothing is wider than the screen."""
    axe = gzip.decompress(AXE.read_bytes()).decode()
    for path in ("help", "", "runs/train", f"runs/rich?with={LONG}&attempt=1"):
        page = browser.page(width=width, dark=dark)
        page.open(f"http://{hung.address}/{path}")
        if path != "help":
            page.wait(LIVE)
        if path.startswith("runs"):
            page.wait("document.querySelectorAll('.chart').length >= 2")
        page.evaluate(axe + ";null")
        found = page.evaluate(
            "axe.run().then((r) => r.violations.map((v) => [v.id, v.impact, v.nodes.map((n) => n.html)]))"
        )
        assert found == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(
            "[...document.querySelectorAll('.scroll:has(.fleet)')].every((box) => box.scrollWidth <= box.clientWidth)"
        )
        assert page.problems == []


def test_nothing_of_a_log_is_run(browser: Browser, start: Start, tmp_path: Path) -> None:
    """Markup in lines, losses' names and file names is text."""
    log = tmp_path / f"{HOSTILE.replace('/', '')}.log"
    hostile = line(9).replace("lm loss", f"{HOSTILE} loss: 1.0 | lm loss")
    log.write_text("".join(line(number) for number in range(1, 9)))
    daemon = hang(start("--set", "detectors.hang.minimum=1s", str(tmp_path / "*.log")), log, hostile)
    page = opened(browser, f"http://{daemon.address}/")
    page.wait("document.querySelector('#incidents article pre') !== null")
    for _ in range(2):
        assert "<img src=x" in page.text("main")
        assert page.evaluate(
            "[document.images.length, window.hacked, document.querySelectorAll('main script').length]"
        ) in ([0, None, 0], [0, 0])
        assert page.problems == []
        page.open(page.evaluate("document.querySelector('a[href^=runs], h3 a').href"))
        page.wait(LIVE)


def test_figures_of_charts_read_like_those_of_the_server(browser: Browser, hung: RunningDaemon) -> None:
    """Numbers beside a chart and in a table are rounded alike; only powers of ten are written as a browser does."""
    page = opened(browser, f"http://{hung.address}/")
    values: list[Any] = [
        None, 0, 1, 7, 999, 1000, 1234.4, 123456789, 0.26, 0.1234567, 99.95, 999.96, 1e-4, -2.5, -0.0004567, 2.0**32,
        31_536_000.4, 1.5e12, "nan",
    ]  # fmt: skip
    for name, python in {"number": number, "instant": instant, "count": count}.items():
        got = page.evaluate(f"import('./static/format.js').then((m) => {json.dumps(values)}.map((v) => m.{name}(v)))")
        assert got == [python(value) for value in values], name
    powers = "import('./static/format.js').then((m) => [6e-6, 3.21e-12, 1.23e20].map(m.number))"
    assert page.evaluate(powers) == ["6e-6", "3.21e-12", "1.23e+20"]


def test_without_script_the_page_still_tells(browser: Browser, hung: RunningDaemon) -> None:
    """The server writes all but the charts, and the filter is a form with a button."""
    page = browser.page()
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    page.call("Page.navigate", url=f"http://{hung.address}/runs/train")
    page.wait("document.querySelector('#incidents article') !== null")
    assert "hung" in page.text("h1")
    assert "iteration       40/" in page.text("main > section:last-of-type pre")
    page.call("Page.navigate", url=f"http://{hung.address}/?sort=-run")
    page.wait("document.querySelectorAll('tbody tr').length === 3")
    page.evaluate(
        "(document.getElementById('query').value = 'rich tp=2', document.querySelector('noscript button').click())"
    )
    page.wait("document.querySelectorAll('tbody tr').length === 1 && location.search.startsWith('?q=rich+tp%3D2')")


@pytest.fixture
def many() -> Iterator[str]:
    """The address of a server that shows 500 runs: the first 40 hang, the last 100 are over."""
    clock, runs = SystemClock(), []
    now = clock.wall()
    for at in range(500):
        name, state = f"run-{at:03}", "finished" if at >= 400 else "hung" if at < 40 else "training"
        reported = {"run": name, "incident": "hang", "severity": "critical", "since": now - 60 - at, "summary": "still " * 20,
                "gpus": 64, "advice": "cancel it", "command": "scancel 4711"}  # fmt: skip
        page = {"run": name, "state": state, "iteration": 7 * at, "train_iterations": 9000, "slowdown_ratio": 1 + at / 1000,
                "progress_at": now - at, "incidents": [reported] if at < 40 else [], "topology": {"tp": at % 8}}  # fmt: skip
        runs.append(RunSnapshot(name, {}, page))
    hangs = tuple(one for run in runs for one in run.page["incidents"])
    snapshot = Snapshot(now, tuple(runs), incidents=hangs, ready=True)
    server = HttpServer("127.0.0.1", 0, App(lambda _asked: snapshot, clock, clock.monotonic))
    server.start()
    yield "http://{}:{}/".format(*server.address)
    server.stop()


def test_many_runs_and_incidents_fit_the_first_screen(browser: Browser, many: str) -> None:
    """500 runs, 40 incidents: the five worst, a line each; 50 rows, more when asked for; all can be filtered and sorted,
    and the choice stands in the address.
    """
    page = opened(browser, many, width=1600, height=900)
    page.wait("document.querySelectorAll('tbody tr').length === 50")
    cards = "[...document.querySelectorAll('#incidents article')]"
    worst = [f"run-{at:03}" for at in range(39, 34, -1)]
    assert page.evaluate(f"{cards}.map((a) => a.querySelector('a').textContent)") == worst
    assert page.evaluate(f"Math.max(...{cards}.map((a) => a.offsetHeight))") <= 40
    assert page.evaluate("document.querySelector('tbody tr').getBoundingClientRect().bottom") < 600
    assert page.text("#more summary") == "35 more: 35 hang"
    assert page.text("p:has(> .button)") == "▸ Show 50 more of 450"
    page.evaluate("document.querySelector('.button').click()")
    page.wait("document.querySelectorAll('tbody tr').length === 100")
    page.evaluate("document.querySelector('[data-key=over_normal] a').click()")
    names = "[...document.querySelectorAll('tbody tr')].map((r) => r.dataset.key)"
    page.wait(f"{names}[0] === 'run-499'")
    page.evaluate("document.querySelector('[value=hung]').click()")
    type_into(page, "RUN-01 tp=3")
    page.wait(f"String({names}) === 'run-019,run-011'")
    assert page.evaluate("location.search") == "?sort=-over_normal&rows=100&q=RUN-01+tp%3D3&state=hung"
    shared = opened(browser, page.evaluate("location.href"))
    assert shared.evaluate(names) == ["run-019", "run-011"]
    type_into(shared, "nothing")
    shared.wait("document.querySelector('main').textContent.includes('No run matches.')")
    shared.evaluate("[...document.querySelectorAll('main a')].find((a) => a.textContent === 'Show all runs').click()")
    shared.wait(f"{names}.length === 100 && document.getElementById('query').value === ''")
    assert page.problems == shared.problems == []


def type_into(page: Page, text: str) -> None:
    """Write into the field that filters runs."""
    page.evaluate(
        f"(() => {{ const q = document.getElementById('query'); q.value = {json.dumps(text)};"
        " q.dispatchEvent(new Event('input', { bubbles: true })); })()"
    )


def test_what_a_reader_has_unfolded_focused_and_chosen_survives_a_renewal(browser: Browser, many: str) -> None:
    """The page is replaced part by part: focus, an unfolded incident, its copied command."""
    page = opened(browser, many)
    page.evaluate("document.querySelector('#incidents article summary').click()")
    page.evaluate("document.querySelector('#incidents [data-copies]').click()")
    page.wait("document.querySelector('#incidents [data-copies]').textContent === 'Copied'")
    page.evaluate("(document.querySelector('th[data-key=run] a').focus(), document.activeElement.click())")
    page.wait("document.querySelector('tbody tr').dataset.key === 'run-499'")  # sorted by name, largest first
    assert page.evaluate("document.activeElement.textContent") == "Run"
    assert page.evaluate("document.querySelector('#incidents article details').open")
    assert page.problems == []

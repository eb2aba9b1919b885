"""The pages in a real browser: they load, stay up to date, draw, obey mouse and keys, are accessible, run nothing foreign."""

import gzip
import json
import re
import select
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from megatron_monitor.serve.formats import FLEET, count, duration, instant, number
from megatron_monitor.serve.page import fleet_run
from megatron_monitor.simulate import Fault, Scenario, write
from tests.e2e.browser import Browser, Page
from tests.e2e.conftest import RunningDaemon, Start, daemons
from tests.lines import line
from tests.programs import serving, slack

pytestmark = [pytest.mark.e2e, pytest.mark.chromium]
AXE = Path(__file__).parent / "axe-core" / "axe.min.js.gz"
LIVE = "document.getElementById('connection').textContent.includes('live')"
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
        dialect="megatron-lm", iterations=120, seconds_per_iteration=2.0, seed=3, world_size=16, tp=2, pp=2, layers=24,
        hidden=2048, heads=16, global_batch_size=64, vocab=50304, save_interval=20, save_seconds=5.0, eval_interval=25,
        eval_seconds=4.0, fp16=True, timers="range", faults=(Fault("crash_and_restart", at=70),),
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
    page.wait("document.querySelector('tr[data-run=train] [data-k=state]').textContent === '■ hung'")
    row = page.text("tr[data-run=train]")
    with urllib.request.urlopen(f"http://{hung.address}/api/v1/runs", timeout=slack(5)) as answer:
        (budget,) = [run["budget_seconds"] for run in json.load(answer)["runs"] if run["run"] == "train"]
    assert budget >= 1.0  # more where a busy machine's gaps were learned
    allowed = f"of {budget:.1f} s allowed"
    for words in ("40", "of 1,000, 4.0\u00a0%", "s ago", allowed, "no checkpoint yet", "■ hang critical"):
        assert words in row
    article = page.text("#incidents article")
    for words in ("no progress for", "budget seconds", "iteration       40/"):
        assert words in article
    assert page.text("tr[data-run=rich] [data-k=state]") == "✔ finished"
    assert {address.split("/")[2] for address in page.requests} == {hung.address}
    assert page.problems == []


def test_the_page_moves_with_the_run_without_loading_anew(browser: Browser, start: Start, tmp_path: Path) -> None:
    """New lines, a new run, an end: shown within seconds in the same document, and a lost daemon is told."""
    log = tmp_path / "train.log"
    log.write_text("".join(line(number) for number in range(1, 9)))
    daemon = start(str(tmp_path / "*.log"), "--set", "follow.discovery_interval=0.5s")
    daemon.wait(lambda: "training" in daemon.get("/api/v1/runs"))
    page = opened(browser, f"http://{daemon.address}/")
    page.evaluate("window.marker = document.querySelector('tr[data-run=train]')")
    with log.open("a") as stream:
        stream.write(line(9))
    page.wait("document.querySelector('[data-k=iteration]').textContent === '9'")
    assert page.evaluate("window.marker.isConnected")
    (tmp_path / "another.log").write_text(line(5) + line(6))
    page.wait("document.querySelectorAll('tbody tr').length === 2")
    link = "document.querySelector('tr[data-run=another] a').href"
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
    page.wait("document.querySelectorAll('.chart').length === 6")
    titles = page.evaluate("[...document.querySelectorAll('.chart h3')].map((h) => h.firstChild.textContent)")
    assert titles == ["Loss", "Grad norm", "Seconds per iteration", "Learning rate", "Loss scale", "Batch size"]
    label = "document.querySelector('.frame').getAttribute('aria-label')"
    assert "Chart of Loss: last 2.9, lowest 2.9, highest 2.999." in page.evaluate(label)
    assert all(count > 150 for count in page.evaluate(PIXELS)), page.evaluate(PIXELS)
    with log.open("a") as stream:
        stream.write(line(101))
    page.wait(f"{label}.includes('last 2.899, lowest 2.899')")
    page.wait("document.getElementById('range').textContent === 'all: 1 to 101'")
    assert page.problems == []


def test_where_an_iteration_goes_is_drawn(browser: Browser, hung: RunningDaemon) -> None:
    """One area a category, upon one another: what a line's timers say is read out, and adds up to the iteration."""
    page = opened(browser, f"http://{hung.address}/runs/rich")
    chart = "[...document.querySelectorAll('.chart')].find((c) => c.textContent.startsWith('Where an iteration goes'))"
    page.wait(f"{chart} !== undefined")
    assert page.evaluate(f"{chart}.querySelector('.readout').textContent").startswith("compute, communication, data")
    page.evaluate(f"(() => {{ const over = {chart}.querySelector('.u-over'), box = over.getBoundingClientRect(); "
                  "over.dispatchEvent(new MouseEvent('mousemove', {clientX: box.x + box.width / 2, clientY: box.y + 20, "
                  "bubbles: true})); })()")  # fmt: skip
    page.wait(f"{chart}.querySelector('.readout').textContent.startsWith('iteration ')")
    parts = re.findall(
        r"(\w+) ([\d.]+)", page.evaluate(f"{chart}.querySelector('.readout').textContent").split(": ")[1]
    )
    assert sum(float(seconds) for _, seconds in parts) == pytest.approx(2.0, abs=0.15)
    assert {"compute", "communication", "data", "optimizer", "untimed"} <= {name for name, _ in parts}
    spread = "[...document.querySelectorAll('.chart')].find((c) => c.textContent.startsWith('Slowest rank'))"
    page.wait(f"{spread}.querySelector('.readout').textContent.startsWith('iteration ')")  # one cursor for all charts
    apart = dict(re.findall(r"(\w+) ([\d.]+)", page.evaluate(f"{spread}.querySelector('.readout').textContent")))
    assert 0 < float(apart["compute"]) < 0.5
    assert page.problems == []


def test_a_line_breaks_where_nothing_was_computed_for_long(browser: Browser, hung: RunningDaemon) -> None:
    """By time; a run that stood still for days has no figures there."""
    page = opened(browser, f"http://{hung.address}/runs/train")
    rows = page.evaluate("""import('../static/axis.js').then(({ Axis }) => {
      const time = [0, 10, 20, 30, 40, 50, 900000, 900010], many = (value) => time.map(() => value);
      const iteration = time.map((_, at) => at + 1);
      const past = { columns: { time, iteration, first_iteration: iteration, attempt: many(0) }, axes: {} };
      return ['time', 'iteration'].map((name) => new Axis(past, name, false).rows);
    })""")
    assert rows == [[0, 1, 2, 3, 4, 5, -1, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7]]


def test_incidents_are_tinted_from_onset_to_end(browser: Browser, hung: RunningDaemon) -> None:
    """On every axis; one that grew worse is one, of the last severity; one that is open lasts to the end of the axis."""
    page = opened(browser, f"http://{hung.address}/runs/train")
    got = page.evaluate("""Promise.all(['axis', 'marks'].map((name) => import(`../static/${name}.js`))).then(([{ Axis }, { marksOf }]) => {
      const iteration = [1, 2, 3, 4, 5, 6, 7, 8], time = iteration.map((at) => 1000 + 10 * at);
      const axes = { samples: iteration.map((at) => (at < 4 ? 8 * at : 32 * at - 72)) };
      const past = { columns: { time, iteration, first_iteration: iteration, attempt: iteration.map(() => 0) }, axes };
      const item = (incident, status, severity, at, onset) => ({ incident, status, severity, iteration: at, onset_iteration: onset,
        since: 1000 + 10 * onset, time: new Date(1000 * (1000 + 10 * at)).toISOString() });
      const incidents = [item('slowdown', 'firing', 'warning', 4, 3), item('slowdown', 'firing', 'critical', 5, 3),
        item('hang', 'firing', 'critical', 6, 6), item('slowdown', 'resolved', 'critical', 7, 3)];
      return ['iteration', 'time', 'samples'].map((name) =>
        marksOf({ incidents, restarts: [], phases: [] }, new Axis(past, name, false)).lines.map(({ x, to, text }) => [x, to, text]));
    })""")
    assert got == [
        [[3, 7, "■ slowdown"], [6, 8, "■ hang"]],
        [[1030, 1070, "■ slowdown"], [1060, 1080, "■ hang"]],
        [[24, 152, "■ slowdown"], [120, 184, "■ hang"]],
    ]


def test_the_past_survives_a_restart_and_a_lost_state(start: Start, tmp_path: Path) -> None:
    """Stopped, killed, or without its state file: the charts' rows are those of the log, each once."""
    log = tmp_path / "train.log"
    wanted: list[int] = []
    arguments = ("--set", f"state_dir={tmp_path / 'mine'}", str(log))
    for ending in ("stopped", "killed", "lost", "end"):
        written = len(wanted)
        with log.open("a") as stream:
            stream.write("".join(line(number) for number in range(written + 1, written + 41)))
        wanted = list(range(1, written + 41))
        daemon = start(*arguments)
        daemon.wait(lambda wanted=wanted, daemon=daemon: rows(daemon) == wanted)  # type: ignore[misc]
        if ending == "stopped":
            assert daemon.terminate() == 0
        else:
            daemon.kill()
        if ending == "lost":
            for file in (tmp_path / "mine").glob("state*"):
                file.write_bytes(b"rubbish")


def rows(daemon: RunningDaemon) -> list[int]:
    """The iterations that the charts would show; each bucket holds one here."""
    if daemon.status("/api/v1/runs/train/history") != 200:
        return []
    return list(json.loads(daemon.get("/api/v1/runs/train/history"))["steps"]["iteration"])


PIXELS = """[...document.querySelectorAll('canvas')].map((canvas) => {
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  let blue = 0;
  for (let at = 0; at < data.length; at += 4) if (data[at + 3] > 99 && data[at + 2] > data[at] + 60) blue += 1;
  return blue;
})"""


def test_a_restart_is_marked_and_lost_work_told_apart(browser: Browser, hung: RunningDaemon) -> None:
    """A crash at 70, back to 61: the incident list, the phases and the chart know it."""
    page = opened(browser, f"http://{hung.address}/runs/rich")
    page.wait("document.querySelectorAll('.chart').length >= 8")
    past = page.text("#past")
    assert "┆ restart61after iteration 69: 9 computed again" in past
    phases = page.text("#phases")
    for words in ("evaluating", "saving", "training", "finished"):
        assert words in phases
    assert page.text("#range") == "all: 1 to 120"
    choose(page, "against", "time")
    page.wait("document.getElementById('range').textContent.includes('UTC to')")
    assert page.problems == []


def choose(page: Page, label: str, value: str) -> None:
    """Choose in the charts' controls, as a reader does."""
    page.evaluate(
        f"(() => {{ const s = [...document.querySelectorAll('#controls label')].find((l) => l.textContent.startsWith('{label}'))"
        f".querySelector('select'); s.value = '{value}'; s.dispatchEvent(new Event('change')); }})()"
    )


def test_charts_against_what_was_used_up(browser: Browser, hung: RunningDaemon) -> None:
    """Samples, tokens, GPU-hours as the log's figures make them; work computed again costs GPU-hours and no samples.

    The choice stands in the address, and the next run's page begins with it; a run without the figure goes by iteration.
    """
    page = opened(browser, f"http://{hung.address}/runs/rich")
    page.wait("document.querySelectorAll('.chart').length >= 8")
    for axis, words in (
        ("samples", "all: 64 to 7,680"),  # 120 iterations of 64
        ("tokens", "all: 131,072 to 15.73 M"),  # of 2,048 tokens
    ):
        choose(page, "against", axis)
        page.wait(f"document.getElementById('range').textContent === '{words}'")
    choose(page, "against", "gpu_hours")
    page.wait("document.getElementById('range').textContent.startsWith('all: 0.0')")
    hours = float(page.text("#range").rpartition(" ")[2])
    assert hours == pytest.approx((120 + 9) * 2.0 * 16 / 3600, rel=0.03)  # nine iterations twice, on 16 GPUs
    choose(page, "smoothing", "10")
    assert page.evaluate("location.hash") == "#axis=gpu_hours&smooth=10"
    page.evaluate(
        "[...document.querySelectorAll('#controls label')].find((l) => /log axis/.test(l.textContent)).click()"
    )
    page.wait("location.hash === '#axis=gpu_hours&logAxis=1&smooth=10'")
    page.evaluate("document.querySelector('button[aria-label=\"Zoom in\"]').click()")
    zoomed = page.text("#range")
    link = page.evaluate("location.href")
    again = browser.page()
    again.open(link)
    again.wait(f"document.getElementById('range')?.textContent === '{zoomed}'")
    other = opened(browser, f"http://{hung.address}/runs/train")  # its log names no sizes
    other.wait("document.querySelectorAll('.chart').length === 6")
    assert other.evaluate("document.querySelector('#controls select').value") == "iteration"
    assert other.evaluate("[...document.querySelectorAll('#controls select')].at(-1).value") == "10"
    page.evaluate("localStorage.clear()")
    assert page.problems == again.problems == other.problems == []


def test_zoom_by_mouse_keys_and_buttons(browser: Browser, hung: RunningDaemon) -> None:
    """A drag zooms all charts, keys move and reset, buttons do the same; updates do not undo it."""
    page = opened(browser, f"http://{hung.address}/runs/rich")
    page.wait("document.querySelectorAll('.chart').length >= 8")
    page.evaluate("document.querySelector('.chart').scrollIntoView()")
    box = page.evaluate(
        "(({left, top, width, height}) => [left, top, width, height])(document.querySelector('.u-over').getBoundingClientRect())"
    )
    left, top, width, height = box
    page.drag((left + width * 0.25, top + height / 2), (left + width * 0.75, top + height / 2))
    low, high = shown(page)
    assert (25 <= low <= 35, 85 <= high <= 95) == (True, True), (low, high)
    page.evaluate("document.querySelector('.frame').focus()")
    page.key("+")
    assert shown(page)[0] > low
    page.key("ArrowRight")
    assert shown(page)[1] > 75
    inner = shown(page)
    select.select([], [], [], 2.5)
    assert shown(page) == inner
    page.key("0")
    assert page.text("#range") == "all: 1 to 120"
    page.evaluate("document.querySelector('button[aria-label=\"Zoom in\"]').click()")
    assert shown(page) == (31, 90)
    assert page.problems == []


def shown(page: Page) -> tuple[int, int]:
    """The range of iterations that the charts show."""
    low, _, high = page.text("#range").removeprefix("all: ").partition(" to ")
    return int(low), int(high)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False), (390, True)])
def test_accessible(browser: Browser, hung: RunningDaemon, width: int, dark: bool) -> None:
    """Axe finds nothing on either page, light and dark, wide and on a phone; nothing is wider than the screen."""
    axe = gzip.decompress(AXE.read_bytes()).decode()
    for path in ("", "runs/train", "runs/rich"):
        page = opened(browser, f"http://{hung.address}/{path}", width=width, dark=dark)
        if path:
            page.wait("document.querySelectorAll('.chart').length >= 6")
        page.evaluate(axe + ";null")
        found = page.evaluate(
            "axe.run().then((r) => r.violations.map((v) => [v.id, v.impact, v.nodes.map((n) => n.html)]))"
        )
        assert found == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.problems == []


def test_every_width_fits(browser: Browser, hung: RunningDaemon) -> None:
    """From the smallest phone to a wall: nothing makes the page scroll sideways."""
    for path in ("", "runs/train"):
        page = opened(browser, f"http://{hung.address}/{path}")
        for width in (320, 390, 600, 768, 900, 1000, 1080, 1100, 1200, 1300, 1350, 1400, 1500, 1600, 1920):
            page.resize(width)
            widest = (
                "Math.max(...[...document.querySelectorAll('html, main, .scroll .fleet')].map((e) => e.scrollWidth))"
            )
            assert page.evaluate(widest) <= width, (path, width)


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


def test_served_and_live_figures_are_the_same(browser: Browser, hung: RunningDaemon) -> None:
    """What the server writes and what the script writes cannot drift apart."""
    page = opened(browser, f"http://{hung.address}/")
    page.wait("document.querySelectorAll('tbody tr').length === 2")
    cells = "[...D.querySelectorAll('tbody tr')].flatMap((row) => [...row.cells].filter((cell) => !cell.querySelector('[data-k=progress_at]')).map((cell) => [row.dataset.run, cell.textContent.trim(), cell.innerHTML.replace(/ hidden=\"\"/g, '')]))"
    served = page.evaluate(
        f"fetch('./').then((a) => a.text()).then((t) => {{ const D = new DOMParser().parseFromString(t, 'text/html'); return {cells}; }})"
    )
    live = page.evaluate(f"(() => {{ const D = document; return {cells}; }})()")
    assert [cell[:2] for cell in served] == [cell[:2] for cell in live]
    values: list[Any] = [
        None, 0, 1, 7, 999, 1000, 1234.4, 123456789, 0.26, 0.1234567, 99.95, 999.96, 1e-4, 1.5e-5, 3e-12, -2.5,
        -0.0004567, 2.0**32, 31_536_000.4, 59.96, 3599.0, 86399.9, 90061, "nan",
    ]  # fmt: skip
    formats = {"number": number, "duration": duration, "instant": instant, "count": count}
    for name, python in formats.items():
        got = page.evaluate(f"import('./static/format.js').then((m) => {json.dumps(values)}.map((v) => m.{name}(v)))")
        assert got == [python(value) for value in values], name
    for value in (1e15, 1.23e20, -1e300):
        assert page.evaluate(f"import('./static/format.js').then((m) => m.number({value!r}))") == number(value)


def test_behind_a_path_prefix(browser: Browser, start: Start, tmp_path: Path) -> None:
    """A proxy that serves the monitor below /team/monitor/: page, link, charts, and a name with a slash."""
    log = tmp_path / "train.log"
    log.write_text("".join(line(number) for number in range(1, 60)))
    daemon = start("--set", f"runs=[{{name: 'team/a b', paths: ['{log}']}}]")
    daemon.wait(lambda: "training" in daemon.get("/api/v1/runs"))
    with prefixed(daemon.address) as port:
        page = opened(browser, f"http://127.0.0.1:{port}/team/monitor/")
        page.open(page.evaluate("document.querySelector('th a').href"))
        assert page.evaluate("location.pathname") == "/team/monitor/runs/team/a%20b"
        page.wait("document.querySelectorAll('.chart').length === 6")
        assert page.evaluate("document.querySelector('header a').pathname") == "/team/monitor/"
        assert page.problems == []


def test_without_script_the_page_still_tells(browser: Browser, hung: RunningDaemon) -> None:
    """The server writes it all but the charts."""
    page = browser.page()
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    page.call("Page.navigate", url=f"http://{hung.address}/runs/train")
    page.wait("document.querySelector('#incidents article') !== null")
    assert "hung" in page.text("h1")
    assert "iteration       40/" in page.text("main > section:last-child pre")


@contextmanager
def prefixed(address: str) -> Iterator[int]:
    """The port of a reverse proxy that knows the daemon below /team/monitor/."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Hand over what stands below the prefix."""
            if not self.path.startswith("/team/monitor/"):
                self.send_error(404)
                return
            target = f"http://{address}/{self.path[len('/team/monitor/') :]}"
            with urllib.request.urlopen(target, timeout=slack(10)) as answer:
                body = answer.read()
                self.send_response(answer.status)
                for name in ("Content-Type", "Content-Security-Policy"):
                    self.send_header(name, answer.headers[name])
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Silent."""

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield int(server.server_address[1])


def test_perplexity_smoothing_and_what_differs_from_another_run(browser: Browser, hung: RunningDaemon) -> None:
    """The charts obey the choices, and the configuration of two runs is compared."""
    page = opened(browser, f"http://{hung.address}/runs/rich")
    page.wait("document.querySelectorAll('.chart').length > 5")
    label = "document.querySelector('.frame').getAttribute('aria-label')"
    plain = page.evaluate(label)
    page.evaluate(
        "[...document.querySelectorAll('#controls label')].find((l) => /perplexity/.test(l.textContent)).click()"
    )
    page.wait("document.querySelector('.chart h3').firstChild.textContent === 'Perplexity'")
    exponential = page.evaluate(label)
    assert exponential != plain
    choose(page, "smoothing", "50")
    page.wait(f"{label} !== {exponential!r}")
    page.wait("document.querySelector('#beside select') !== null")
    page.evaluate(
        "(() => { const s = document.querySelector('#beside select'); s.value = 'train'; s.dispatchEvent(new Event('change')); })()"
    )
    page.wait("document.querySelector('#compare tbody') !== null")
    assert "tp" in page.evaluate("document.querySelector('#compare tbody').textContent")
    page.wait("document.querySelector('.chart .readout').textContent.endsWith('train')")  # two runs in one chart
    assert page.text("#range") == "all: 1 to 120"
    link = page.evaluate("location.href")
    assert "with=train" in link
    again = browser.page()
    again.open(link)
    again.wait("document.querySelector('.chart .readout')?.textContent.endsWith('train')")
    points = again.evaluate("""Promise.all(['axis', 'kinds'].map((name) => import(`../static/${name}.js`))).then(([{ Axis }, { CHARTS, drawn, told }]) => {
      const past = (iteration, values) => ({ axes: {}, series: { lm_loss: { mean: values, high: values, low: values } },
        columns: { iteration, first_iteration: iteration, attempt: iteration.map(() => 0), time: iteration } });
      const source = (of) => ({ past: of, axis: new Axis(of, 'iteration', false), choices: { smooth: 1 }, run: { incidents: [] }, answer: {} });
      const { data, names } = drawn(CHARTS[0], { ...source(past([2, 4], [1, 2])), other: source(past([1, 2, 3], [7, 8, 9])) });
      const line = (at) => data.map((column) => column[at] ?? null);
      return [data[0], line(1)[1], line(1).at(-1), told(CHARTS[0], names, line(0).slice(1)), told(CHARTS[0], names, line(1).slice(1))];
    })""")
    assert points == [[1, 2, 3, 4], 1, 8, "7 in the other run", "1, 8 in the other run"]
    page.evaluate("localStorage.clear()")
    assert again.problems == []
    assert page.problems == []


def many(count: int = 500, cards: int = 40) -> dict[str, Any]:
    """What the monitor of so many runs would send: that many critical incidents, as many for information, runs that are over."""
    now, runs = 1_700_000_000.0, []
    for at in range(count):
        state = "finished" if at >= count - 100 else "hung" if at < cards else "training"
        told = {
            "run": f"run-{at:03}",
            "since": now - 60 - at,
            "summary": "no progress " * 20,
            "gpus": 64,
            "evidence": {"rank": 3},
        }
        kind = (
            [{"incident": "hang", "severity": "critical", "advice": "cancel it", "command": "scancel 4711"}]
            if at < cards
            else []
        )
        info = [{"incident": "configuration", "severity": "info"}] if cards <= at < 2 * cards else []
        page = {
            "run": told["run"], "state": state, "phase": "training", "iteration": 7 * at, "train_iterations": 9000, "lm_loss": 2.0 + at % 7,
            "seconds_per_iteration": 1.0, "normal_seconds": 1.0, "slowdown_ratio": 1 + at / 1000, "progress_at": now - at,
            "incidents": [{**told, **one} for one in (*kind, *info)],
        }  # fmt: skip
        runs.append(fleet_run(page, now, [*FLEET, "grad_norm"]))
    return {"at": now, "summary": f"{count} runs", "runs": runs}


def shown_runs(page: Page) -> list[str]:
    """The names of the rows that can be seen."""
    return list(
        page.evaluate("[...document.querySelectorAll('tbody tr')].filter((r) => !r.hidden).map((r) => r.dataset.run)")
    )


def test_many_runs_and_incidents_fit_the_first_screen(browser: Browser, hung: RunningDaemon) -> None:
    """500 runs, 40 incidents: the five worst, a line each, on one screen; 50 rows of 36 px, more when asked for; what is over
    is folded; all can be filtered, sorted and chosen, and the choice stands in the address.
    """
    page = opened(browser, f"http://{hung.address}/", width=1600, height=900)
    answer = json.dumps(json.dumps(many(), default=str))
    stub = f"window.fetch = async () => new Response({answer}); null"
    page.evaluate(stub)
    page.wait("document.querySelectorAll('tbody tr').length === 50")
    cards = "[...document.querySelectorAll('#incidents article')]"
    assert page.evaluate(f"{cards}.map((a) => a.querySelector('a').textContent)") == [
        f"run-{at:03}" for at in range(39, 34, -1)
    ]
    assert page.evaluate(f"Math.max(...{cards}.map((a) => a.offsetHeight))") <= 40
    assert page.evaluate("document.querySelector('tbody tr').getBoundingClientRect().bottom") < 600
    assert page.text("#more summary") == "35 more: 35 hang"
    assert page.text("#infos summary") == "40 for information: 40 configuration"
    heights = page.evaluate(
        "[...new Set([...document.querySelectorAll('tbody tr')].filter((r) => !r.hidden).map((r) => r.offsetHeight))]"
    )
    assert max(heights) <= 37
    assert page.text("#more-runs") == "▸ Show 50 more of 350"
    page.evaluate("document.getElementById('over').click()")
    page.evaluate("document.getElementById('more-runs').click()")
    assert (len(shown_runs(page)), page.text("#more-runs")) == (100, "▸ Show 50 more of 400")
    page.evaluate("document.querySelector('[data-sort=over_normal]').click()")
    assert shown_runs(page)[0] == "run-499"
    page.evaluate("document.querySelector('[data-sort=over_normal]').click()")
    assert shown_runs(page)[0] == "run-000"
    page.evaluate("document.querySelector('[data-state=hung]').click()")
    page.evaluate(
        "(() => { const q = document.getElementById('query'); q.value = 'RUN-01'; q.dispatchEvent(new Event('input')); })()"
    )
    assert shown_runs(page) == [f"run-{at:03}" for at in range(10, 20)]
    page.evaluate("document.querySelector('.menu input[value=grad_norm]').click()")
    page.wait(
        "document.querySelector('th[data-key=grad_norm]') !== null && document.querySelectorAll('tbody tr').length === 10"
    )
    address = page.evaluate("location.hash")
    assert address.startswith("#q=RUN-01&state=hung&sort=over_normal&over=1&columns=iteration%2C")
    again = browser.page(width=1600)
    again.open(f"http://{hung.address}/{address}")
    again.evaluate(stub)
    again.wait("document.querySelectorAll('tbody tr').length === 10")
    assert shown_runs(again) == shown_runs(page)
    assert again.evaluate("document.querySelector('th[data-key=grad_norm]').textContent") == "Grad norm"
    again.evaluate("document.querySelector('#incidents summary').click()")
    again.evaluate("document.querySelector('#incidents .command button').click()")
    again.wait("document.querySelector('#incidents .command button').textContent === 'Copied'")
    select.select([], [], [], 2.1)  # an answer later
    assert again.evaluate("document.querySelector('#incidents details').open")  # what a reader unfolded stays so
    page.evaluate("localStorage.clear()")
    assert page.problems == again.problems == []

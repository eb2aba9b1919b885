"""Outputs: written at an interval, failures logged once, removed at the end, no thread in another's way."""

import logging
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from megatron_monitor import outputs as outputs_module
from megatron_monitor.config import ConfigError, load
from megatron_monitor.outputs import Outputs, OutputTimer, Pushgateway, Textfile
from megatron_monitor.prometheus_text import TextFormat
from megatron_monitor.snapshot import MetricSample, RunSnapshot, Snapshot
from tests.programs import slack


def snapshot(iteration: float) -> Snapshot:
    """One run at an iteration."""
    run = RunSnapshot("tr11", {"megatron_iteration": (MetricSample((), iteration),)}, {})
    return Snapshot(at=0.0, runs=(run,), monitor={"megatron_monitor_runs": (MetricSample((), 1.0),)})


class Recorder:
    """An output that fails as scripted."""

    name, interval = "recorder", 15.0

    def __init__(self, *failures: Exception | None) -> None:
        self.failures, self.did = list(failures), []  # type: ignore[var-annotated]

    def write(self, page: bytes, instance: str) -> None:
        """Fails as scripted."""
        self.did.append("write")
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure

    def remove(self, instance: str) -> None:
        """Never fails."""
        self.did.append("remove")


def played(output: Any, ticks: int) -> OutputTimer:
    """A timer that has run its intervals and ended."""
    timer, waited = OutputTimer(output, lambda: snapshot(1), "host:1"), list[float | None]()

    class AtOnce(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout)
            if len(waited) > ticks:
                timer.wake(stop=True)
            return True

    timer._woken = AtOnce()
    timer.start()
    timer.join(slack(10.0))
    return timer


def test_written_at_each_interval_and_removed_once() -> None:
    """Nothing before the first interval, nothing after the end."""
    output = Recorder()
    timer = played(output, 3)
    assert output.did == ["write", "write", "write", "remove"]
    assert timer.counts == {"written": 3, "failed": 0}


def test_a_failure_is_logged_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    """The same failure three times is one line; another, and the recovery, one each. A bug ends nothing."""
    caplog.set_level(logging.INFO)
    refused, full = ConnectionRefusedError("refused"), OSError("full")
    timer = played(Recorder(refused, refused, refused, full, None, RuntimeError("bug"), None), 7)
    assert timer.counts == {"written": 2, "failed": 5}
    reported = [record.getMessage() for record in caplog.records]
    assert reported == [
        "output=recorder outcome=failed error=refused",
        "output=recorder outcome=failed error=full",
        "output=recorder written again",
        "output=recorder outcome=failed error=bug",
        "output=recorder written again",
    ]
    assert "RuntimeError" in caplog.text


def test_an_output_that_hangs_holds_nobody_up(tmp_path: Path) -> None:
    """A gateway that takes the connection and answers nothing: the file beside it is written, and stop returns."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        path = tmp_path / "m.prom"
        outputs = Outputs(
            [
                Pushgateway(
                    name="pushgateway", url=f"http://127.0.0.1:{silent.getsockname()[1]}", interval=0.01, timeout=30.0
                ),
                Textfile(name="textfile", path=str(path), interval=0.01),
            ],
            lambda: snapshot(1),
            "host:9843",
        )
        outputs.start()
        for _ in range(500):
            if outputs.counts()[("textfile", "written")] >= 3:
                break
            threading.Event().wait(0.01)
        assert path.exists()
        assert outputs.counts()[("pushgateway", "written")] == 0
        outputs.stop(0.4)
        assert not path.exists()


def test_a_textfile_is_whole_whenever_it_is_read(tmp_path: Path) -> None:
    """A reader beside the writer never sees half a page; nothing is left beside the file."""
    path = tmp_path / "m.prom"
    textfile = Textfile(name="textfile", path=str(path))
    page = TextFormat().page(snapshot(7)).encode()
    textfile.write(page, "host:1")
    stop = threading.Event()

    def rewrite() -> None:
        while not stop.is_set():
            textfile.write(page, "host:1")

    writer = threading.Thread(target=rewrite)
    writer.start()
    pages = {path.read_text() for _ in range(2000)}
    stop.set()
    writer.join()
    assert len(pages) == 1
    assert 'megatron_iteration{run="tr11"} 7.0' in pages.pop()
    assert [one.name for one in tmp_path.iterdir()] == ["m.prom"]
    textfile.remove("host:1")
    textfile.remove("host:1")  # a file that somebody took away already is no failure
    assert not list(tmp_path.iterdir())


def test_the_page_is_pushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By PUT, to the group of this daemon."""
    sent: list[tuple[str, str, bytes]] = []

    def sender(url: str, method: str, timeout: float, headers: Any, data: bytes) -> Any:
        return lambda: sent.append((method, url, data))

    monkeypatch.setattr(outputs_module, "default_handler", sender)
    Pushgateway(name="p", url="http://g:9091").write(b"a 1\n", "host:1")
    assert sent == [("PUT", "http://g:9091/metrics/job/megatron-monitor/instance/host%3A1", b"a 1\n")]


def test_constant_labels_stand_on_every_sample() -> None:
    """Also on the daemon's own series, which two daemons on one node would share. The library reads them."""
    text = TextFormat(labels={"monitor_job": "12\n3", "a": 'q"\\'}).page(snapshot(7))
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["megatron_iteration"].samples[0].labels == {"run": "tr11", "monitor_job": "12�3", "a": 'q"\\'}
    assert families["megatron_monitor_runs"].samples[0].labels == {"monitor_job": "12�3", "a": 'q"\\'}
    assert set(families) == {"megatron_iteration", "megatron_monitor_runs"}  # nothing of the process's own


def test_what_is_missing_is_a_failure(tmp_path: Path) -> None:
    """The file's directory; the gateway. Counted, not raised."""
    missing = str(tmp_path / "none")
    for output in (
        Textfile(name="textfile", path=f"{missing}/m.prom"),
        Pushgateway(name="pushgateway", url="http://127.0.0.1:9"),
    ):
        assert played(output, 2).counts == {"written": 0, "failed": 2}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("outputs: [{type: textfile, name: textfile, path: /a/b.txt}]", "does not end in .prom"),
        (
            "outputs: [{type: textfile, name: textfile, path: /a.prom, labels: {state: x}}]",
            "state is a label of the metrics",
        ),
        (
            "outputs: [{type: textfile, name: textfile, path: /a.prom, labels: {run: x}}]",
            "run is a label of the metrics",
        ),
        ("outputs: [{type: textfile, name: textfile, path: /a.prom, labels: {a-b: x}}]", "labels"),
        ("outputs: [{type: pushgateway, name: a}]", "url"),
        ("outputs: [{type: pushgateway, url: 'http://a:1'}]", "name"),
        (
            "outputs: [{type: textfile, name: a, path: /a.prom}, {type: textfile, name: a, path: /b.prom}]",
            "name",
        ),
        ("outputs: [{type: statsd, name: a}]", "type"),
    ],
)
def test_a_wrong_output_is_refused(text: str, problem: str) -> None:
    """By its key."""
    with pytest.raises(ConfigError, match=problem):
        load(text)


def test_outputs_are_configured(tmp_path: Path) -> None:
    """From a file, paths relative to it, and with --set."""
    file = tmp_path / "config.yaml"
    file.write_text(
        "outputs: [{type: textfile, name: textfile, path: a.prom}, {type: pushgateway, name: pushgateway, url: 'http://g:9091'}]"
    )
    one, two = load(file).outputs
    assert isinstance(one, Textfile)
    assert one.path == str(tmp_path / "a.prom")
    assert isinstance(two, Pushgateway)
    assert (two.job, two.interval) == ("megatron-monitor", 15.0)
    (three,) = load(
        "", ["outputs=[{type: textfile, name: textfile, path: /x.prom, labels: {monitor_job: '7'}}]"]
    ).outputs
    assert isinstance(three, Textfile)
    assert three.labels == {"monitor_job": "7"}

"""The real daemon on real files: in time, each line once, through kill -9 and rotation."""

import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import RunningDaemon, Start
from tests.lines import line
from tests.monitor.notifiers.receiver import Receiver
from tests.programs import MONITOR, TETHERED, free_port, now, serving, slack, wait

pytestmark = pytest.mark.e2e


class Writer:
    """Appends iteration lines in real time from a thread of its own."""

    def __init__(self, path: Path, seconds: float = 0.25) -> None:
        self.path, self.seconds, self.number = path, seconds, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self.path.open("a") as stream:
            while not self._stop.is_set():
                self.number += 1
                stream.write(line(self.number, seconds=self.seconds))
                stream.flush()
                self._stop.wait(self.seconds)

    def stop(self) -> None:
        """The training hangs."""
        self._stop.set()
        self._thread.join(slack(5))


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Writer]:
    """A run of 0.25 s an iteration."""
    writer = Writer(tmp_path / "train.log")
    yield writer
    writer.stop()


def run_state(daemon: RunningDaemon, state: str) -> bool:
    """Whether the run is in a state."""
    return daemon.metric("megatron_run_state", state=state) == 1.0


def test_a_run_that_stops_is_hung_in_time(start: Start, training: Writer) -> None:
    """0.25 s an iteration, a minimum of 2 s: hung 2 to 4.5 s after the last line, and back when it goes on."""
    daemon = start("--set", "detectors.hang.minimum=2s", str(training.path))
    daemon.wait(lambda: run_state(daemon, "training"))
    daemon.wait(lambda: training.number >= 12)
    training.stop()
    duration = daemon.wait(lambda: run_state(daemon, "hung"))
    assert 1.7 <= duration <= slack(4.5)
    assert daemon.metric("megatron_incident", incident="hang", severity="critical") == 1.0
    assert daemon.metric("megatron_iteration") == training.number
    (incident,) = json.loads(daemon.get("/api/v1/incidents"))["incidents"]
    assert (incident["incident"], incident["phase"]) == ("hang", "training")
    with training.path.open("a") as stream:
        stream.write(line(training.number + 1))
    daemon.wait(lambda: run_state(daemon, "training"))
    assert daemon.metric("megatron_incident", incident="hang", severity="critical") == 0.0
    assert daemon.metric("megatron_incidents_total", incident="hang") == 1.0


def test_a_stopped_daemon_reads_before_it_judges(start: Start, training: Writer) -> None:
    """SIGSTOP for 5 s at a budget of 2 s, while the training goes on: no hang, no gap learned; a true one is told."""
    daemon = start("--set", "detectors.hang.minimum=2s", str(training.path))
    daemon.wait(lambda: training.number >= 12 and run_state(daemon, "training"))
    for _ in range(2):
        daemon.process.send_signal(signal.SIGSTOP)
        threading.Event().wait(5.0)
        daemon.process.send_signal(signal.SIGCONT)
        seen = training.number
        daemon.wait(lambda seen=seen: (daemon.metric("megatron_iteration") or 0) > seen)  # type: ignore[misc]
    assert not daemon.metric("megatron_incidents_total", incident="hang")
    assert (daemon.metric("megatron_monitor_unobserved_seconds_total") or 0) >= 6.0
    training.stop()
    assert daemon.wait(lambda: run_state(daemon, "hung")) <= slack(4.5)


def test_a_line_is_shown_within_a_second_and_a_half(start: Start, tmp_path: Path) -> None:
    """A written line is on /metrics within 1.5 s, also in a file that did not exist at the start."""
    path = tmp_path / "train.log"
    path.write_text(line(1))
    daemon = start(str(path))
    daemon.wait(lambda: daemon.metric("megatron_iteration") == 1)
    for number in range(2, 6):
        with path.open("a") as stream:
            stream.write(line(number))
        assert daemon.wait(lambda number=number: daemon.metric("megatron_iteration") == number) < slack(1.5)  # type: ignore[misc]


def test_a_daemon_that_was_down_tells_the_hang_it_missed(start: Start, training: Writer) -> None:
    """Progress is remembered over a restart: what hung before or while the daemon was down is told at once."""
    port = free_port()
    arguments = ("--set", "detectors.hang.minimum=2s", str(training.path))
    daemon = start(*arguments, listen=f"127.0.0.1:{port}")
    daemon.wait(lambda: training.number >= 12 and daemon.metric("megatron_iteration") == training.number)
    training.stop()
    daemon.wait(lambda: run_state(daemon, "hung"))
    assert daemon.terminate() == 0
    daemon = start(*arguments, listen=f"127.0.0.1:{port}")
    daemon.wait(lambda: run_state(daemon, "hung"), timeout=4.0)
    assert daemon.metric("megatron_incidents_total", incident="hang") == 1.0


def test_a_message_outlives_its_receiver_and_the_daemon(start: Start, training: Writer) -> None:
    """The receiver is down, a hang fires, the daemon is killed; both are started again: told, and its end."""
    port, hook = free_port(), free_port()
    receiver = f"notifiers=[{{type: webhook, name: chat, url: 'http://127.0.0.1:{hook}/'}}]"
    arguments = ("--set", "detectors.hang.minimum=2s", "--set", receiver, str(training.path))
    daemon = start(*arguments, listen=f"127.0.0.1:{port}")
    daemon.wait(lambda: training.number >= 12 and daemon.metric("megatron_iteration") == training.number)
    training.stop()
    daemon.wait(lambda: daemon.metric("megatron_monitor_notifications_total", outcome="retried") == 1.0)
    assert daemon.metric("megatron_monitor_notifications_pending", notifier="chat") == 1.0
    daemon.kill()
    daemon = start(*arguments, listen=f"127.0.0.1:{port}")
    with serving(Receiver(hook)) as server:
        daemon.wait(lambda: len(server.received) == 1)
        with training.path.open("a") as stream:
            stream.write(line(training.number + 1))
        daemon.wait(lambda: len(server.received) == 2)
        daemon.kill()
        daemon = start(*arguments, listen=f"127.0.0.1:{port}")
        daemon.wait(lambda: daemon.status("/-/ready") == 200)
        assert daemon.terminate() == 0
    once = {
        body["id"]: body for body in server.bodies
    }.values()  # what a daemon was killed over comes again under its id
    assert [(one["incident"], one["status"]) for one in once] == [("hang", "firing"), ("hang", "resolved")]


def test_a_taken_port_is_one_clear_line(start: Start, training: Writer) -> None:
    """Exit 1 and one line that says what to do."""
    daemon = start(str(training.path))
    done = subprocess.run(
        [*MONITOR, "run", "--listen", daemon.address, str(training.path)],
        capture_output=True, text=True, timeout=slack(60),
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "--listen" in done.stderr


def test_a_busy_daemon_outlives_who_asks_where_its_threads_are(start: Start, training: Writer) -> None:
    """SIGUSR1 a hundred times while it reads and answers."""
    daemon, over = start(str(training.path)), threading.Event()

    def scrape() -> None:
        while not over.is_set():
            daemon.get("/metrics")

    scrapers = [threading.Thread(target=scrape, daemon=True) for _ in range(3)]
    for thread in scrapers:
        thread.start()
    for _ in range(100):
        daemon.process.send_signal(signal.SIGUSR1)
        over.wait(0.005)
    over.set()
    for thread in scrapers:
        thread.join()
    assert daemon.status("/-/healthy") == 200


def test_the_log_tells_starts_and_ends_once(start: Start, tmp_path: Path) -> None:
    """One line when the backlog is read, one when an attempt begins, one when it ends; runs of before are counted."""
    old, new = tmp_path / "old.log", tmp_path / "new.log"
    old.write_text("".join(line(number) for number in range(1, 41)))
    new.touch()
    daemon = start(str(old), str(new), "--set", "log_format=json")
    logged = tmp_path / "daemon-0.log"
    daemon.wait(lambda: "following" in logged.read_text())
    new.write_text("".join(line(number) for number in range(1, 11)))
    daemon.wait(lambda: "started" in logged.read_text())
    with new.open("a") as stream:
        stream.write('Traceback (most recent call last):\n  File "t.py", line 1, in <module>\nKeyError: 1\n')
        stream.write("srun: error: n1: task 0: Exited with exit code 1\n")
    daemon.wait(lambda: '"status": "firing"' in logged.read_text(), 20.0)
    rows = [json.loads(row) for row in logged.read_text().splitlines()]
    kept = [{key: value for key, value in row.items() if key not in ("time", "level")} for row in rows]
    assert [row for row in kept if "incident" not in row][1:] == [
        {"msg": "following 2 files, 1 run, 0 open incidents"},
        {"run": "new", "attempt": 1, "state": "training", "msg": "started"},
        {"run": "new", "attempt": 1, "state": "crashed", "msg": "ended"},
    ]
    assert [(row["run"], row["incident"]) for row in kept if "incident" in row] == [("new", "crash")]


@pytest.mark.parametrize("command", ["run", "receive", "forward"])
def test_signals_that_come_at_once_end_a_program(tmp_path: Path, command: str) -> None:
    """A second SIGTERM interrupts the handler of the first: the program must not wait for itself."""
    port = free_port()
    arguments = {
        "run": ["--listen", f"127.0.0.1:{port}", "--set", f"state_dir={tmp_path}/state", f"{tmp_path}/*.log"],
        "receive": ["--set", f"receiver.listen=127.0.0.1:{port}", "--set", f"receiver.directory={tmp_path}/spool"],
        "forward": ["--to", f"http://127.0.0.1:{port}", "--state", str(tmp_path / "state"), f"{tmp_path}/*.log"],
    }[command]
    (tmp_path / "config.yaml").touch()
    (tmp_path / "train.log").touch()
    if command != "forward":
        arguments = ["--config", str(tmp_path / "config.yaml"), *arguments]
    log = tmp_path / "program.log"
    with log.open("wb") as stream:
        process = subprocess.Popen([*TETHERED, *MONITOR, command, *arguments], stderr=stream)
    try:
        wait(lambda: log.stat().st_size > 0, 20.0, "the program's first message")
        until = now() + 0.3
        while now() < until:
            process.send_signal(signal.SIGTERM)
        process.wait(timeout=slack(10))
    finally:
        process.kill()
        process.wait()

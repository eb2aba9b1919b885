"""The scenarios of tests/monitor/follow/test_scenarios.py that need a real process: signals, kills, systemd."""

import json
import os
import signal
import socket
import threading
from pathlib import Path

import pytest

from tests.e2e.conftest import RunningDaemon, Start
from tests.lines import line
from tests.programs import now, slack

pytestmark = pytest.mark.e2e
RELOADED = "megatron_monitor_config_last_reload_successful"


class Log:
    """A training's log, and what must come of it."""

    def __init__(self, path: Path) -> None:
        self.path, self.count = path, 0

    def write(self, count: int = 1) -> None:
        """Iterations go on."""
        with self.path.open("a") as stream:
            stream.write("".join(line(self.count + n, 100_000) for n in range(1, count + 1)))
        self.count += count

    def expect(self, daemon: RunningDaemon) -> None:
        """Each line is counted once: one that is read again would begin the training anew."""
        daemon.wait(lambda: daemon.metric("megatron_iterations_total", run="x") == self.count, 30.0)
        assert daemon.metric("megatron_lost_iterations_total", run="x") == 0
        assert daemon.metric("megatron_restarts_total", run="x") == 0


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Ten iterations."""
    (tmp_path / "logs").mkdir()
    one = Log(tmp_path / "logs" / "x.log")
    one.write(10)
    return one


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration file that follows the log."""
    path = tmp_path / "config.yaml"
    path.write_text(configured(tmp_path))
    return path


def configured(folder: Path, more: str = "", pattern: str = "*.log") -> str:
    """Its text."""
    return f"runs: [{{paths: ['{folder}/logs/{pattern}']}}]\nstate_dir: {folder}/state\n{more}\n"


def test_57_61_killed_again_and_again(start: Start, log: Log, config: Path) -> None:
    """Kill -9 while a training writes: the offset and the counters that it belongs to are one."""
    for _ in range(4):
        daemon = start("--config", str(config))
        for _ in range(4):
            log.write(3)
            threading.Event().wait(0.2)
        daemon.kill()
    log.expect(start("--config", str(config)))


def test_58_a_damaged_state_is_built_anew(start: Start, log: Log, config: Path) -> None:
    """Of another version it is neither read nor written; without one all is read from the log again, once."""
    daemon = start("--config", str(config))
    log.expect(daemon)
    assert daemon.terminate() == 0
    files = [path for path in (config.parent / "state").glob("state*") if path.read_bytes()]
    for path in files:
        path.write_bytes(path.read_bytes()[:-9] + b"damaged!!")
    log.write()
    daemon = start("--config", str(config))
    log.expect(daemon)
    assert daemon.metric("megatron_monitor_state_rebuilds_total") == 1
    assert daemon.terminate() == 0
    (head, _, body) = files[0].read_bytes().partition(b"\n")
    files[0].write_bytes(json.dumps(json.loads(head) | {"version": 999}).encode() + b"\n" + body)
    with pytest.raises(AssertionError, match="it is of version 999"):
        start("--config", str(config))


def test_58_a_state_that_cannot_be_written(start: Start, log: Log, config: Path) -> None:
    """The daemon goes on and says so."""
    (config.parent / "state").write_text("a file where the directory should be")
    daemon = start("--config", str(config))
    log.expect(daemon)
    daemon.wait(lambda: (daemon.metric("megatron_monitor_state_save_failures_total") or 0) > 0)
    assert daemon.status("/-/healthy") == 200


def test_60_a_second_daemon_on_one_state(start: Start, log: Log, config: Path) -> None:
    """It ends with a sentence; the first goes on."""
    daemon = start("--config", str(config))
    with pytest.raises(AssertionError, match="in use"):
        start("--config", str(config))
    log.write()
    log.expect(daemon)


def test_80_series_of_a_gone_run(start: Start, log: Log) -> None:
    """They go with it."""
    with log.path.open("a") as stream:
        stream.write("[exiting program at iteration 10] datetime: 2026-01-01 00:00:00\n")
    os.utime(log.path, (1_700_000_000, 1_700_000_000))
    daemon = start(str(log.path), "--set", "run_retention=2s")
    daemon.wait(lambda: daemon.metric("megatron_monitor_runs") == 1)
    log.path.unlink()
    daemon.wait(lambda: daemon.metric("megatron_monitor_runs") == 0, 60.0)
    assert 'run="x"' not in daemon.get("/metrics")


def test_81_reload_of_a_bad_file(start: Start, log: Log, config: Path) -> None:
    """It says so and goes on with what it had."""
    good = config.read_text()
    daemon = start("--config", str(config))
    tls = "web: {tls_server_config: {cert_file: /none, key_file: /none}}"
    for bad in ("runs: [", "no_such_key: 1", configured(config.parent, tls), "runs: []"):
        for text, successful in ((bad, 0), (good, 1)):
            config.write_text(text)
            daemon.process.send_signal(signal.SIGHUP)
            daemon.wait(lambda wanted=successful: daemon.metric(RELOADED) == wanted)  # type: ignore[misc]
            log.write()
            log.expect(daemon)


def test_82_a_reload_keeps_offsets_and_counters(start: Start, log: Log, config: Path) -> None:
    """No series goes meanwhile, nothing is read again; what is new is followed."""
    daemon = start("--config", str(config))
    log.expect(daemon)
    (log.path.parent / "y.out").write_text(line(1) + line(2))
    config.write_text(configured(config.parent, "detectors: {hang: {minimum: 100s}}", "*.*"))
    daemon.process.send_signal(signal.SIGHUP)
    for _ in range(20):
        assert daemon.metric("megatron_iterations_total", run="x") == log.count
        threading.Event().wait(0.02)
    daemon.wait(lambda: daemon.metric("megatron_iterations_total", run="y") == 2, 30.0)
    assert daemon.metric("megatron_monitor_bytes_total") == sum(
        path.stat().st_size for path in log.path.parent.iterdir()
    )


def test_83_sigterm_saves(start: Start, log: Log, config: Path) -> None:
    """What only the state knows afterwards is still counted."""
    daemon = start("--config", str(config))
    log.write()
    log.expect(daemon)
    began = now()
    assert daemon.terminate() == 0
    assert now() - began < slack(5.0)
    log.path.rename(log.path.with_name("gone"))
    log.write()
    log.expect(start("--config", str(config)))


def test_84_sd_notify(start: Start, log: Log, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ready, the watchdog while the loop turns, reloading, stopping; SIGUSR1 prints where the threads are."""
    short = Path(f"/tmp/notify-{os.getpid()}")  # a socket's path is short
    monkeypatch.setenv("NOTIFY_SOCKET", str(short))
    monkeypatch.setenv("WATCHDOG_USEC", "1500000")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(short))
        try:
            daemon, notices = start("--config", str(config)), list[str]()

            def sent(*expected: str) -> None:
                """Messages until all of these have come, in this order."""
                for words in expected:
                    channel.settimeout(slack(10.0))
                    while not (notices.append(channel.recv(4096).decode()) or notices[-1]).startswith(words):
                        pass

            sent("READY=1", "STATUS=1 file, 1 run, 0 open incidents", "WATCHDOG=1", "WATCHDOG=1")
            daemon.process.send_signal(signal.SIGHUP)
            sent("RELOADING=1\nMONOTONIC_USEC=", "READY=1")
            daemon.process.send_signal(signal.SIGSTOP)  # the loop stalls: nobody feeds the watchdog
            channel.settimeout(1.0)
            with pytest.raises(TimeoutError):
                list(iter(lambda: channel.recv(4096), b""))
            daemon.process.send_signal(signal.SIGCONT)
            sent("WATCHDOG=1")
            daemon.process.send_signal(signal.SIGUSR1)
            text = config.parent / "daemon-0.log"
            daemon.wait(lambda: "Thread 0x" in text.read_text() and "daemon.py" in text.read_text())
            daemon.process.send_signal(signal.SIGTERM)
            sent("STOPPING=1")
            assert daemon.process.wait(timeout=slack(5)) == 0
        finally:
            short.unlink()

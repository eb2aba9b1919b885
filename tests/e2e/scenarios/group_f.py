"""F: the exporter and the daemon: formats, rude clients, reload, systemd, one-shot."""

import gzip
import os
import signal
import socket
import ssl
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import trustme
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.e2e.scenarios.harness import Daemon, Lab
from tests.e2e.scenarios.registry import scenario
from tests.programs import MONITOR, now, slack

OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}


@scenario(74)
def path_that_is_no_text(lab: Lab) -> None:
    name = os.fsencode(lab.directory) + b"/caf\xe9-\xff\n\x1b[31m.log"
    with open(name, "ab") as stream:
        stream.write(lab.units(3))
    lab.expect(run=f'run="{lab.name}/')
    list(parse_text(lab.daemon.fetch().decode("utf-8")))
    assert lab.daemon.status("/") == 200
    assert lab.daemon.status("/api/v1/runs") == 200


def _tls(lab: Lab) -> tuple[Path, Daemon]:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(str(lab.own / "ca.crt"))
    issued.private_key_pem.write_to_path(str(lab.own / "tls.key"))
    issued.cert_chain_pems[0].write_to_path(str(lab.own / "tls.crt"))
    keys = f"{{cert_file: {lab.own}/tls.crt, key_file: {lab.own}/tls.key}}"
    return lab.own / "ca.crt", lab.start(str(lab.path()), "--set", f"web.tls_server_config={keys}")


@scenario(76, own=True)
def silent_tls_client(lab: Lab) -> None:
    lab.write(lab.units(2))
    authority, daemon = _tls(lab)
    assert daemon.address.startswith("https://")
    context = ssl.create_default_context(cafile=str(authority))
    host, _, port = daemon.address.removeprefix("https://").partition(":")

    def page() -> bytes:
        with (
            socket.create_connection((host, int(port)), timeout=slack(10)) as plain,
            context.wrap_socket(plain, server_hostname=host) as client,
        ):
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            return b"".join(iter(lambda: client.recv(65536), b""))

    daemon.wait(lambda: b"megatron_iterations_total" in page())
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=slack(10)))
        began = now()
        assert b"megatron_iterations_total" in page()
        assert now() - began < slack(3.0)


@scenario(77, own=True)
def idle_connections(lab: Lab) -> None:
    lab.write(lab.units(2))
    daemon = lab.follow(hold=0)
    threads = daemon.threads()
    host, _, port = daemon.address.removeprefix("http://").partition(":")
    with ExitStack() as stack:
        for _ in range(500):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=slack(10)))
        lab.grow(2)
        assert daemon.threads() <= threads + 6
        assert daemon.value("megatron_monitor_http_connections") <= 513


@scenario(78)
def formats(lab: Lab) -> None:
    lab.grow(30)
    text = lab.daemon.fetch().decode()
    opened = lab.daemon.fetch(headers=OPENMETRICS).decode()
    packed = lab.daemon.fetch(headers={"Accept-Encoding": "gzip"})
    assert gzip.decompress(packed).decode().count("# TYPE") == text.count("# TYPE")
    names = {family.name for family in parse_text(text)}
    assert {f"{family.name}" for family in parse_openmetrics(opened)} >= {
        name.removesuffix("_total") for name in names if name.startswith("megatron_")
    }
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@scenario(79)
def no_series_twice(lab: Lab) -> None:
    lab.grow(3)
    rows = [
        row.rsplit(" ", 1)[0] for row in lab.daemon.fetch().decode().splitlines() if row and not row.startswith("#")
    ]
    assert len(rows) == len(set(rows))


@scenario(80, own=True)
def series_of_a_gone_run(lab: Lab) -> None:
    lab.write(lab.units(5) + b"[exiting program at iteration 5] datetime: 2026-01-01 00:00:00\n")
    old = time.time() - 86_400  # noqa: TID251
    os.utime(lab.path(), (old, old))
    daemon = lab.start(str(lab.path()), "--set", "run_retention=2s")
    daemon.wait(lambda: daemon.value("megatron_monitor_runs") == 1)
    lab.path().unlink()
    daemon.wait(lambda: daemon.value("megatron_monitor_runs") == 0)
    assert 'run="x"' not in daemon.fetch().decode()
    assert daemon.status("/-/healthy") == 200


def _configured(lab: Lab, text: str) -> Path:
    path = lab.own / "config.yaml"
    path.write_text(text)
    return path


def _config(lab: Lab, extra: str = "", pattern: str = "*.log") -> str:
    return (
        f"runs: [{{paths: ['{lab.directory}/{pattern}']}}]\nfollow: {{poll_interval: 100ms, idle_interval: 500ms, "
        f"discovery_interval: 500ms}}\n{extra}\n"
    )


def _reloaded(daemon: Daemon, good: float) -> None:
    daemon.process.send_signal(signal.SIGHUP)
    daemon.wait(lambda: daemon.value("megatron_monitor_config_last_reload_successful") == good)


@scenario(81, own=True)
def reload_of_a_bad_file(lab: Lab) -> None:
    lab.write(lab.units(3))
    path = _configured(lab, _config(lab))
    daemon = lab.follow("--config", str(path))
    assert daemon.value("megatron_monitor_config_last_reload_successful") == 1
    for bad in (
        "runs: [",
        "no_such_key: 1",
        _config(lab, "web: {tls_server_config: {cert_file: /none, key_file: /none}}"),
        "runs: []",
    ):
        path.write_text(bad)
        _reloaded(daemon, 0)
        lab.grow(1, hold=0)
        path.write_text(_config(lab))
        _reloaded(daemon, 1)
    path.unlink()
    _reloaded(daemon, 0)
    lab.grow(1)


@scenario(82, own=True)
def reload_keeps_everything(lab: Lab) -> None:
    lab.write(lab.units(50))
    path = _configured(lab, _config(lab))
    daemon = lab.follow("--config", str(path), hold=0)
    size = lab.path().stat().st_size
    for turn in range(4):
        path.write_text(_config(lab, f"detectors: {{hang: {{minimum: {100 + turn}s}}}}"))
        lab.write(lab.units(2))
        daemon.process.send_signal(signal.SIGHUP)
        missing = 0
        for _ in range(40):
            missing += "megatron_iterations_total{" not in daemon.fetch().decode()
            time.sleep(0.02)
        assert missing == 0, "the series went during a reload"
        lab.grow(2, hold=0.3)
    assert daemon.value("megatron_monitor_bytes_total") - size < lab.path().stat().st_size - size + 3000
    lab.write(lab.units(2), lab.path("y.out"))
    path.write_text(_config(lab, pattern="*.*"))  # more to follow
    daemon.process.send_signal(signal.SIGHUP)
    lab.expect()
    assert daemon.terminate() == 0
    lab.write(lab.units(1))
    lab.follow("--config", str(path))


@scenario(83, own=True)
def sigterm(lab: Lab) -> None:
    hung = lab.directory / "hung"
    hung.mkdir()
    lab.write(lab.units(5))
    for _ in range(3):
        daemon = lab.start(
            str(lab.path()), f"{hung}/*.log", mounts={str(hung): "nfs4"},
            faults=[{"call": ["scandir", "stat"], "path": str(hung), "hang": True, "by": "start"}],
        )  # fmt: skip
        lab.expect(hold=0)
        lab.grow(1, hold=0)
        began = now()
        assert daemon.terminate(timeout=10) == 0
        assert now() - began < slack(5.0)
    lab.path().rename(lab.path("gone"))  # only the state knows them
    lab.write(lab.units(1))
    lab.follow()


@scenario(84, own=True)
def sd_notify(lab: Lab) -> None:
    lab.write(lab.units(2))
    address = lab.own / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        here = os.open(lab.own, os.O_RDONLY)
        channel.bind(f"/proc/self/fd/{here}/notify")  # a socket's path is short
        os.close(here)
        channel.settimeout(5.0)
        short = Path(f"/tmp/notify-{os.getpid()}-{lab.name}")
        short.symlink_to(address)
        try:
            path = _configured(lab, _config(lab))
            env = {"NOTIFY_SOCKET": str(short), "WATCHDOG_USEC": "1500000"}
            daemon = lab.start("--config", str(path), environment=env)

            heard: list[str] = []

            def sent(*expected: str, seconds: float = 10.0) -> list[str]:
                """Messages until all the expected ones have come in this order, or for so many seconds."""
                begun, left, until = len(heard), list(expected), now() + (slack(seconds) if expected else seconds)
                while (left or not expected) and now() < until:
                    channel.settimeout(0.1)
                    try:
                        heard.append(channel.recv(4096).decode())
                    except TimeoutError:
                        continue
                    if left and heard[-1].startswith(left[0]):
                        del left[0]
                assert not left, heard[begun:]
                return heard[begun:]

            sent("READY=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1")
            status = "STATUS=1 runs, 1 files, 0 open incidents"
            if status not in heard:
                sent(status)
            daemon.process.send_signal(signal.SIGHUP)
            sent("RELOADING=1\nMONOTONIC_USEC=", "READY=1")
            daemon.process.send_signal(signal.SIGSTOP)  # the loop stalls: nobody feeds the watchdog
            sent(seconds=0.5)
            assert sent(seconds=2.0) == []
            daemon.process.send_signal(signal.SIGCONT)
            sent("WATCHDOG=1")
            daemon.process.send_signal(signal.SIGUSR1)
            # the loop's place, wherever it is: in a turn, or between two
            daemon.wait(lambda: "Thread 0x" in daemon.log.read_text() and "daemon.py" in daemon.log.read_text())
            assert daemon.status("/-/healthy") == 200
            daemon.process.send_signal(signal.SIGTERM)
            sent("STOPPING=1")
            assert daemon.process.wait(slack(5)) == 0
        finally:
            short.unlink()


def _command(lab: Lab, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    return subprocess.run(
        [*MONITOR, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        cwd=lab.own,
        timeout=slack(120),
    )


@scenario(85, own=True)
def check_config(lab: Lab) -> None:
    good = _configured(lab, _config(lab))
    assert _command(lab, "check-config", str(good)).returncode == 0
    good.write_text("detectors: {hang: {minimum: -5s}}\nnothing: 1\n")
    answer = _command(lab, "check-config", str(good))
    assert answer.returncode == 2
    assert "detectors.hang.minimum" in answer.stderr
    assert "nothing" in answer.stderr
    assert _command(lab, "check-config", "/no/such/file").returncode == 2


@scenario(86, own=True)
def one_shot_twice(lab: Lab) -> None:
    lab.write(lab.units(500))
    os.utime(lab.path(), (1_700_000_000, 1_700_000_000))
    once = [_command(lab, "run", "--once", str(lab.path())) for _ in range(2)]
    assert once[0].returncode == 0
    assert once[0].stdout == once[1].stdout
    assert 'megatron_iterations_total{run="x"} 500.0' in once[0].stdout


@scenario(88, own=True)
def arbitrary_bytes(lab: Lab) -> None:
    """Noise around the units, of every kind: all units count, and the daemon is well."""
    daemon = lab.start()
    for number in range(60):
        size = (number * 977) % 5000
        noise = os.urandom(size).replace(b"\n", b"").replace(b"\r", b"")
        lab.write(noise + b"\n" + lab.units(2))
    lab.write(b"\n" + lab.units(1))
    lab.expect()
    assert daemon.status("/-/healthy") == 200


@scenario(88, "clock", own=True)
def clock_jumps(lab: Lab) -> None:
    lab.write(lab.units(5))
    daemon = lab.follow(str(lab.path()), "--set", "detectors.hang.minimum=20s", clock=0.0, hold=0)
    for jump in (3600.0, -86_400.0, 0.0):
        lab.grow(1, hold=0)
        daemon.set(clock=jump)
        time.sleep(1.2)
        assert daemon.status("/-/healthy") == 200
        assert daemon.value("megatron_run_state", 'state="hung"') == 0
        lab.grow(1, hold=0)
    assert daemon.value("megatron_monitor_clock_jumps_total") == 3
    daemon.kill()
    lab.write(lab.units(1))
    lab.follow()

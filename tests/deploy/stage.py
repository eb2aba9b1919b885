"""A stage for plays of alerts: real monitors on logs that a play writes, Prometheus, Alertmanager, a phone and a chat.

Everything is the real program on the shipped files. Durations of the rules, of Alertmanager's routes and of the
monitor's events are divided by SCALE (hastened.py), so a play of half an hour takes a minute. The phone has PagerDuty's
semantics: it rings at a trigger whose dedup_key is not open; another trigger of an open one is an update.
"""

import http.client
import http.server
import json
import re
import signal
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from tests.conftest import loaded
from tests.deploy.hastened import SCALE
from tests.e2e.conftest import RunningDaemon, daemons
from tests.lines import dump, line
from tests.monitor.notifiers.receiver import Receiver
from tests.programs import PYTHON, Prometheus, free_port, prometheus, running, serving, slack, wait

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules" / "alerts.yml"
PATIENCE = 60.0
"""Seconds until a message has arrived, at most."""
GOSSIP = ("--cluster.peer-timeout=1s", "--cluster.gossip-interval=50ms", "--cluster.settle-timeout=1s")
"""Options of an Alertmanager that has a peer: the second waits a second for the first to notify."""
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def scaled(text: str) -> str:
    """Rules or routes with all durations divided by SCALE, and the seconds that expressions compare with."""

    def duration(match: re.Match[str]) -> str:
        return f"{match[1]}{max(1, round(float(match[2]) * _UNITS[match[3]] / SCALE * 1000))}ms"

    text = re.sub(r"((?:\bfor|interval|group_wait): *)(\d+)([smhd])\b", duration, text)
    text = re.sub(r"(\[)(\d+)([smhd])(?=\])", duration, text)
    return re.sub(r"(?<=> )(60|900)\b", lambda match: f"{float(match[1]) / SCALE:g}", text)


class Training:
    """Writes a log in real time: an iteration line each tenth of a second, while it trains."""

    def __init__(self, path: Path, seconds: float = 0.1, printed: float | None = None) -> None:
        self.path, self.number, self._skips, self._seconds = path, 0, 0, seconds
        self._printed = printed or seconds
        self._trains = self._ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.says(dump(world_size=8, train_iters=100_000))
        self.trains()
        self._thread.start()

    def _run(self) -> None:
        while not self._ended:
            with self._changed:
                if self._trains:
                    self.number += 1
                    self.says(self._line())
                self._changed.wait(self._seconds)

    def _line(self) -> str:
        text = line(self.number, 100_000, self._printed).replace("loss scale: 1.0", "loss scale: 65536.0")
        skipped = self._skips and self.number % self._skips == 0
        return text.replace("skipped iterations:   0", "skipped iterations:   1") if skipped else text

    def says(self, text: str) -> None:
        """Into the log."""
        with self.path.open("a") as stream:
            stream.write(text)

    def trains(self, skips: int = 0) -> None:
        """It goes on; each `skips`-th step overflows: half of them is a warning, all of them is critical."""
        with self._changed:
            self._trains, self._skips = True, skips

    def hangs(self) -> None:
        """It writes no more."""
        with self._changed:
            self._trains = False

    def ends(self, text: str) -> None:
        """It writes no more, after this."""
        with self._changed:
            self._trains = False
            self.says(text)

    def restarts(self, back: int = 2) -> None:
        """The next attempt appends to the log."""
        with self._changed:
            self.number = max(0, self.number - back)
            self.says(dump(world_size=8, train_iters=100_000))
            self._trains, self._skips = True, 0

    def close(self) -> None:
        """End the thread."""
        self._ended = True
        self._thread.join(5.0)


class Play:
    """One play: a cluster of its own with one monitor."""

    def __init__(self, name: str, stage: "Stage", directory: Path, stack: ExitStack) -> None:
        self.name, self.stage, self.directory = name, stage, directory
        (directory / "logs").mkdir(parents=True)
        self.address = f"127.0.0.1:{free_port()}"
        self._start = stack.enter_context(daemons(directory, (PYTHON, str(Path(__file__).with_name("hastened.py")))))
        self._stack = stack
        self.daemon: RunningDaemon

    def run(self, name: str = "a", seconds: float = 0.1, printed: float | None = None) -> Training:
        """A training of this name begins: a line each so many seconds, which prints another time if told to."""
        training = Training(self.directory / "logs" / f"{name}.log", seconds, printed)
        self._stack.callback(training.close)
        return training

    def start(self, *more: str) -> None:
        """The monitor starts, or starts again."""
        notifier = {"type": "alertmanager", "name": "am", "urls": self.stage.alertmanagers, "cluster": self.name}
        settings = {
            "detectors.hang.minimum": "3s", "detectors.hang.first.exiting": "1s",
            "notifiers": json.dumps([notifier]) if self.stage.way.posts else "",
        }  # fmt: skip
        chosen = [word for key, value in settings.items() if value for word in ("--set", f"{key}={value}")]
        self.daemon = self._start(*chosen, *more, str(self.directory / "logs"), listen=self.address)

    def standing(self, incident: str, run: str = "a", severity: str = "critical") -> bool:
        """Does the monitor show an incident as standing?"""
        labels = {f'run="{run}"', f'incident="{incident}"', f'severity="{severity}"'}
        rows = [row for row in self.daemon.get("/metrics").splitlines() if row.startswith("megatron_incident{")]
        return any(float(row.split()[-1]) == 1.0 and all(label in row for label in labels) for row in rows)

    def stands(self, incident: str, run: str = "a", severity: str = "critical") -> None:
        """Wait until it does."""
        self.daemon.wait(lambda: self.standing(incident, run, severity), PATIENCE)

    def is_over(self, incident: str, run: str = "a", severity: str = "critical") -> None:
        """Wait until it does not."""
        self.daemon.wait(lambda: not self.standing(incident, run, severity), PATIENCE)

    def knows(self, *trainings: Training) -> None:
        """Wait until the monitor knows the pace of the present attempt of each run."""
        goals = {training.path.stem: training.number + 12 for training in trainings}
        for run, goal in goals.items():
            self.daemon.wait(lambda: (self.daemon.metric("megatron_iteration", run=run) or 0) >= goal, PATIENCE)  # noqa: B023

    def is_saved(self) -> None:
        """Wait until the monitor has saved twice: what it knew before is in the second state."""
        for _ in range(2):
            known = self._states()
            self.daemon.wait(lambda known=known: self._states() != known, PATIENCE)  # type: ignore[misc]

    def _states(self) -> dict[Path, int]:
        found = {}
        for path in (self.directory / "state").rglob("*"):
            with suppress(FileNotFoundError):  # a file that takes another one's place
                found[path] = path.stat().st_mtime_ns
        return found

    def is_scraped(self) -> None:
        """Wait until each Prometheus server knows of the monitor's runs."""
        runs = f'megatron_monitor_runs{{cluster="{self.name}"}} > 0'
        self.daemon.wait(lambda: all(one.value(runs) for one in self.stage.servers.values()), PATIENCE)

    def phone(self) -> list[str]:
        """What the phone did: ring, closed. Updates wake nobody."""
        return self.stage.phone(self.name)

    def chat(self) -> list[str]:
        """What the chat had that was new, in order: `+` begins, `-` ends, `run/incident/severity`; a message without
        news is `again`.
        """
        return self.stage.chat(self.name)

    def has(self, *chat: str, phone: tuple[str, ...] | None = None) -> None:
        """Wait until the chat had this and nothing else, in any order, and the phone did that."""

        def reported() -> bool:
            return sorted(self.chat()) == sorted(chat) and (phone is None or self.phone() == [*phone])

        wait(reported, PATIENCE, lambda: f"{self.name}: {self.phone()} {self.chat()}, not {phone} {chat}")
        if self.stage.way.servers > 1:
            # If an end arrives while two Alertmanagers flush, one of them may not have it yet and notify of the start
            # again (docs/alerts.md). A flush is due every three seconds: what follows happens between two of them.
            self.rests(30.0)

    def rings(self, *expected: str) -> None:
        """Wait until the phone did this and nothing else."""
        wait(lambda: self.phone() == [*expected], PATIENCE, lambda: f"{self.name}: {self.phone()} {self.chat()}")

    def rests(self, seconds: float) -> None:
        """So much of the play's time passes."""
        threading.Event().wait(seconds / SCALE)

    def silence(self, seconds: float) -> None:
        """Somebody silences the run for so much of the play's time."""
        now = datetime.now(UTC)  # noqa: TID251 - Alertmanager's clock
        body = {
            "matchers": [{"name": "cluster", "value": self.name, "isRegex": False, "isEqual": True}],
            "startsAt": now.isoformat(), "endsAt": (now + timedelta(seconds=seconds / SCALE)).isoformat(),
            "createdBy": "x", "comment": "x",
        }  # fmt: skip
        posted(f"{self.stage.alertmanagers[0]}/api/v2/silences", body)


def posted(url: str, body: Any) -> None:
    """A JSON object, sent."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=5).close()


def hastened_rules(directory: Path, *, incidents: bool = True) -> Path:
    """A copy of the rules with shorter durations; without `incidents` what monitors post themselves is left out."""
    rules = loaded(scaled(RULES.read_text()))
    if not incidents:
        rules["groups"] = [one for one in rules["groups"] if one["name"] != "megatron-incidents"]
    file = directory / "alerts.yml"
    file.write_text(yaml.safe_dump(rules, sort_keys=False))
    return file


@contextmanager
def alertmanager(
    directory: Path, receiver: Receiver, *options: str, port: int = 0, hastened: bool = True
) -> Iterator[str]:
    """The address of an Alertmanager on the shipped file, its receivers pointed at a stand-in."""
    shipped = (DEPLOY / "alertmanager" / "alertmanager.yml").read_text()
    config = loaded(scaled(shipped) if hastened else shipped)
    config["templates"] = [str(DEPLOY / "alertmanager" / "templates" / "*.tmpl")]
    receivers, base = {one["name"]: one for one in config["receivers"]}, receiver.url.removesuffix("/hook")
    (slack_url := directory / "slack.url").write_text(f"{base}/slack")
    (key := directory / "pagerduty.key").write_text("0" * 32)
    receivers["watchdog"]["webhook_configs"][0]["url"] = f"{base}/watchdog"
    receivers["chat"]["slack_configs"][0]["api_url_file"] = str(slack_url)
    receivers["chat"]["webhook_configs"] = [{"url": f"{base}/chat", "send_resolved": True}]
    pager = receivers["pager"]["pagerduty_configs"][0]
    pager |= {"url": f"{base}/pager", "routing_key_file": str(key)}
    pager["details"]["cluster"] = "{{ .CommonLabels.cluster }}"
    file = directory / "alertmanager.yml"
    file.write_text(yaml.safe_dump(config, sort_keys=False))
    with running(
        directory, "prometheus-alertmanager", f"--config.file={file}", f"--storage.path={directory / 'alertmanager'}",
        *(options or ("--cluster.listen-address=",)), "--log.level=warn",
        listen="--web.listen-address", ready="/-/ready", port=port,
        end=signal.SIGTERM,  # it saves what it has notified of
    ) as address:  # fmt: skip
        yield address


@dataclass(frozen=True)
class Way:
    """How incidents come to Alertmanager."""

    posts: bool = True
    """The monitors post them."""
    relayed: bool = False
    """The rule of Prometheus relays what the monitors show."""
    servers: int = 1
    """So many Prometheus servers, and so many Alertmanagers that gossip. All post to all."""


class Stage:
    """Prometheus, Alertmanager and people for several plays at once."""

    def __init__(self, directory: Path, stack: ExitStack, way: Way) -> None:
        self.directory, self.way = directory, way
        self._ports = [free_port() for _ in range(way.servers)]
        self.alertmanagers = [f"http://127.0.0.1:{port}" for port in self._ports]
        self.receiver = stack.enter_context(serving(Receiver()))
        self._programs = {name: stack.enter_context(ExitStack()) for name in ("prometheus", "alertmanager")}
        self.servers: dict[int, Prometheus] = {}
        self._targets: list[tuple[str, str]] = []

    def begin(self, plays: Iterable["Play"]) -> None:
        """Both programs start, and watch these plays."""
        self._targets = [(play.address, play.name) for play in plays]
        self.start_alertmanager()
        self.start_prometheus()

    def start_alertmanager(self) -> None:
        """It starts, or starts again."""
        gossip = [free_port() for _ in self._ports]
        peers = [f"--cluster.peer=127.0.0.1:{port}" for port in gossip] if len(gossip) > 1 else []
        for number, port in enumerate(self._ports):
            options = [f"--cluster.listen-address=127.0.0.1:{gossip[number]}", *peers, *GOSSIP] if peers else []
            made = alertmanager(self._directory("alertmanager", number), self.receiver, *options, port=port)
            self._programs["alertmanager"].enter_context(made)

    def _directory(self, name: str, number: int) -> Path:
        made = self.directory / f"{name}-{number}"
        made.mkdir(exist_ok=True)
        return made

    def start_prometheus(self) -> None:
        """It starts, or starts again."""
        config: dict[str, Any] = {
            "global": {"scrape_interval": "750ms", "evaluation_interval": "750ms", "scrape_timeout": "700ms"},
            "rule_files": [str(hastened_rules(self.directory, incidents=self.way.relayed))],
            "alerting": {
                "alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{port}" for port in self._ports]}]}]
            },
            "scrape_configs": [
                {
                    "job_name": "megatron-monitor",
                    "static_configs": [{"targets": [at], "labels": {"cluster": name}} for at, name in self._targets],
                }
            ],
        }
        options = ("--query.lookback-delta=15s", f"--rules.alert.resend-delay={60 / SCALE:g}s", "--log.level=warn")
        for number in range(self.way.servers):
            if number:
                proxy = self._programs["prometheus"].enter_context(serving(_Proxy(f"127.0.0.{number + 1}")))
                config["scrape_configs"][0]["proxy_url"] = proxy.url
            made = prometheus(self._directory("prometheus", number), yaml.safe_dump(config, sort_keys=False), *options)
            self.servers[number] = self._programs["prometheus"].enter_context(made)

    def stop(self, name: str) -> None:
        """`prometheus` or `alertmanager` is away."""
        self._programs[name].close()

    def phone(self, cluster: str) -> list[str]:
        """What the phone did for this cluster."""
        found, open_, of = [], set[str](), dict[str, str]()
        for path, _, body in list(self.receiver.received):
            if path != "/pager":
                continue
            key, details = body["dedup_key"], body.get("payload", {}).get("custom_details", {})
            if body["event_action"] == "trigger":
                of[key] = details["cluster"]
            if of.get(key) != cluster:
                continue
            if body["event_action"] == "resolve":
                found.append("closed")
                open_.discard(key)
            elif key not in open_:
                found.append("ring")
                open_.add(key)
        return found

    def chat(self, cluster: str) -> list[str]:
        """What was new in the chat's messages about this cluster."""
        found, standing = list[str](), set[tuple[str, str]]()
        for path, _, body in list(self.receiver.received):
            if path != "/chat" or body["groupLabels"].get("cluster") != cluster:
                continue
            news = []
            for alert in body["alerts"]:
                labels = alert["labels"]
                one = _named(labels), labels["event"]
                if (alert["status"] == "firing") != (one in standing):
                    standing ^= {one}
                    news.append(("+" if alert["status"] == "firing" else "-") + one[0])
            found += sorted(news) or ["again"]
        return found

    def slack(self) -> list[dict[str, Any]]:
        """What Slack was sent."""
        return [body for path, _, body in list(self.receiver.received) if path == "/slack"]


class _Proxy(http.server.ThreadingHTTPServer):
    """Scrapes from an address of its own: a monitor that stops knows its Prometheus servers by their addresses."""

    daemon_threads = True

    def __init__(self, source: str) -> None:
        super().__init__(("127.0.0.1", 0), _Forwarded)
        self.source = source
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Forwarded(http.server.BaseHTTPRequestHandler):
    server: _Proxy

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        target = http.client.HTTPConnection(str(url.hostname), url.port, 5, source_address=(self.server.source, 0))
        try:
            target.request("GET", url.path, headers=dict(self.headers.items()))
            answer = target.getresponse()
            body = answer.read()
        except OSError:
            self.send_error(502)
            return
        finally:
            target.close()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() in ("content-type", "content-encoding"):
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


def _named(labels: dict[str, str]) -> str:
    what = labels.get("incident") or labels["alertname"].removeprefix("Megatron") + labels.get("trouble", "")
    return "/".join(filter(None, (labels.get("run"), what, labels["severity"])))


@contextmanager
def stage(directory: Path, names: Iterable[str], way: Way) -> Iterator[tuple[Stage, dict[str, Play]]]:
    """All of it runs, and a play of each name may begin."""
    with ExitStack() as stack:
        made = Stage(directory, stack, way)
        plays = {name: Play(name, made, directory / name, stack) for name in names}
        made.begin(plays.values())
        yield made, plays


Script = Callable[[Play], None]


def played(plays: dict[str, Play], scripts: dict[str, Script]) -> dict[str, Exception]:
    """All plays at once, each on a thread; what failed."""
    failed: dict[str, Exception] = {}

    def act(name: str) -> None:
        try:
            scripts[name](plays[name])
        except Exception as error:  # noqa: BLE001 - reported by the test of that play
            failed[name] = error

    threads = [threading.Thread(target=act, args=(name,), daemon=True) for name in scripts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(slack(240.0))
    return failed

"""`python -m benchmarks.fuzz [--minutes 30] [--only NAME]`: the daemon in this process, on whatever comes in.

Each target is a property of hypothesis; they take turns, some hundred examples each, until the time is over. What fails
is shrunk, printed with its traceback, and kept in `.hypothesis/`: the next run begins with it. A finding becomes a test.
Behind the boundaries of core/aside.py nothing is forgiven here: what would be put aside fails.
"""

import argparse
import contextlib
import json
import os
import pickle
import random
import re
import shutil
import socket
import sys
import tempfile
import time
import traceback
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase

from megatron_monitor.config import Config, load
from megatron_monitor.config.dialects import DialectError, dialect_of
from megatron_monitor.config.document import ConfigError
from megatron_monitor.core import Core
from megatron_monitor.core.aside import Aside
from megatron_monitor.core.saved import Saved
from megatron_monitor.follow.messages import (
    CaughtUp,
    Data,
    Fingerprint,
    Gone,
    Opened,
    Readable,
    Restarted,
    Unheard,
)
from megatron_monitor.follow.messages import Unreadable as NotReadable
from megatron_monitor.follow.mounts import Mount, Mounts
from megatron_monitor.follow.os_layer import OsLayer
from megatron_monitor.follow.patterns import Watch
from megatron_monitor.follow.readers import MountReader, Readers
from megatron_monitor.follow.settings import FollowSettings
from megatron_monitor.nodes.flight_recorder import NoDumpError, diagnose, read_dump
from megatron_monitor.notifiers.message import payload
from megatron_monitor.serve.http import App
from megatron_monitor.serve.server import HttpServer, Limits
from megatron_monitor.slurm.replies import ReplyError, read_account, read_show
from tests.clock import ManualClock
from tests.parsers import test_paths
from tests.plain import decode, encode
from tests.test_fuzz import HOSTILE, check_pages, check_state, fragments, pages

NOW = 1_700_000_000.0
ROOT = Path(__file__).parents[1]
EXAMPLES = 100  # of a target before the next one
NUMBER = re.compile(rb"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
PATH, OTHER = "/x.log", "/y.log"


def corpus() -> list[bytes]:
    """Real lines and blocks: the samples of each trainer's file and of each form."""
    found: list[bytes] = []
    for file in sorted([*(ROOT / "parsers/trainers").glob("*.yaml"), *(ROOT / "parsers/formats").glob("*.yaml")]):
        texts = _lines_of(yaml.safe_load(file.read_text()))
        found += [text.encode("utf-8", "surrogateescape") + b"\n" for text in texts]
    return found


def _lines_of(value: Any, key: str = "") -> list[str]:
    if isinstance(value, dict):
        return [text for name, inner in value.items() for text in _lines_of(inner, name)]
    if isinstance(value, list):
        return [text for inner in value for text in _lines_of(inner, key)]
    return [value] if isinstance(value, str) and key in ("line", "samples", "sample", "yes") else []


CORPUS = corpus()
NUMBERS = [b"0", b"-1", b"1e300", b"1e-300", b"nan", b"inf", b"-inf", b"9" * 30, b"1" * 400, b"0.0", b"2147483648", b""]


BYTES = [b"\x80", b"\xff", b"\xe2\x96", b"\0", b"\r", b'"', b"{", b"}", b"\\ud800", b"\xef\xbb\xbf"]
CARRIED = [
    b"%b", b"%b", b"%b", b"2026-05-01T12:00:00.123456789Z stdout P %b", b"[pod/train-0/pytorch] %b", b"7: %b",
    b'{"log":"%b\\n","stream":"stdout","time":"2026-05-01T12:00:00.5Z"}', b'{"message":"%b","timestamp":"x","host":"a"}',
]  # fmt: skip


@st.composite
def changed_lines(draw: st.DrawFn) -> bytes:
    """A real line, in which some numbers and bytes are others, by itself or as a carrier hands it on."""
    line = draw(st.sampled_from(CORPUS))
    chance = draw(st.randoms(use_true_random=False))
    share = draw(st.sampled_from([0.0, 0.2, 1.0]))
    line = NUMBER.sub(lambda found: chance.choice(NUMBERS) if chance.random() < share else found[0], line)
    for _ in range(draw(st.sampled_from([0, 0, 1, 3]))):
        place = chance.randrange(len(line) + 1)
        line = line[:place] + chance.choice(BYTES) + line[place + chance.randrange(2) :]
    return draw(st.sampled_from(CARRIED)) % line.rstrip(b"\n") + b"\n"


TEXT = st.lists(st.one_of(fragments(), changed_lines()), max_size=25).map(b"".join)
SECONDS = st.sampled_from([0.0, 0.1, 1.0, 7.0, 61.0, 700.0, 9000.0, 400_000.0, -50.0])
MARK = Fingerprint(1, 2, 0, "", 0, 0, "")


def settled(core: Core, now: float) -> None:
    """What is told and shown is sound, and what is saved comes back."""
    for transition in core.tick(now):
        json.loads(json.dumps(payload(transition), allow_nan=False))
    check_pages(pages(core, now))
    check_state(core, now)


MESSAGES = st.tuples(
    st.sampled_from(["data"] * 8 + ["caught up", "restart", "gone", "unreadable", "readable", "unheard", "open"]),
    st.sampled_from([PATH, OTHER]), TEXT, SECONDS,
)  # fmt: skip


@given(st.lists(MESSAGES, min_size=1, max_size=12), st.booleans())
def logs(messages: list[tuple[str, str, bytes, float]], saved: bool) -> None:
    """Lines in any order of messages, at any times; saved and restored in between."""
    config = load("", [f'runs=[{{"paths": ["{PATH}", "{OTHER}"]}}]', "slurm.enabled=false"])
    core, now = Core(config), NOW
    offsets = {PATH: 0, OTHER: 0}
    for path in offsets:
        core.handle(Opened(path, path, None, 0, now, resumed=False, mount="/"), now)
    for number, (kind, path, text, seconds) in enumerate(messages):
        now += seconds
        if kind == "data":
            core.handle(Data(path, offsets[path], text, now, now, 0), now)
            offsets[path] += len(text)
        elif kind in ("restart", "open"):
            offsets[path] = 0
            core.handle(
                Restarted(path, "truncated", "") if kind == "restart"
                else Opened(path, path, None, 0, now, resumed=False, mount="/"), now,
            )  # fmt: skip
        else:
            core.handle(
                {
                    "caught up": CaughtUp(path, now), "gone": Gone(path, now),
                    "unreadable": NotReadable(path, 5, "I/O error", now), "readable": Readable(path, now),
                    "unheard": Unheard("/", abs(seconds), now),
                }[kind], now,
            )  # fmt: skip
        core.tick(now)
        if saved and number == len(messages) // 2:
            positions = Core(config)
            known = decode(encode(core.save(now)), Saved)
            positions.restore(known)
            core = positions
            for name, one in list(known.sources.items()):
                core.handle(
                    Opened(name, name, one.position, 0, now, resumed=True, offset=one.position.offset, mount="/"), now
                )
                offsets[name] = one.position.offset
    settled(core, now + 10_000.0)


MOVES = st.tuples(
    st.sampled_from(["write"] * 4 + ["look"] * 4 + ["rename", "copy", "cut", "delete", "link", "mkdir", "back", "chmod", "restart"]),
    st.integers(0, 3), st.integers(0, 3), TEXT,
)  # fmt: skip


@given(st.lists(MOVES, min_size=2, max_size=25), st.sampled_from(["ext4", "nfs", "unknown"]))
def files(moves: list[tuple[str, int, int, bytes]], file_system: str) -> None:
    """Files that are written, moved, cut, linked and deleted while they are followed."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        directory = Path(name)
        paths = [directory / one for one in ("main.log", "main.log.1", "sub/a.log", "b.out")]
        config = load("", [f'runs=[{{"paths": ["{name}/**/*.log*", "{name}/*.out"]}}]'])
        clock = ManualClock(NOW)
        core, reader = _followed(config, file_system)
        for kind, first, second, text in moves:
            clock.advance(0.7)
            try:
                _move(kind, paths[first], paths[second], text)
            except OSError:
                continue
            if kind == "restart":
                known = decode(encode(core.save(clock.wall())), Saved)
                reader.close()
                core, reader = _followed(config, file_system, known)
            if kind in ("look", "restart"):
                clock.advance(float(3 * first + 1))
                for message in reader.poll(clock, all_files=second > 1):
                    core.handle(message, clock.wall())
                reader.passed(clock.monotonic(), 0.5)
                core.tick(clock.wall())
                assert not any(source.failed for source in reader.sources.values())
        reader.close()
        settled(core, clock.wall())


def _followed(config: Config, system: str, saved: Saved | None = None) -> tuple[Core, MountReader]:
    core = Core(config)
    positions = core.restore(saved) if saved is not None else {}
    readers = Readers(positions, FollowSettings(), OsLayer())
    watches = [Watch(pattern) for watch in config.runs for pattern in watch.paths]
    (reader,) = readers.sync_readers(watches, Mounts([Mount("/", system)]), os.path.realpath)
    return core, reader


def _move(kind: str, path: Path, other: Path, text: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    if kind == "write":
        with path.open("ab") as stream:
            stream.write(text)
    elif kind == "rename":
        path.rename(other)
    elif kind == "copy":
        shutil.copyfile(path, other)
    elif kind == "cut":
        os.truncate(path, len(text) % 97)
    elif kind == "delete":
        path.unlink()
    elif kind == "link":
        path.symlink_to(other)
    elif kind == "mkdir":
        path.mkdir()
    elif kind == "back":
        path.rmdir()
    elif kind == "chmod":
        path.chmod(0o600)


PIECES = [
    b"GET ", b"POST ", b"HEAD ", b"/metrics", b"/api/v1/runs", b"/runs/x", b"/-/healthy", b"?name[]=megatron_iteration",
    b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", b"Host: localhost\r\n", b"Content-Length: 5\r\n", b"Content-Length: -1\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Accept-Encoding: gzip\r\n", b"Connection: close\r\n", b"\r\n", b"\n", b"0\r\n\r\n",
    b"Authorization: Basic Og==\r\n", b"%00%ff", b"/../", b"Expect: 100-continue\r\n", b"Range: bytes=0-\r\n",
]  # fmt: skip


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=30)), max_size=15).map(b"".join))
def http(data: bytes) -> None:
    """Any bytes at the door: it answers or closes, and goes on answering."""
    server = _server()
    with socket.create_connection(server.address, timeout=5) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        try:
            while client.recv(1 << 16):
                pass
        except ConnectionError:
            pass
    host, port = server.address
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=5) as answer:
        assert answer.status == 200


_SERVERS: list[HttpServer] = []


def _server() -> HttpServer:
    if not _SERVERS:
        core = Core(load("", [f'runs=[{{"paths": ["{PATH}"]}}]']))
        snapshot, clock = core.snapshot(NOW), ManualClock(NOW)
        app = App(lambda _asked: snapshot, clock, clock.monotonic)
        _SERVERS.append(HttpServer("127.0.0.1", 0, app, Limits()))
        _SERVERS[0].start()
    return _SERVERS[0]


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(HOSTILE))
KEYS = st.sampled_from(
    ["version", "pg_config", "pg_status", "entries", "0", "name", "desc", "ranks", "last_enqueued_collective",
     "last_started_collective", "last_completed_collective", "process_group", "collective_seq_id", "profiling_name", "state",
     "frames", "line", "filename", "is_p2p", "pg_id", "completed", "rank"]
)  # fmt: skip
VALUES = st.recursive(
    SCALARS | st.sampled_from(["[0, 1, 2]", "completed", "scheduled", "2.10"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(max_size=4), inner, max_size=6),
    max_leaves=40,
)


@given(st.dictionaries(KEYS, VALUES, max_size=8), st.binary(max_size=20), st.integers(0, 400), st.booleans())
def dumps(value: dict[str, Any], noise: bytes, place: int, as_json: bool) -> None:
    """What is no dump of the flight recorder is refused; what is one is judged."""
    whole = json.dumps(value).encode() if as_json else pickle.dumps(value, protocol=2)
    for data in (whole, whole[:place] + noise + whole[place:], noise):
        try:
            found = read_dump(data, 0)
        except NoDumpError:
            continue
        json.dumps(repr(diagnose([found, found])))


@st.composite
def changed_yaml(draw: st.DrawFn, names: list[Path]) -> str:
    """A real file, of which some lines are others, or gone, or twice."""
    lines = draw(st.sampled_from(names)).read_text().splitlines()
    for _ in range(draw(st.integers(0, 6))):
        place = draw(st.integers(0, len(lines) - 1))
        what = draw(st.sampled_from(["drop", "twice", "value", "indent", "text"]))
        line = lines[place]
        if what == "drop" and len(lines) > 1:
            del lines[place]
        elif what == "twice":
            lines.insert(place, line)
        elif what == "value":
            lines[place] = (
                line.split(":")[0]
                + ": "
                + draw(st.one_of(SCALARS.map(repr), st.sampled_from(["[]", "{}", "*a", "&a b"])))
            )
        elif what == "indent":
            lines[place] = " " + line
        else:
            lines[place] = draw(st.text(max_size=20))
    return "\n".join(lines)


@given(changed_yaml(sorted((ROOT / "parsers/trainers").glob("*.yaml"))))
def dialects(text: str) -> None:
    """A dialect's file is taken, or refused with a reason."""
    with contextlib.suppress(DialectError):
        dialect_of(Path("own.yaml"), text.encode("utf-8", "surrogatepass"))


@given(changed_yaml([ROOT / "config.yaml"]))
def configurations(text: str) -> None:
    """A configuration is taken, or refused with its errors; what is taken makes a core that reads."""
    try:
        config = load(text)
    except ConfigError:
        return
    core = Core(config)
    core.handle(Opened(PATH, PATH, None, 0, NOW, resumed=False), NOW)
    core.handle(Data(PATH, 0, b"".join(CORPUS[:40]), NOW, NOW, 0), NOW)
    core.handle(CaughtUp(PATH, NOW), NOW)
    core.tick(NOW + 100.0)


FIELDS = ["JobId", "ArrayJobId", "ArrayTaskId", "JobName", "UserId", "JobState", "Reason", "ExitCode", "Restarts", "TimeLimit",
          "SubmitTime", "StartTime", "EndTime", "SuspendTime", "Partition", "NodeList", "ExcNodeList", "StdOut", "Command"]  # fmt: skip
ANSWERS = st.one_of(
    st.sampled_from(["500", "RUNNING", "alice(1000)", "0:0", "1-02:03:04", "UNLIMITED", "(null)", "1700000000", "node[1-3]",
                     "Unknown", "FAILED", "CANCELLED by 0", "JobId=500", "node[1-99999999]", "9" * 40]),
    st.text(max_size=12),
)  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(FIELDS), ANSWERS), max_size=20), st.lists(ANSWERS, max_size=16))
def slurm(pairs: list[tuple[str, str]], columns: list[str]) -> None:
    """What Slurm answers is understood whole or refused."""
    shown = " ".join(f"{name}={value}" for name, value in [("JobId", "500"), *pairs])
    for read, text in (
        (read_show, shown),
        (read_account, "|".join(["500", "500", *columns])),
        (read_show, "\n".join(columns)),
    ):
        with contextlib.suppress(ReplyError):
            read(text, "500")


@given(
    st.sampled_from(sorted(test_paths.ENGINES)),
    test_paths.logs(),
    st.sampled_from([7, 300, 1 << 20]),
    st.randoms(use_true_random=False),
)
def paths(engine: str, data: bytes, size: int, chance: random.Random) -> None:
    """Every way to read a line gives what looking at every line gives."""
    test_paths.check_paths(engine, data, size)
    test_paths.check_one_by_one(data, chance)


TARGETS: dict[str, Callable[[], None]] = {
    one.__name__: one
    for one in (logs, files, http, dumps, dialects, configurations, slurm, paths)  # type: ignore[attr-defined]
}


def _raise(_aside: Aside, room: str, name: str, error: Exception) -> NoReturn:
    raise AssertionError(f"{room} {name} would be put aside") from error


def main() -> int:
    """1 if something was found."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--minutes", type=float, default=30.0)
    options.add_argument("--only", choices=TARGETS)
    chosen = options.parse_args()
    Aside.note = _raise  # type: ignore[method-assign,assignment]
    end = time.monotonic() + 60.0 * chosen.minutes
    played, found = Counter[str](), Counter[str]()
    often = settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=DirectoryBasedExampleDatabase(".hypothesis/examples"),
        suppress_health_check=list(HealthCheck),
        phases=[Phase.reuse, Phase.generate, Phase.shrink],
    )
    targets = {name: often(target) for name, target in TARGETS.items()}
    left = [chosen.only] if chosen.only else list(TARGETS)
    while time.monotonic() < end and left:
        for name in list(left):
            try:
                targets[name]()
            except Exception:
                found[name] += 1
                left.remove(name)  # until it is mended the same is found again
                print(f"== {name}", file=sys.stderr)
                traceback.print_exc()
            played[name] += EXAMPLES
    for server in _SERVERS:
        server.stop()
    print(json.dumps({"examples": played, "found": found}, indent=2))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())

"""Whatever a log, an arguments dump, an HF dict or a run's name holds: nothing raises, nothing escapes, nothing leaks.

A log line is written by whoever can make the training print: it must stay text on every way out of the process.
"""

import html.parser
import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import msgpack
from prometheus_client.parser import text_string_to_metric_families as parse_text

from megatron_monitor.config import load
from megatron_monitor.core import Core
from megatron_monitor.core.saved import Saved
from megatron_monitor.follow.messages import CaughtUp, Data, Gone, Opened, Restarted, Unreadable
from megatron_monitor.incidents import Transition
from megatron_monitor.notifiers.message import payload
from megatron_monitor.parsers.registry import RULES
from megatron_monitor.serve.exchange import Request
from megatron_monitor.serve.http import App
from tests.clock import ManualClock
from tests.conftest import examples
from tests.monitor.core.test_jump import line
from tests.plain import decode, encode

HOSTILE = [
    '"} 1\nmegatron_injected{run="x', "<script>alert(1)</script>", "\x1b]0;owned\x07\x1b[31m", "\u2028\u202e\u0000",
    "{{7*7}}${jndi:x}", "'--><img src=x onerror=alert(1)>", '\\", "injected": "1', "\ud800\udfff", "A" * 5000,
    "../../etc/passwd", "%0d%0aSet-Cookie: a=b", "NaN", "1e999", "-0", "9" * 400, "\r\n\r\nHTTP/1.1 200 OK",
]  # fmt: skip
ANCHORS = sorted({anchor for rule in RULES for anchor in rule.anchors})


def fragments() -> st.SearchStrategy[bytes]:
    """Pieces of which hostile lines are made: anchors, real lines, hostile texts, any bytes."""
    return st.one_of(
        st.sampled_from(ANCHORS),
        st.sampled_from([text.encode("utf-8", "surrogatepass") for text in HOSTILE]),
        st.integers(-5, 10**9).map(line),
        st.sampled_from([b"\n", b"\r", b"\r\n", b"\0", b" | ", b": ", b"=", b"{'loss': ", b"}", b"  arg ....... 1\n"]),
        st.binary(max_size=40),
        st.integers(-(10**30), 10**30).map(lambda number: str(number).encode()),
        st.floats().map(lambda number: repr(number).encode()),
    )


LOGS = st.lists(fragments(), max_size=40).map(b"".join)


def core_of(name: str = "run") -> Core:
    """A core that follows one file."""
    runs = json.dumps([{"paths": ["/x.log"], "name": name}])
    config = load("", [f"runs={runs}"])
    return Core(config)


def fed(core: Core, data: bytes, *, live: bool = True) -> float:
    """The data read, judged and shown; gives the time at the end."""
    now = 1_700_000_000.0
    core.handle(Opened("/x.log", "/x.log", None, len(data), now, resumed=False), now)
    if live:
        core.handle(CaughtUp("/x.log", now), now)
    offset = 0
    for start in range(0, len(data), 1000):
        piece = data[start : start + 1000]
        core.handle(Data("/x.log", offset, piece, now, now, 0), now)
        offset += len(piece)
        now += 1.0
        core.tick(now)
    if not live:
        core.handle(CaughtUp("/x.log", now), now)
    return now


def pages(core: Core, now: float) -> dict[str, bytes]:
    """Everything that HTTP shows."""
    snapshot, clock = core.snapshot(now), ManualClock(now)
    app = App(lambda _asked: snapshot, clock, clock.monotonic)
    found = {}
    paths = ["/", "/metrics", "/api/v1/runs", "/api/v1/incidents"]
    paths += [f"/runs/{run.run}".encode("utf-8", "replace").decode() for run in snapshot.runs]
    for path in paths:
        reply = app(Request(path=path))
        assert reply.status == 200, path
        found[path] = reply.body
    return found


class Tags(html.parser.HTMLParser):
    """Which elements and attributes a page has."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.forms: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """One element."""
        self.names.add(tag)
        self.attributes.update(name for name, _ in attrs)
        if tag == "form":
            self.forms.append(dict(attrs))


def check_pages(found: dict[str, bytes]) -> None:
    """No metric, element, attribute or control character came in by a log's text."""
    text = found["/metrics"].decode()
    for family in parse_text(text):
        assert re.fullmatch(r"(megatron|process|python)_[a-z0-9_]+", family.name)
    rows = [row.rsplit(" ", 1)[0] for row in text.splitlines() if row and not row.startswith("#")]
    assert len(rows) == len(set(rows))
    for path, page in found.items():
        shown = page.decode()
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown.replace("\r", "")), path
        if path.startswith("/api"):
            json.loads(shown, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        elif shown.startswith("<!doctype"):
            tags = Tags()
            tags.feed(shown)
            assert not {"iframe", "object", "embed", "base"} & tags.names, path
            assert all("action" not in form and form.get("method", "get") == "get" for form in tags.forms), path
            assert not {name for name in tags.attributes if name.startswith("on")}, path
            assert "alert(1)" not in re.sub(
                r"&lt;.*?&gt;", "", "".join(re.findall(r"<script.*?</script>", shown, re.S))
            )


def check_state(core: Core, now: float) -> None:
    """What is saved comes back: the same bytes, but for the order of sets."""
    once = decode(encode(core.save(now)), Saved)
    twice = decode(encode(once), Saved)
    assert sorted(msgpack.encode(twice)) == sorted(msgpack.encode(once))


@given(LOGS, st.booleans())
@example(b"\x01\x1b[2J" + line(0), True)
@example(b"\x7f\xc2\x9b2J" + line(0), True)
@examples(60)
def test_any_log(data: bytes, live: bool) -> None:
    """Lines made of anchors, real lines, hostile texts and bytes: nothing raises, and every way out stays sound."""
    core = core_of()
    now = fed(core, data, live=live)
    core.handle(Restarted("/x.log", "rotated", "proof"), now)
    core.handle(Data("/x.log", 0, data[:500], now, now, 0), now)
    core.handle(Unreadable("/x.log", 5, "Input/output error", now), now)
    core.handle(Gone("/x.log", now), now)
    for transition in core.tick(now + 10_000):
        json.loads(json.dumps(payload(transition), allow_nan=False))
    check_pages(pages(core, now + 10_000))
    check_state(core, now)


@pytest.mark.parametrize(
    "name", [text for text in HOSTILE if text.isprintable() and len(text) <= 200 and text.strip() == text]
)
def test_a_hostile_run_name_stays_a_text(name: str) -> None:
    """In labels, on the page, in the API and in notifications."""
    core = core_of(name)
    now = fed(core, line(1) + line(2))
    found = pages(core, now)
    check_pages(found)
    assert b"megatron_injected" not in re.sub(rb'"(?:[^"\\\\]|\\\\.)*"', b"", found["/metrics"])
    assert json.loads(found["/api/v1/runs"])["runs"][0]["run"] == name


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize(
    "template",
    ["RuntimeError: CUDA error: {}\n", "[rank3]: ValueError: {}\n", "Traceback (most recent call last):\n  File \"{}\", line 1\nOSError: {}\n",
     " validation loss at iteration 5 on {} | lm loss value: 1.0E+00 | lm loss PPL: 2.0E+00 |\n", "  model_name ................. {}\n",
     "{{'loss': 1.0, '{}': 2.0, 'epoch': 0.1}}\n", " iteration 7/ 10 | elapsed time per iteration (ms): 5.0 | {}: 1.0E+00 | lm loss: 1.0E+00 |\n",
     "slurmstepd: error: *** JOB {} ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n", "own: {}\n"],
)  # fmt: skip
def test_hostile_text_in_every_place(template: str, text: str) -> None:
    """Failures, tracebacks, data set names, arguments, dict keys, loss names, job names: escaped on every way out."""
    core = core_of()
    data = (
        line(1)
        + line(2)
        + template.replace("{}", text).replace("{{", "{").replace("}}", "}").encode("utf-8", "surrogatepass")
    )
    now = fed(core, data + line(3))
    check_pages(pages(core, now))
    reported = core.tick(now + 1000)
    for transition in reported:
        raw = json.dumps(payload(transition), allow_nan=False)
        assert set(json.loads(raw)) <= {"version", "id", "title", *FACTS, *Transition.__struct_fields__}
        assert "\x1b" not in raw


FACTS = {"since", "cause", "rank", "node", "cost_gpu_hours", "advice", "line", "page_url", "runbook_url"}

"""The last lines of a log, and those around the line that an incident refers to."""

import json

from megatron_monitor.log_tail import LINES_AFTER, LINES_BEFORE, MAX_STREAM_BYTES, MAX_TOTAL_BYTES, LogTail, limit_of
from megatron_monitor.serve.exchange import Request
from megatron_monitor.serve.views import view_of
from tests.lines import line
from tests.monitor.core.following import Following

PATH = "/l/a.log"


def test_what_is_kept_is_bounded() -> None:
    """32 KiB a stream, and less each where there are thousands."""
    tail = LogTail()
    for number in range(5000):
        tail.add(f"line {number} {'x' * 90}\n".encode())
    assert MAX_STREAM_BYTES - 200 < len(tail.data) <= MAX_STREAM_BYTES
    assert len(tail.lines()) == 100
    assert tail.lines()[-1].startswith("line 4999 ")
    assert 10_000 * limit_of(10_000) <= MAX_TOTAL_BYTES


def test_lines_are_shown_as_a_terminal_does_and_without_secrets() -> None:
    """Colours and control characters are removed; of a progress bar the last frame is shown."""
    tail = LogTail()
    tail.add(b"\x1b[31mred\x1b[0m\n 1%\r 50%\r100%\r\nbell\x07\nWANDB_API_KEY=0123456789abcdef0123\nhalf a li")
    assert tail.lines() == ["red", "100%", "bell\ufffd", "WANDB_API_KEY=***", "half a li"]


def test_lines_around_the_one_that_an_incident_refers_to() -> None:
    """60 before and 40 after, also those that are written later."""
    tail = LogTail()
    tail.add(b"".join(b"before %d\n" % number for number in range(200)) + b"it fails here\nthen this\n")
    around = tail.excerpt("/l/a.log", "fails here")
    for number in range(500):
        tail.add(b"after %d\n" % number)
    shown = around.to_json()
    assert shown["lines"][shown["marked"]] == "it fails here"
    assert (shown["marked"], len(shown["lines"])) == (LINES_BEFORE, LINES_BEFORE + 1 + LINES_AFTER)
    assert shown["lines"][-1] == f"after {LINES_AFTER - 2}"
    assert tail.excerpts == ()  # it is full: later lines are no work


def _logs() -> Following:
    logs = Following("runs=[{paths: ['/l/*']}]")
    logs.open(PATH)
    for number in range(1, 40):
        logs.write(PATH, line(number, 1000, seconds=1.0))
        logs.wait(1.0)
    return logs


def test_a_hang_shows_the_lines_around_it_until_it_ends() -> None:
    """With the hang the excerpt is dropped."""
    logs = _logs()
    logs.write(PATH, "waiting for the storage\n")
    logs.wait(120.0)
    (run,) = logs.core.snapshot(logs.now).runs
    around = run.log["incidents"]["hang"]
    assert "iteration" in around["lines"][around["marked"]]
    assert around["lines"][-1] == "waiting for the storage"
    logs.write(PATH, line(40, 1000, seconds=1.0))
    logs.wait(2.0)
    (run,) = logs.core.snapshot(logs.now).runs
    assert run.log["incidents"] == {}
    assert run.log["streams"][0]["lines"][-1].lstrip().startswith(line(40, 1000, seconds=1.0).strip()[:20])


def test_the_api_and_the_page_show_them() -> None:
    """Text of a log is never markup."""
    logs = _logs()
    logs.write(PATH, "<b>not markup</b>\n")
    logs.wait(120.0)
    shown = logs.core.snapshot(logs.now)
    reply = view_of(Request("GET", "/api/v1/runs/a/log"), shown, shown.at)
    assert reply is not None
    assert json.loads(reply.body)["streams"][0]["lines"][-1] == "<b>not markup</b>"
    page = view_of(Request("GET", "/runs/a"), shown, shown.at)
    assert page is not None
    assert b"&lt;b&gt;not markup&lt;/b&gt;" in page.body
    assert b"<mark>" in page.body

"""Chats and the pager: each message is one that the service accepts, and no log calls anybody."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from megatron_monitor.config import ConfigError, load
from megatron_monitor.incident_events import UNWATCHED
from tests.commands import command
from tests.monitor.notifiers.receiver import HANG, Receiver, built, failure
from tests.monitor.notifiers.services import SERVICES, service

KEY = "R0ut1ng" * 4 + "KEY4"
LINE = "<!channel> <@U1> @everyone @here ```` **b** <http://e.vil|x> [x](https://e.vil) & \udcff \x1b[2J \u202e"
LINKS = {"page": "http://login-1/runs?a=b&name=x", "runbook": "https://wiki.example/runbook.md#hang"}
FULL = replace(
    HANG, since=HANG.time - 720.0, gpus=384, job="4711", event="tr11 2023-11-14T22:01Z", links=LINKS,
    summary=f"hung: {LINE}", evidence={"last_line": LINE, "also": LINE},
)  # fmt: skip
MESSAGES = {
    "short": HANG,
    "full": FULL,
    "end": replace(FULL, status="resolved", evidence={"lasted_seconds": 60.0}),
    "info": replace(FULL, severity="info", event=""),
    "long": replace(FULL, run="r" * 200, summary="\U0001f600" * 70_000, evidence={"last_line": "&" * 70_000}),
    "wide": replace(FULL, evidence={f"name {number}": "火" for number in range(5000)}),
}


@pytest.fixture(autouse=True)
def _key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PagerDuty's key, in the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("key").write_text(f"{KEY}\n")


def notifier(kind: str, receiver: Receiver) -> str:
    """The configuration of a notifier of this kind; the receiver answers as the service does."""
    receiver.judge = service(kind)
    return f"type: {kind}, url: '{receiver.url}'" + (", routing_key_file: key" if kind == "pagerduty" else "")


@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize("kind", SERVICES)
def test_every_message_is_accepted(kind: str, message: str, receiver: Receiver) -> None:
    """However long the texts and however many the facts are. The answer is reported."""
    answer = built(notifier(kind, receiver)).send(MESSAGES[message])
    assert re.match("answered (200 OK: ok|202 Accepted|204 No Content)", answer)


@pytest.mark.parametrize("kind", SERVICES)
def test_the_object_of_a_webhook_is_refused(kind: str, receiver: Receiver) -> None:
    """Each service needs its own body. The reason is reported, and that a repetition does not help."""
    receiver.judge = service(kind)
    said, permanent = failure(built(f"type: webhook, url: '{receiver.url}'"))
    assert re.fullmatch("answered 400 Bad Request: .+", said)
    assert permanent


@pytest.mark.parametrize("kind", SERVICES)
def test_a_log_calls_nobody(kind: str, receiver: Receiver) -> None:
    """No text has a mention or a link of the log, and no line of the log ends a block of code."""
    built(notifier(kind, receiver)).send(FULL)
    (body,) = receiver.bodies
    for text in texts_of(body):
        assert not re.search(r"<[!@#]|@everyone|@here|\]\(https?://e\.vil|https?://e\.vil|[\x1b\u202e]", text)
        assert kind not in ("discord", "mattermost") or text.count("```") in (0, 2)
    assert set(LINKS.values()) <= {found.replace("&amp;", "&") for found in addresses_of(body)}


def test_all_facts_are_shown_in_slack(receiver: Receiver) -> None:
    """As plain text, which Slack does not format; a title for phones, a colour by severity, links of their own."""
    built(notifier("slack", receiver)).send(FULL)
    (body,) = receiver.bodies
    ((_, links), header) = body["attachments"][0]["blocks"], body["blocks"][0]
    assert body["text"] == header["text"]["text"] == "[critical] tr11-176B: hang since 22:01 UTC, training"
    assert body["attachments"][0]["color"] == "#C62828"
    text = body["attachments"][0]["blocks"][0]["text"]
    assert text["type"] == "plain_text"
    assert "\nphase: training\nGPUs: 384\nSlurm job: 4711\n" in text["text"]
    assert links["text"]["text"].startswith("<http://login-1/runs?a=b&amp;name=x|page> | <https://wiki")


# --- pagerduty ------------------------------------------------------------------------------------------------------


def test_the_end_of_an_event_resolves_its_incident(receiver: Receiver) -> None:
    """One key per event, also when it became worse. Incidents without an event of their own have a key each."""
    pager = built(notifier("pagerduty", receiver))
    worse = replace(FULL, incident="crash", time=FULL.time + 60.0)
    missed = [replace(FULL, run=run, event=UNWATCHED) for run in ("a", "b")]
    for message in (FULL, worse, replace(worse, status="resolved"), *missed):
        pager.send(message)
    first, second, end, *others = receiver.bodies
    assert [one["event_action"] for one in (first, second, end)] == ["trigger", "trigger", "resolve"]
    assert first["dedup_key"] == second["dedup_key"] == end["dedup_key"] == FULL.event
    assert len({first["dedup_key"], *(one["dedup_key"] for one in others)}) == 3
    assert first["routing_key"] == KEY
    assert first["payload"]["summary"].startswith("[critical] tr11-176B: hang since 22:01 UTC, training: hung: ")
    assert first["payload"]["timestamp"] == "2023-11-14T22:01:20.000+00:00"
    assert first["payload"]["custom_details"]["Slurm job"] == "4711"


def test_a_key_of_a_file(receiver: Receiver, tmp_path: Path) -> None:
    """It is read at each delivery. The service explains a wrong one."""
    receiver.judge = service("pagerduty")
    (tmp_path / "key").write_text("short\n")
    pager = built(f"type: pagerduty, url: '{receiver.url}', routing_key_file: '{tmp_path / 'key'}'")
    said, permanent = failure(pager)
    assert "Length of 'routing_key' is incorrect (should be 32 characters)" in said
    assert permanent
    (tmp_path / "key").write_text(f"{KEY}\n")
    assert "Event processed" in pager.send(HANG)


# --- webhook with a template ----------------------------------------------------------------------------------------


def test_a_template_makes_the_body(receiver: Receiver) -> None:
    """Values as JSON, unknown ones as null; the text without mentions."""
    template = '{"a": {{ title | tojson }}, "b": {{ rank | tojson }}, "c": {{ text | tojson }}, "d": "{{ node }}"}'
    built(f"type: webhook, url: '{receiver.url}', template: '{template}'").send(FULL)
    (body,) = receiver.bodies
    assert (body["a"], body["b"], body["d"]) == ("[critical] tr11-176B: hang since 22:01 UTC, training", None, "")
    assert "last line: < !channel>" in body["c"]


def test_a_template_of_plain_text(receiver: Receiver) -> None:
    """For services such as ntfy."""
    headers = "headers: {content-type: text/plain, Title: incident}"
    built(f"type: webhook, url: '{receiver.url}', {headers}, template: '{{{{ title }}}} 火'").send(HANG)
    ((_, sent, body),) = receiver.received
    assert (sent["Content-Type"], body) == ("text/plain", "[critical] tr11-176B: hang 火".encode())


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{{ titel | tojson }}", "the template is wrong: 'titel' is undefined"),
        ("{{ title", "the template is wrong: unexpected end of template"),
        ('{"text": {{ title }}}', "the template gives no JSON: Expecting value"),
        ("{{ 1 / 0 }}", "the template fails: ZeroDivisionError"),
    ],
)
def test_a_wrong_template_is_found_at_the_start(template: str, problem: str) -> None:
    """With its key, not by the first incident."""
    with pytest.raises(ConfigError, match=f"notifiers.0.template: {re.escape(problem)}"):
        load(f"notifiers: [{{type: webhook, name: x, url: 'http://x/', template: {json.dumps(template)}}}]")


# --- notify --test --------------------------------------------------------------------------------------------------


def test_the_answer_is_printed(receiver: Receiver, tmp_path: Path) -> None:
    """Status and body, accepted or not."""
    path = tmp_path / "config.yaml"
    path.write_text(f"notifiers: [{{name: chat, {notifier('slack', receiver)}}}]")
    assert command("notify", "--config", path, "--test", "chat").output == "chat: answered 200 OK: ok\n"
    receiver.judge = lambda _: (400, "invalid_blocks\nsecond line\x1b\n")
    done = command("notify", "--config", path, "--test", "chat", code=1)
    assert done.output == "chat: answered 400 Bad Request: invalid_blocks\nsecond line\n"


def texts_of(value: Any) -> Iterator[str]:
    """Every text in a body."""
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts_of(item)


def addresses_of(body: Any) -> set[str]:
    """Every address that a reader can follow."""
    return {found for text in texts_of(body) for found in re.findall(r"https?://[^\s|>)]+", text)}

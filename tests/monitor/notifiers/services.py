"""What Slack, Teams, Discord, Mattermost and PagerDuty accept: a body to the status and the text of the answer.

Rule: a field that the service does not document is refused, also where the service ignores it.
"""

import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any


class RefusedError(Exception):
    """The service's text for a body that it does not accept."""


def slack(body: bytes) -> tuple[int, str]:
    """Incoming webhooks: `text` or blocks; a header of 150 characters, a section of 3,000, 50 blocks."""
    given = _object(body, "invalid_payload")
    attachments = given.get("attachments", [])
    blocks = [*given.get("blocks", []), *(block for one in attachments for block in one["blocks"])]
    _must(given.keys() <= {"text", "blocks", "attachments"}, "invalid_payload")
    _must(given.get("text") or blocks, "no_text")
    _must(all(re.fullmatch("#[0-9A-F]{6}", one["color"]) for one in attachments), "invalid_attachments")
    _must(len(blocks) <= 50, "invalid_blocks")
    for block in blocks:
        text, header = block["text"], block["type"] == "header"
        _must(header or block["type"] == "section", "invalid_blocks")
        _must(text["type"] == "plain_text" or (text["type"] == "mrkdwn" and not header), "invalid_blocks")
        _must(0 < _units(text["text"]) <= (150 if header else 3000), "invalid_blocks")
    _must(not re.search("<[!@#]", given.get("text", "")), "a mention")
    return 200, "ok"


def teams(body: bytes) -> tuple[int, str]:
    """The workflow "Send webhook alerts to a channel": an Adaptive Card in its envelope, 28 KB."""
    _must(len(body) <= 28 * 1024, "RequestEntityTooLarge")
    given = _object(body, "InvalidRequestContent")
    _must(given.get("type") == "message" and len(given["attachments"]) == 1, "InvalidTemplate")
    (attachment,) = given["attachments"]
    _must(attachment["contentType"] == "application/vnd.microsoft.card.adaptive", "InvalidTemplate")
    card = attachment["content"]
    _must(card["type"] == "AdaptiveCard" and card["version"] in ("1.2", "1.3", "1.4", "1.5"), "InvalidCard")
    for element in card["body"]:
        _must(element["type"] == "RichTextBlock" and element["inlines"], "InvalidCard")
        _must(all(run["type"] == "TextRun" and run["text"].strip() for run in element["inlines"]), "InvalidCard")
    _must(
        all(one["type"] == "Action.OpenUrl" and one["title"] and one["url"] for one in card["actions"]), "InvalidCard"
    )
    return 202, ""


def discord(body: bytes) -> tuple[int, str]:
    """Webhooks: 2,000 characters of content or embeds of 6,000 in all; who is mentioned is said explicitly."""
    given = _object(body, '{"code": 50109}')
    content, embeds = given.get("content", ""), given.get("embeds", [])
    _must(content or embeds, '{"message": "Cannot send an empty message", "code": 50006}')
    _must(_units(content) <= 2000 and len(embeds) <= 10, '{"content": ["Must be 2000 or fewer in length."]}')
    for embed in embeds:
        _must(embed.keys() <= {"title", "description", "color", "url", "fields"}, '{"embeds": ["0"]}')
        _must(0 < _units(embed["title"]) <= 256 and _units(embed["description"]) <= 4096, '{"embeds": ["0"]}')
        _must(isinstance(embed["color"], int) and 0 <= embed["color"] <= 0xFFFFFF, '{"embeds": ["0"]}')
    _must(sum(_units(one["title"] + one["description"]) for one in embeds) <= 6000, '{"embeds": ["0"]}')
    _must(given.get("allowed_mentions") == {"parse": []}, "everyone would be mentioned")
    return 204, ""


def mattermost(body: bytes) -> tuple[int, str]:
    """Incoming webhooks: `text` or attachments; a post has 16,383 characters."""
    given = _object(body, "Unable to parse incoming data.")
    texts = [given.get("text", ""), *(one["text"] for one in given.get("attachments", []))]
    _must(any(texts), "No text specified.")
    _must(all(_units(text) <= 16383 for text in texts), "Post Message property is longer than the limit.")
    return 200, "ok"


def pagerduty(body: bytes) -> tuple[int, str]:
    """Events API v2: what a trigger must have, the lengths of texts, 512 KB."""
    _must(len(body) <= 512 * 1024, "413")
    given = _object(body, "Invalid JSON")
    errors = list(_errors(given, given.get("payload", {})))
    answer: dict[str, Any] = {"status": "success", "message": "Event processed", "dedup_key": given.get("dedup_key")}
    if errors:
        answer = {"status": "invalid event", "message": "Event object is invalid", "errors": errors}
    return 400 if errors else 202, json.dumps(answer)


def _errors(event: dict[str, Any], payload: dict[str, Any]) -> Iterator[str]:
    if len(event.get("routing_key", "")) != 32:
        yield "Length of 'routing_key' is incorrect (should be 32 characters)"
    if event.get("event_action") not in ("trigger", "acknowledge", "resolve"):
        yield "'event_action' is missing or invalid"
    if event.get("event_action") != "trigger" and not event.get("dedup_key"):
        yield "'dedup_key' is missing or blank"
    if len(event.get("dedup_key", "")) > 255:
        yield "'dedup_key' is too long"
    if not 0 < len(payload.get("summary", "")) <= 1024:
        yield "'payload.summary' is missing or too long"
    if not payload.get("source"):
        yield "'payload.source' is missing or blank"
    if payload.get("severity") not in ("critical", "error", "warning", "info"):
        yield "'payload.severity' is invalid (must be one of: critical, error, warning, info)"
    if "timestamp" in payload and datetime.fromisoformat(payload["timestamp"]).tzinfo is None:
        yield "'payload.timestamp' is not ISO 8601"
    if not all(link["href"].startswith("http") and link["text"] for link in event.get("links", [])):
        yield "'links' are invalid"


SERVICES: dict[str, Callable[[bytes], tuple[int, str]]] = {
    "slack": slack, "teams": teams, "discord": discord, "mattermost": mattermost, "pagerduty": pagerduty,
}  # fmt: skip


def service(name: str) -> Callable[[bytes], tuple[int, str]]:
    """The service, which answers 400 with its text where it refuses."""

    def judge(body: bytes) -> tuple[int, str]:
        try:
            return SERVICES[name](body)
        except (RefusedError, KeyError, TypeError) as error:
            return 400, str(error)

    return judge


def _object(body: bytes, otherwise: str) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError as error:
        raise RefusedError(otherwise) from error
    if not isinstance(found, dict):
        raise RefusedError(otherwise)
    return found


def _must(holds: object, otherwise: str) -> None:
    if not holds:
        raise RefusedError(otherwise)


def _units(text: str) -> int:
    """The length in UTF-16, the longest that a service may count."""
    return len(text.encode("utf-16-le")) // 2

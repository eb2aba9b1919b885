"""The notifiers `slack`, `teams`, `discord` and `mattermost`: each posts to the webhook address that the service gave.

Input: a Transition. Output: its title, text and links as the service shows them, within the service's limits.
Rule: the text is shown as it is, without mentions, links and formatting, because parts of it come from a log.
"""

from html import escape
from typing import Any, Final

from msgspec.structs import replace

from megatron_monitor.incidents import Transition
from megatron_monitor.notifiers import texts
from megatron_monitor.notifiers.posting import Hook

_TEXT: Final = 2000  # UTF-16 units: Slack's limit is 3000, Discord's 4096
_LINES: Final = 80  # Teams: a line costs 100 bytes of the message's 28 KB, besides its text
_COLOURS: Final = {"resolved": 0x2E7D32, "info": 0x1565C0, "warning": 0xEF6C00, "critical": 0xC62828}
_CARD_COLOURS: Final = {"resolved": "Good", "info": "Accent", "warning": "Warning", "critical": "Attention"}


class Slack(Hook, frozen=True, kw_only=True, tag_field="type", tag="slack"):
    """A channel of Slack, by an incoming webhook: https://hooks.slack.com/services/..."""

    def content(self, message: Transition) -> Any:
        """Return the body of the POST."""
        title = texts.title(message)
        blocks: list[Any] = [{"type": "section", "text": {"type": "plain_text", "text": _text(message)}}]
        if links := [f"<{escape(address, quote=False)}|{name}>" for name, address in message.links.items()]:
            blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": " | ".join(links)}})
        return {
            "text": escape(title, quote=False),  # of the notification on a phone
            "blocks": [{"type": "header", "text": {"type": "plain_text", "text": title}}],
            "attachments": [{"color": _web_colour(message), "blocks": blocks}],
        }


class Teams(Hook, frozen=True, kw_only=True, tag_field="type", tag="teams"):
    """A channel of Teams, by the workflow "Send webhook alerts to a channel"."""

    def content(self, message: Transition) -> Any:
        """Return the body of the POST."""
        colour = _CARD_COLOURS[_look(message)]
        title = _line_of_card(texts.title(message), weight="Bolder", size="Medium", color=colour)
        lines = [line for line in _text(message).splitlines()[:_LINES] if line]
        card = {
            "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
            "type": "AdaptiveCard",
            "version": "1.4",
            "body": [title, *map(_line_of_card, lines)],
            "actions": [
                {"type": "Action.OpenUrl", "title": name, "url": address} for name, address in message.links.items()
            ],
        }
        content_type = "application/vnd.microsoft.card.adaptive"
        return {"type": "message", "attachments": [{"contentType": content_type, "contentUrl": None, "content": card}]}


class Discord(Hook, frozen=True, kw_only=True, tag_field="type", tag="discord"):
    """A channel of Discord: https://discord.com/api/webhooks/..."""

    def content(self, message: Transition) -> Any:
        """Return the body of the POST."""
        shown = {"title": texts.title(message), "description": _markdown(message), "color": _COLOURS[_look(message)]}
        return {"embeds": [shown], "allowed_mentions": {"parse": []}}


class Mattermost(Hook, frozen=True, kw_only=True, tag_field="type", tag="mattermost"):
    """A channel of Mattermost: https://HOST/hooks/..."""

    def content(self, message: Transition) -> Any:
        """Return the body of the POST."""
        title, text = texts.title(message), _markdown(message)
        return {"attachments": [{"fallback": title, "title": title, "text": text, "color": _web_colour(message)}]}


def _text(message: Transition) -> str:
    """Return the text without the links, which each service shows in its own way."""
    text = texts.body(replace(message, links={}), message.evidence)
    units = text.encode("utf-16-le", "replace")
    return text if len(units) <= 2 * _TEXT else units[: 2 * _TEXT - 6].decode("utf-16-le", "ignore") + "..."


def _markdown(message: Transition) -> str:
    """Return the text as a block of code, in which Markdown has no effect, and the links."""
    code = _text(message).replace("```", "'''")
    links = " | ".join(f"[{name}](<{address}>)" for name, address in message.links.items())
    return f"```\n{code}\n```\n{links}"


def _line_of_card(text: str, **properties: str) -> dict[str, Any]:
    """Return the element of a card that shows a line without Markdown."""
    return {"type": "RichTextBlock", "spacing": "None", "inlines": [{"type": "TextRun", "text": text, **properties}]}


def _look(message: Transition) -> str:
    return "resolved" if message.status == "resolved" else message.severity


def _web_colour(message: Transition) -> str:
    return f"#{_COLOURS[_look(message)]:06X}"

"""The notifier `webhook`: posts the JSON object of message.py, or what a template makes of its fields.

Input: a Transition. Output: one POST. A field of the object that is unknown is null in a template.
Rule: a template with a mistake is found when the configuration is read, by a message of test.
"""

import json
from typing import Any

import jinja2

from megatron_monitor import scalars
from megatron_monitor.incidents import JSON_FIELDS, Transition
from megatron_monitor.notifiers import texts
from megatron_monitor.notifiers.message import DeliveryError, payload
from megatron_monitor.notifiers.posting import Hook


class Webhook(Hook, frozen=True, kw_only=True, tag_field="type", tag="webhook"):
    """An address to which each message is posted as a JSON object."""

    template: str | None = None
    """Body of the request, in Jinja2. It must give JSON, unless `headers` has another Content-Type."""

    def problems(self) -> scalars.Problems:
        """Yield what is wrong with the combination of values."""
        yield from Hook.problems(self)
        try:
            self.content(self.test_message(0.0))
        except DeliveryError as error:
            yield "template", str(error)

    def content(self, message: Transition) -> Any:
        """Return the JSON object, or the text that the template gives. Raises DeliveryError."""
        if self.template is None:
            return payload(message)
        try:
            text = _environment().from_string(self.template).render(_fields(message))
            if "json" in {name.lower(): value for name, value in self.headers.items()}.get("content-type", "json"):
                json.loads(text)
        except jinja2.TemplateError as error:
            raise DeliveryError(f"the template is wrong: {error}", permanent=True) from error
        except json.JSONDecodeError as error:
            raise DeliveryError(f"the template gives no JSON: {error}", permanent=True) from error
        except Exception as error:  # an expression of the template may raise anything
            raise DeliveryError(f"the template fails: {type(error).__name__}: {error}", permanent=True) from error
        return text


def _fields(message: Transition) -> dict[str, Any]:
    """Return the fields of the JSON object, and `text`. Unknown ones are None."""
    known = payload(message)
    text = texts.body(message, known["evidence"])
    return {**dict.fromkeys(JSON_FIELDS), **dict.fromkeys(texts.facts(message)), **known, "text": text}


def _environment() -> jinja2.Environment:
    """Return the environment: a misspelt name is an error, null is written as nothing."""
    found = jinja2.Environment(  # noqa: S701 - the text is JSON, to which HTML's escapes do not apply
        undefined=jinja2.StrictUndefined, finalize=lambda value: "" if value is None else value
    )
    found.policies["json.dumps_kwargs"] = {"default": str}  # of an undefined name it raises UndefinedError
    return found

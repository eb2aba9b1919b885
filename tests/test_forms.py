"""The forms of lines that are data: each file's samples give what they say."""

from pathlib import Path
from typing import Any

import pytest

from megatron_monitor.parsers.events import to_fields
from tests.conftest import loaded

FILES = Path(__file__).parents[1] / "parsers" / "formats"
CONTENTS: dict[str, Any] = {path.stem: loaded(path.read_text()) for path in sorted(FILES.glob("*.yaml"))}
FORMS = [(rule["name"], form) for rules in CONTENTS.values() for rule in rules for form in rule["forms"]]


@pytest.mark.parametrize(("rule", "form"), FORMS, ids=[f"{rule}-{form['pattern'][:40]}" for rule, form in FORMS])
def test_samples(rule: str, form: dict[str, Any]) -> None:
    """By the rules of all formats, in their order: each sample gives its events, the first with these values."""
    from megatron_monitor.parsers.reader import SourceReader  # all rules, which main() makes

    assert form["samples"]
    for line, gives in form["samples"].items():
        reader = SourceReader()
        found = [*reader.feed(f"{line}\n".encode()), *reader.flush()]
        kinds = [*(["failure"] if "failed" in gives else []), form["event"], *form.get("also", ())]
        assert [(entry.rule, entry.event.kind) for entry in found] == [(rule, kind) for kind in kinds], line
        if "failed" in gives:  # the failure that is told before the end of a process
            assert getattr(found.pop(0).event, "failure", None) == gives["failed"], line
        expected = {name: value for name, value in form.get("fields", {}).items() if "{" not in str(value)} | gives
        expected.pop("failed", None)
        told = {name: getattr(found[0].event, name) for name in expected}
        assert told == expected, to_fields(found[0].event)

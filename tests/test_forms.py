"""The forms of lines that are data: each file's samples give what they say, and what is read is made of the files.

`python -m tests.test_forms` makes parsers/formats/forms.json anew.
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from parsers.events import to_fields
from parsers.formats.forms import RuleSpec
from tests.conftest import loaded

FILES = Path(__file__).parents[1] / "parsers" / "formats"
CONTENTS: dict[str, Any] = {path.stem: loaded(path.read_text()) for path in sorted(FILES.glob("*.yaml"))}
FORMS = [(rule["name"], form) for rules in CONTENTS.values() for rule in rules for form in rule["forms"]]


def from_files() -> bytes:
    """All rules, by file, as JSON; the samples are for tests alone."""
    rules = msgspec.convert(CONTENTS, dict[str, tuple[RuleSpec, ...]])
    return msgspec.json.format(msgspec.json.encode(rules), indent=1) + b"\n"


def test_what_is_read_is_made_of_the_files() -> None:
    """A change of a file that is not in forms.json is read by nobody."""
    assert (FILES / "forms.json").read_bytes() == from_files(), "run python -m tests.test_forms"


@pytest.mark.parametrize(("rule", "form"), FORMS, ids=[f"{rule}-{form['pattern'][:40]}" for rule, form in FORMS])
def test_samples(rule: str, form: dict[str, Any]) -> None:
    """By the rules of all formats, in their order: each sample gives its events, the first with these values."""
    from parsers.reader import SourceReader  # all rules, which main() makes

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


if __name__ == "__main__":
    (FILES / "forms.json").write_bytes(from_files())

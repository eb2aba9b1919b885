"""The dialects that come with the program: each file's samples give what they say, and what is read is made of them.

`python -m tests.test_trainers` makes parsers/trainers/built_in.json anew.
"""

from pathlib import Path

import msgspec
import pytest

from parsers.declared.schema import Dialect, built_in
from tests.conftest import loaded

FILES = Path(__file__).parents[1] / "parsers" / "trainers"


def from_files() -> bytes:
    """All dialects, by name, as JSON."""
    values = [loaded(path.read_text()) for path in sorted(FILES.glob("*.yaml"))]
    return msgspec.json.format(msgspec.json.encode(msgspec.convert(values, tuple[Dialect, ...])), indent=1) + b"\n"


def test_what_is_read_is_made_of_the_files() -> None:
    """A change of a file that is not in built_in.json is read by nobody."""
    assert (FILES / "built_in.json").read_bytes() == from_files(), "run python -m tests.test_trainers"


@pytest.mark.parametrize("dialect", built_in(), ids=lambda dialect: dialect.name)
def test_samples(dialect: Dialect) -> None:
    """By the rules of all formats, in their order: nobody else takes the line."""
    from parsers.registry import RULES
    from parsers.samples import differences  # all rules, which main() makes

    assert list(dialect.problems()) == []
    assert [problem for spec in dialect.lines for problem in spec.problems()] == []
    assert list(differences(dialect, RULES)) == []


if __name__ == "__main__":
    (FILES / "built_in.json").write_bytes(from_files())

"""The dialects that come with the program. Their files are parsers/trainers/*.yaml.

What is read here is made of them (`python -m tests.test_trainers`): a log is read without loading a YAML reader.
"""

from functools import cache
from pkgutil import get_data

import msgspec

from parsers.declared.schema import Dialect


@cache
def built_in() -> tuple[Dialect, ...]:
    """All of them, by name."""
    data = get_data("parsers.trainers", "built_in.json")
    assert data is not None
    return decoded(data)


def decoded(data: bytes) -> tuple[Dialect, ...]:
    """Dialects from their JSON."""
    return msgspec.json.decode(data, type=tuple[Dialect, ...])

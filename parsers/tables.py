"""Tables that stand beside the code as TOML: facts that a person adds to."""

import tomllib
from pkgutil import get_data
from typing import Any


def table_in(package: str, name: str) -> dict[str, Any]:
    """What a package's file holds."""
    data = get_data(package, name)
    assert data is not None
    return tomllib.loads(data.decode())

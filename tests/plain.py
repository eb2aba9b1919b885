"""A value as the state file holds it, and back."""

from typing import Any

import msgspec

from megatron_monitor.core import Core
from megatron_monitor.core.saved import Saved, of_parts


def encode(value: Any) -> bytes:
    """As in the state file."""
    return msgspec.msgpack.encode(value)


def decode(data: bytes, kind: Any) -> Any:
    """Typed as `kind`."""
    return msgspec.msgpack.decode(data, type=kind)


class Disk:
    """The state file in memory: the newest value of each part."""

    def __init__(self) -> None:
        self.parts: dict[str, bytes] = {}

    def save(self, core: Core, now: float) -> None:
        """What has changed."""
        self.parts |= {name: part or b"" for name, part in core.parts(now).items()}
        self.parts = {name: part for name, part in self.parts.items() if part}

    def saved(self) -> Saved:
        """What a restart finds."""
        problems: list[str] = []
        saved = of_parts(dict(self.parts), problems)
        assert saved is not None
        assert not problems
        return saved

"""A file for node_exporter's textfile collector, replaced whole: a reader sees the old figures or the new ones."""

from __future__ import annotations

import os
from pathlib import Path

from monitor.config import TextfileSettings


class Textfile:
    """One file; its name ends in .prom, or node_exporter would not read it (the configuration checks)."""

    def __init__(self, settings: TextfileSettings) -> None:
        self._settings = settings

    @property
    def name(self) -> str:
        """The name in the configuration."""
        return self._settings.name

    def write(self, page: bytes) -> None:
        """Write beside it and rename. Raises OSError."""
        beside = Path(f"{self._settings.path}.{os.getpid()}")  # node_exporter reads names that end in .prom alone
        try:
            beside.write_bytes(page)
            beside.replace(self._settings.path)
        except OSError:
            beside.unlink(missing_ok=True)
            raise

    def remove(self) -> None:
        """Delete the file: node_exporter would go on exporting it. Raises OSError."""
        Path(self._settings.path).unlink(missing_ok=True)

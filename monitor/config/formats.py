"""Loads a site's own line formats from files, and tests each on the samples that it contains.

Rule: a returned format yields what its samples expect. Otherwise a ValueError has every mistake with file and line.
Time and memory are bounded for any content.
"""

from pathlib import Path

from megatron_monitor.config.decode import decode
from megatron_monitor.config.document import ConfigError
from megatron_monitor.config.yaml_text import read_file
from megatron_monitor.parsers.declared.schema import Format
from megatron_monitor.parsers.registry import rules_with
from megatron_monitor.parsers.samples import differences

_MAX_PROBLEMS = 20  # reported per file


def format_at(name: str, base: str) -> Format:
    """Return the format of a file below the directory `base`, after a test on its samples. Raises ValueError."""
    path = Path(base) / name
    document = read_file(path)
    if document.value is None and not document.problems:
        raise ValueError(f"{path}:1: the file is empty; `megatron-monitor formats NAME` prints an example")
    found = decode(document, Format) if not document.problems else None
    if found is not None:
        for index, difference in differences(found, rules_with((found,))):
            document.problem(("samples", index), difference)
    if found is None or document.problems:
        shown = str(ConfigError(document.problems[:_MAX_PROBLEMS], str(path))).splitlines()
        more = len(document.problems) - len(shown)
        raise ValueError("; ".join([*shown, *([f"and {more} more"] if more > 0 else [])]))
    return found

"""What to do first about an incident, in a sentence that fits a cell: advice.csv, by kind and by a crash's failure or a
slowdown's cause; the line that names none is for all others of the kind. Pure.
"""

from typing import Final

from megatron_monitor.model.tables import rows_of

ADVICE: Final[dict[tuple[str, str], str]] = {
    (kind, of or ""): text for kind, of, text in rows_of("megatron_monitor", "advice.csv", tuple[str, str | None, str])
}


def advice_for(incident: str, of: str = "") -> str:
    """Raises KeyError for a kind that has none."""
    return ADVICE.get((incident, of)) or ADVICE[incident, ""]

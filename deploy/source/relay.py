"""The relay: one alert an incident kind, from the one template of incidents.yml, as they stand in runs.yml."""

import re
from pathlib import Path
from typing import Any

import yaml

_SOURCE = yaml.safe_load((Path(__file__).parent / "incidents.yml").read_text())
_RELAY = re.compile(r"(# --- begin of the relay[^\n]*\n).*?( *# --- end of the relay)", re.DOTALL)
_LISTED = re.compile(r'(?<=incident!~")[\w|]+')


def written(text: str) -> str:
    """runs.yml with the relay as its source has it, its kinds left out by the alert for all others."""
    alerts = "\n".join(_alert(kind, row) for kind, row in _SOURCE["incidents"].items())
    text = _RELAY.sub(lambda found: found[1] + alerts + found[2], text)
    return _LISTED.sub("|".join(_SOURCE["incidents"]), text)


def _alert(kind: str, row: dict[str, str]) -> str:
    words = {
        "ALERT": "Megatron" + "".join(part.title() for part in kind.split("_")),
        "KIND": kind,
        "ONLY": f", {row['only']}" if "only" in row else "",
        "UNLESS": row.get("unless", ""),
        "SAYS": row["says"],
        "SINCE": row.get("since", "since"),
        "MEANS": row["means"],
        "COST": ("" if "since" in row else _SOURCE["lasts"]) + (_SOURCE["costs"][row["cost"]] if "cost" in row else ""),
        "SECTION": kind.replace("_", "-"),
    }
    rule: dict[str, Any] = _SOURCE["template"]

    def filled(text: str) -> str:
        return re.sub(rf"\b(?:{'|'.join(words)})\b", lambda found: words[found[0]], text)

    def quoted(text: str) -> str:
        return "'" + filled(text).replace("'", "''") + "'"

    lines = [
        f"- alert: {filled(rule['alert'])}",
        f"  expr: {filled(rule['expr']).rstrip()}",
        f"  labels: {{{', '.join(f'{name}: {quoted(text)}' for name, text in rule['labels'].items())}}}",
        "  annotations:",
        *(f"    {name}: {quoted(text)}" for name, text in rule["annotations"].items()),
    ]
    return "".join(f"    {line}\n" for line in lines)

"""`python -m grafana.source [FOLDER]`: write every dashboard's JSON (`make dashboards`)."""

import json
import sys
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from grafana.source.dashboards import BOARDS, dashboard
from grafana.source.schema import BoardError

FOLDER = Path(__file__).parents[1] / "dashboards"


def generate(name: str) -> dict[str, Any]:
    """One dashboard as plain data, as Grafana imports it by hand and reads it from a file."""
    made: dict[str, Any] = json.loads(JSONEncoder(sort_keys=True).encode(dashboard(name).build()))
    # The SDK puts links and annotation switches into a menu that only the newest Grafana has.
    every = [panel for row in made["panels"] for panel in (row, *row.get("panels", []))]
    links = [link for panel in every for link in panel.get("fieldConfig", {}).get("defaults", {}).get("links", [])]
    for item in [*made.get("links", []), *made.get("annotations", {}).get("list", []), *links]:
        item.pop("placement", None)
    for variable in made["templating"]["list"]:
        if variable["type"] == "datasource":  # by hand the one that was asked for; from a file Grafana takes the first
            variable["current"] = {"text": _CHOSEN, "value": _CHOSEN, "selected": True}
    return {**made, **_about(made)}


_CHOSEN = "${DS_PROMETHEUS}"
_OLDEST = "10.0.0"


def _about(made: dict[str, Any]) -> dict[str, Any]:
    """What an import asks for and needs, and what grafana.com shows: as Grafana's own export for sharing writes it."""
    kinds = {
        panel["type"] for row in made["panels"] for panel in (row, *row.get("panels", [])) if panel["type"] != "row"
    }
    panels = [{"type": "panel", "id": kind, "name": kind, "version": ""} for kind in sorted(kinds)]
    return {
        "__inputs": [
            {
                "name": "DS_PROMETHEUS", "label": "Prometheus", "type": "datasource", "pluginId": "prometheus",
                "pluginName": "Prometheus", "description": "The one that scrapes megatron-monitor",
            }
        ],
        "__elements": {},
        "__requires": [
            {"type": "grafana", "id": "grafana", "name": "Grafana", "version": _OLDEST},
            {"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"},
            *panels,
        ],
        "id": None,
    }  # fmt: skip


def text(name: str) -> str:
    """The committed form: sorted keys, two spaces, a newline at the end."""
    return json.dumps(generate(name), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    try:
        texts = {name: text(name) for name in BOARDS}
    except BoardError as error:
        sys.exit(str(error))
    for name, written in texts.items():
        (folder / f"{name}.json").write_text(written)

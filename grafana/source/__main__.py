"""`python -m grafana.source [FOLDER]`: write every dashboard's JSON (`make dashboards`)."""

import json
import sys
from pathlib import Path

from grafana.source.dashboards import BOARDS, dashboard
from grafana.source.schema import BoardError

FOLDER = Path(__file__).parents[1] / "dashboards"


def text(name: str) -> str:
    """The committed form: sorted keys, two spaces, a newline at the end."""
    return json.dumps(dashboard(name), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    try:
        texts = {name: text(name) for name in BOARDS}
    except BoardError as error:
        sys.exit(str(error))
    for name, written in texts.items():
        (folder / f"{name}.json").write_text(written)

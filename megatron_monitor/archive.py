"""For notebooks and frameworks: `from megatron_monitor.archive import read_run`, as docs/report.md shows."""

import sys

from megatron_monitor.__main__ import ROOT

if str(ROOT) not in sys.path:  # before a `monitor` of the training's own
    sys.path.insert(0, str(ROOT))

from monitor.archive import read_run
from monitor.reports.rows import Options, Row

__all__ = ["Options", "Row", "read_run"]

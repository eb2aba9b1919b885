"""The Slurm with accounting is started only when asked for: `make test-slurm` (root, MariaDB and munge)."""

import os

collect_ignore = [] if os.environ.get("MEGATRON_MONITOR_SLURM") == "1" else ["test_accounting.py", "test_night.py"]

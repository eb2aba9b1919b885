"""A real training is started only when asked for: `make test-live` (it downloads torch and deepspeed)."""

import os

from tests.e2e.conftest import start  # noqa: F401 - the fixture that starts the daemon

collect_ignore_glob = [] if os.environ.get("MEGATRON_MONITOR_LIVE") == "1" else ["test_*.py"]

"""A real training is started only when asked for: `make test-live` (it downloads torch and deepspeed)."""

import os

collect_ignore_glob = [] if os.environ.get("MEGATRON_MONITOR_LIVE") == "1" else ["test_*.py"]

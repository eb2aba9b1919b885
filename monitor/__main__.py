"""`python -m megatron_monitor` is `megatron-monitor`."""

from megatron_monitor.cli import main

if __name__ == "__main__":
    main()

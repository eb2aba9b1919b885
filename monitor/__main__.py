"""`python -m monitor` is `megatron-monitor`."""

from monitor.cli import main

if __name__ == "__main__":
    main()

"""One file a command: results on standard output, messages on standard error, exit 0, 1 or 2."""

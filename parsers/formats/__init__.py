"""One file per program whose lines are read, and code for blocks of lines. parsers/registry.py has the order."""

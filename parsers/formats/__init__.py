"""One file a program whose lines are read; parsers/registry.py lists them."""

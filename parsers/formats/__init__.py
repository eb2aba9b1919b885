"""One file a program whose lines are read, and code for its blocks of lines; parsers/registry.py lists them."""

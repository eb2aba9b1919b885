"""One file a program whose lines are read; registry.py lists them."""

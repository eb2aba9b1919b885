"""Finds and reads lines of any program."""

"""Follows training runs through their logs: state, judgement, shell."""

__version__ = "0.1.0"

"""The language of format files: their keys, and how their lines are read."""

from megatron_monitor.parsers.tables import table_in

TABLES = table_in("megatron_monitor.parsers.declared", "tables.toml")
"""Printed names and their meanings, by the table's name."""

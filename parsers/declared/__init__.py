"""The language in which formats are written: what a file may say, and how its lines are read."""

from megatron_monitor.parsers.tables import table_in

TABLES = table_in("megatron_monitor.parsers.declared", "tables.toml")
"""What programs call things, by the table's name."""

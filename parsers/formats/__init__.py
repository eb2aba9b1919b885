"""One file a program whose lines are read; parsers/registry.py lists them."""

from megatron_monitor.parsers.tables import table_in

TABLES = table_in("megatron_monitor.parsers.formats", "tables.toml")
"""What programs call things, by the table's name."""

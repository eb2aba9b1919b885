"""One file a program whose lines are read; parsers/registry.py lists them."""

from parsers.tables import table_in

TABLES = table_in("parsers.formats", "tables.toml")
"""What programs call things, by the table's name."""

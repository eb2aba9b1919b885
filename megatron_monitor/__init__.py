"""The one top-level package that is installed: it holds `monitor` and `parsers`, as setup.py lays them out."""

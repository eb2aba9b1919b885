"""Options that several commands share, and the configuration they make."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from monitor.config import Config, ConfigError, Watch, load
from monitor.run.units import LONGEST_SECONDS

config_option = click.option(
    "--config", "config_file", type=click.Path(dir_okay=False, path_type=Path), help="Configuration file (YAML)."
)
set_option = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override one key, e.g. detectors.hang.minimum=2s."
)


def load_config(config_file: Path | None, overrides: Sequence[str], paths: Sequence[str]) -> Config:
    """The file's configuration, or the defaults, with overrides; PATHS are followed beside what the file names.

    Raises ConfigError with every problem.
    """
    config = load(config_file if config_file is not None else "", overrides)
    if paths:
        absolute = tuple(path if path == "-" else os.path.abspath(os.path.expanduser(path)) for path in paths)
        config = msgspec.structs.replace(config, runs=(*config.runs, Watch(paths=absolute)))
        if config_file is None and not any(key.startswith("run_retention=") for key in overrides):
            # whoever names a log by hand wants to see it, however long ago it ended
            config = msgspec.structs.replace(config, run_retention=LONGEST_SECONDS)
    return config


def configured(config_file: Path | None, overrides: Sequence[str], paths: Sequence[str]) -> Config:
    """As load_config; prints every problem and exits with 2 if there is one."""
    try:
        return load_config(config_file, overrides, paths)
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(2)

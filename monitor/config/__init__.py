"""The configuration: `load` turns YAML and `--set` into a frozen `Config`, or raises a `ConfigError` with all problems.

schema.py has the keys, yaml_text.py reads YAML, monitor/scalars.py has the types of single values.
Rule: a `Config` is valid and its paths are absolute. Only `load` opens files: the configuration, and the formats and
client properties that it names.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from megatron_monitor.config.decode import decode
from megatron_monitor.config.document import ConfigError
from megatron_monitor.config.schema import Config, Watch
from megatron_monitor.scalars import host_and_port

__all__ = ["Config", "ConfigError", "Watch", "host_and_port", "load", "spool_directory", "state_directory"]


def state_directory(config: Config, address: str) -> Path:
    """Return `state_dir`, or a directory in $XDG_STATE_HOME/megatron-monitor that is named by the address, or by what
    else distinguishes the process.
    """
    if config.state_dir:
        return Path(os.path.expanduser(config.state_dir))
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base) / "megatron-monitor" / address.replace(":", "-").replace("/", "_")


def spool_directory(config: Config) -> str | None:
    """Return the directory of pushed lines that the observer has not read yet; None: nothing is received."""
    if config.receiver.listen is None:
        return None
    if config.receiver.directory is not None:
        return config.receiver.directory
    return os.path.abspath(state_directory(config, config.listen) / "spool")


def load(source: str | Path, overrides: Iterable[str] = ()) -> Config:
    """Return the configuration of YAML text (`str`) or of a file (`Path`), with `KEY=VALUE` overrides on top.

    Relative paths start at the file's directory, as in Prometheus; without a file at the working directory.
    Raises ConfigError with every problem, in the file's order, overrides last.
    """
    settings = list(overrides)
    if source == "" and not settings:
        return Config()
    from megatron_monitor.config.yaml_text import override, read_file, read_yaml  # PyYAML takes a tenth of the start

    name, base = (str(source), str(source.parent)) if isinstance(source, Path) else (None, "")
    document = read_file(source) if isinstance(source, Path) else read_yaml(source)
    for setting in settings:
        override(document, setting)
    document.base = base
    empty = document.value is None and not document.problems
    config = Config() if empty else decode(document, Config)
    if config is None:
        raise ConfigError(sorted(document.problems, key=lambda one: (one.line is None, one.line or 0)), name)
    return config

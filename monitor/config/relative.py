"""Paths as they are written in a configuration -> absolute ones: `~` is the home, the rest starts where it is told.

So a file means the same whichever directory the daemon is started in, and a path found by a pattern can be compared
with the pattern. Opens nothing, follows no link.
"""

from __future__ import annotations

import os.path
from types import MappingProxyType

import msgspec

from monitor.config.schema import (
    AppriseSettings,
    CommandSettings,
    Config,
    NotifierConfig,
    OutputConfig,
    TextfileSettings,
    TlsServer,
    Watch,
)


def resolved(config: Config, base: str) -> Config:
    """`config` with every path absolute; relative ones start at `base`."""
    tls = config.web.tls_server_config
    web = msgspec.structs.replace(config.web, tls_server_config=_tls(tls, base)) if tls else config.web
    return msgspec.structs.replace(
        config,
        state_dir=_optional(config.state_dir, base),
        runs=tuple(_watch(watch, base) for watch in config.runs),
        notifiers=tuple(_notifier(notifier, base) for notifier in config.notifiers),
        outputs=tuple(_output(output, base) for output in config.outputs),
        web=web,
    )


def _watch(watch: Watch, base: str) -> Watch:
    # An exclusion without a slash means the name of a file or directory, wherever it lies.
    exclude = tuple(_absolute(pattern, base) if "/" in pattern else pattern for pattern in watch.exclude)
    return msgspec.structs.replace(watch, paths=tuple(_absolute(path, base) for path in watch.paths), exclude=exclude)


def _notifier(notifier: NotifierConfig, base: str) -> NotifierConfig:
    if isinstance(notifier, CommandSettings):
        program, *arguments = notifier.command
        if "/" in program:  # a name alone is looked for in PATH
            program = _absolute(program, base)
        return msgspec.structs.replace(notifier, command=(program, *arguments))
    if isinstance(notifier, AppriseSettings):
        return msgspec.structs.replace(notifier, url_file=_optional(notifier.url_file, base))
    return msgspec.structs.replace(
        notifier,
        url_file=_optional(notifier.url_file, base),
        header_files=MappingProxyType(
            {header: _absolute(path, base) for header, path in notifier.header_files.items()}
        ),
    )


def _output(output: OutputConfig, base: str) -> OutputConfig:
    if isinstance(output, TextfileSettings):
        return msgspec.structs.replace(output, path=_absolute(output.path, base))
    return msgspec.structs.replace(output, password_file=_optional(output.password_file, base))


def _tls(tls: TlsServer, base: str) -> TlsServer:
    return msgspec.structs.replace(
        tls,
        cert_file=_absolute(tls.cert_file, base),
        key_file=_absolute(tls.key_file, base),
        client_ca_file=_optional(tls.client_ca_file, base),
    )


def _optional(path: str | None, base: str) -> str | None:
    return None if path is None else _absolute(path, base)


def _absolute(path: str, base: str) -> str:
    return os.path.abspath(os.path.join(base, os.path.expanduser(path)))

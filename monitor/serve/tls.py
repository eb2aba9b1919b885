"""TLS 1.2 and later, with the keys of Prometheus's web configuration file. Changed certificates are reloaded.

If a new certificate cannot be used, the old one stays in use and a warning is logged.
"""

import logging
import os
import ssl
from contextlib import suppress

from megatron_monitor.config.schema import TlsServer

_log = logging.getLogger(__name__)


class TlsError(Exception):
    """The certificate, its key or the clients' CA cannot be used."""


class Tls:
    """The TLS `context` for new connections; the constructor raises TlsError."""

    def __init__(self, settings: TlsServer) -> None:
        self._settings = settings
        self._files = [*filter(None, (settings.cert_file, settings.key_file, settings.client_ca_file))]
        self._stamp = self._file_stamps()
        self.context = self._build()

    def refresh(self) -> None:
        """Reload changed files."""
        stamp, self._stamp = self._stamp, self._file_stamps()
        if stamp == self._stamp:
            return
        try:
            self.context = self._build()
            _log.info("certificate=%s reloaded", self._settings.cert_file)
        except TlsError as error:
            _log.warning("tls: %s; the certificate in use stays", error)

    def _file_stamps(self) -> list[tuple[int, int, int]]:
        stamps = []
        for path in self._files:
            with suppress(OSError):
                status = os.stat(path)
                stamps.append((status.st_ino, status.st_size, status.st_mtime_ns))
        return stamps

    def _build(self) -> ssl.SSLContext:
        settings = self._settings
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            # without this OpenSSL would prompt for the passphrase of an encrypted key
            context.load_cert_chain(settings.cert_file, settings.key_file, password=lambda: b"")
            if settings.client_ca_file:
                context.load_verify_locations(settings.client_ca_file)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            reason = getattr(error, "strerror", None) or getattr(error, "reason", None) or str(error)
            raise TlsError(f"{' or '.join(self._files)} cannot be used: {reason}") from error
        context.verify_mode = ssl.CERT_REQUIRED if settings.client_ca_file else ssl.CERT_NONE
        return context

"""The notifier `email`: sends each message as a mail by an SMTP server.

Input: a Transition. Output: one mail to all recipients. It is accepted if the server accepts it for one of them.
Rule: with `user`, the connection is encrypted and the server's certificate verified before the password is sent.
"""

import smtplib
import ssl
from contextlib import suppress
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from typing import Annotated, Any, Final

from msgspec import Meta

from megatron_monitor import scalars
from megatron_monitor.incidents import Transition
from megatron_monitor.notifiers import texts
from megatron_monitor.notifiers.message import DeliveryError, Notifier, message_id, payload, secret
from megatron_monitor.scalars import FilePath, PositiveSeconds

_TLS_PORT: Final = 465  # encrypted from the beginning; on other ports by STARTTLS


class Email(Notifier, frozen=True, kw_only=True, tag_field="type", tag="email", rename={"from_": "from"}):
    """Mail to one or more addresses."""

    host: scalars.Listen
    """HOST:PORT of the SMTP server."""
    from_: scalars.MailAddress
    to: Annotated[tuple[scalars.MailAddress, ...], Meta(min_length=1)]
    user: str | None = None
    password_file: FilePath | None = None
    """A file with the password of `user`, read at each delivery."""
    timeout: PositiveSeconds = 30.0
    """Seconds for each step of a delivery."""

    def problems(self) -> scalars.Problems:
        """Yield what is wrong with the combination of values."""
        if (self.user is None) != (self.password_file is None):
            yield "", "user and password_file belong together"

    def send(self, message: Transition) -> str:
        """Send the mail once. Raises DeliveryError."""
        try:
            session = self._connected()
            try:
                self._log_in(session)
                refused = session.sendmail(self.from_, self.to, self._mail(message))
            finally:
                with suppress(OSError):  # the mail is accepted or refused already
                    session.quit()
        except smtplib.SMTPRecipientsRefused as error:
            code, text = error.recipients[self.to[0]]
            raise DeliveryError(_said(code, text), 500 <= code < 600) from error
        except smtplib.SMTPResponseException as error:
            raise DeliveryError(_said(error.smtp_code, error.smtp_error), 500 <= error.smtp_code < 600) from error
        except smtplib.SMTPNotSupportedError as error:
            raise DeliveryError(f"{self.host} does not offer encryption or passwords: {error}", True) from error
        except OSError as error:  # smtplib's other errors are among them
            raise DeliveryError(f"no answer of {self.host}: {error.strerror or error}", permanent=False) from error
        return "\n".join(["accepted", *(f"refused {to}: {_said(*why)}" for to, why in refused.items())])

    def _connected(self) -> smtplib.SMTP:
        host, port = scalars.host_and_port(self.host)
        if port == _TLS_PORT:
            return smtplib.SMTP_SSL(host, port, timeout=self.timeout, context=ssl.create_default_context())
        return smtplib.SMTP(host, port, timeout=self.timeout)

    def _log_in(self, session: smtplib.SMTP) -> None:
        if self.user is not None and self.password_file is not None:
            if not isinstance(session, smtplib.SMTP_SSL):
                session.starttls(context=ssl.create_default_context())
            session.login(self.user, secret(self.password_file))

    def _mail(self, message: Transition) -> bytes:
        mail = EmailMessage(SMTP)
        mail["Subject"] = texts.title(message)
        mail["From"], mail["To"] = self.from_, ", ".join(self.to)
        mail["Date"] = format_datetime(datetime.fromtimestamp(message.time, UTC))
        mail["Message-ID"] = f"<{message_id(message)}@megatron-monitor>"
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(texts.body(message, payload(message)["evidence"]))
        return mail.as_bytes()


def _said(code: int, text: Any) -> str:
    said = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
    return scalars.one_line(f"{code} {' '.join(said.split())}"[:300])

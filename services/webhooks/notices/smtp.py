"""Sessions with the mail server. The only module that knows the library."""

import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from email.message import EmailMessage
from typing import NamedTuple

import aiosmtplib

from services.webhooks.notices.mail_server import MailServer

TIMEOUT_S = 30.0
"""How long the server may take for one answer."""


class MailRefusal(NamedTuple):
    """Why a mail was not taken. `is_final`: the server will never take it, so that it is not tried again."""

    reason: str
    is_final: bool


class AwayError(Exception):
    """The server cannot be reached, or does not accept the log-in or the sender: no mail can be sent at present."""


class SmtpTransport:
    """Sends mails in sessions of their own, one after the other."""

    def __init__(self, server: MailServer, sender: str, tls: ssl.SSLContext) -> None:
        """`sender`: the address to which the servers of recipients send their refusals."""
        self._server = server
        self._sender = sender
        self._tls = tls

    async def send(self, mails: Sequence[tuple[str, EmailMessage]]) -> AsyncGenerator[MailRefusal | None, None]:
        """Send the messages, each to its address; yield what became of each, None if the server took it.

        AwayError ends it: the mails that follow were not tried.
        """
        server = self._server
        client = aiosmtplib.SMTP(
            hostname=server.host,
            port=server.port,
            username=server.user or None,
            password=server.password or None,
            use_tls=server.scheme == "smtps",
            start_tls=server.scheme == "smtp" and not server.is_plain,
            tls_context=None if server.is_plain else self._tls,
            timeout=TIMEOUT_S,
        )
        try:
            await client.connect()
            for address, message in mails:
                yield await self._send_one(client, address, message)
            with suppress(aiosmtplib.SMTPException, OSError):
                await client.quit()
        except (aiosmtplib.SMTPException, OSError) as error:
            raise AwayError(str(error) or type(error).__name__) from error
        finally:
            client.close()

    async def _send_one(self, client: aiosmtplib.SMTP, address: str, message: EmailMessage) -> MailRefusal | None:
        try:
            await client.sendmail(self._sender, [address], message.as_bytes())
        except aiosmtplib.SMTPRecipientsRefused as error:
            refused = error.recipients[0]
            return _refusal(refused.code, refused.message)
        except aiosmtplib.SMTPDataError as error:
            return _refusal(error.code, error.message)
        return None


def _refusal(code: int, message: str) -> MailRefusal:
    return MailRefusal(f"{code} {message}", is_final=code >= 500)

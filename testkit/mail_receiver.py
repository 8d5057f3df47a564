"""A mail server that keeps what it has taken, and refuses or fails as a test says."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from typing import Any

from aiosmtpd.smtp import SMTP, AuthResult

from testkit.ports import free_ports
from testkit.waiting import until_holds

USER, PASSWORD = "carillon", "a password: 100%"


class MailReceiver:
    """`mails`: the taken messages; `refusals`: the answer to each address that it refuses; `answers`: to a message."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.mails: list[EmailMessage] = []
        self.senders: set[str] = set()
        self.refusals: dict[str, str] = {}
        self.answers: list[str] = []
        self.logged_in: list[str] = []
        self._server: asyncio.Server | None = None

    def to(self, address: str) -> list[EmailMessage]:
        """Return the messages that went to the address, in the order in which they came."""
        return [mail for mail in self.mails if mail["To"] == address]

    async def until_mails(self, count: int) -> None:
        await until_holds(lambda: len(self.mails) >= count)

    async def start(
        self, *, implicit: ssl.SSLContext | None = None, starttls: ssl.SSLContext | None = None, log_in: bool = False
    ) -> None:
        """Listen, with TLS from the first byte or offered, and whether it demands a log-in."""

        def protocol() -> SMTP:
            return SMTP(
                self,
                loop=asyncio.get_running_loop(),
                hostname="mail.test",
                tls_context=starttls,
                require_starttls=starttls is not None,
                auth_required=log_in,
                auth_require_tls=implicit is None,
                authenticator=self._authenticate,
            )

        self._server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", self.port, ssl=implicit)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
        if answer := self.refusals.get(address):
            return answer
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        if self.answers and (answer := self.answers.pop(0)):
            return answer
        self.senders.add(envelope.mail_from)
        self.mails.append(message_from_bytes(envelope.content, policy=default))
        return "250 OK"

    def _authenticate(self, server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        name, password = data.login.decode(), data.password.decode()
        self.logged_in.append(name)
        return AuthResult(success=(name, password) == (USER, PASSWORD))


@asynccontextmanager
async def mail_receiver() -> AsyncIterator[MailReceiver]:
    receiver = MailReceiver(*free_ports(1))
    await receiver.start()
    try:
        yield receiver
    finally:
        await receiver.stop()

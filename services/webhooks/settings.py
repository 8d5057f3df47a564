"""Webhooks' settings."""

from email.utils import parseaddr
from pathlib import Path

from services.domain.settings import PREFIX, Settings, SettingsError
from services.log.kafka.security import read_password
from services.net.http.client_address import url_host
from services.webhooks.notices.mail_server import MailServer, mail_server

ROLE_NAME = "webhooks"


class WebhooksSettings(Settings, frozen=True, kw_only=True):
    """The mail server of notices; webhooks has one instance alone.

    `smtp_url`: without it nobody is told by mail. `smtp_password_file`: holds the password as its only line.
    `smtp_from`: the sender of the mails. `console_url`: the address of the console, for links, as the console has it.
    """

    smtp_url: str | None = None
    smtp_password_file: str | None = None
    smtp_from: str | None = None
    console_url: str | None = None

    def check(self) -> None:
        super().check()
        if self.shards != 1:
            raise SettingsError(
                f"{PREFIX}SHARDS is {self.shards}, but webhooks has one instance: leave it unset for this role"
            )
        self.mail_server()

    def mail_server(self) -> MailServer | None:
        """Return the mail server; None: nobody is told by mail. SettingsError: a setting is wrong."""
        if self.smtp_url is None:
            return None
        if not self.mail_sender:
            raise SettingsError(
                f"{PREFIX}SMTP_FROM is {self.smtp_from!r}; it must have a mail address, the sender of mails"
            )
        password, file = "", self.smtp_password_file
        try:
            password = read_password(Path(file)) if file else ""
        except (OSError, ValueError) as error:
            raise SettingsError(f"{PREFIX}SMTP_PASSWORD_FILE is {file!r}: {error}") from None
        try:
            return mail_server(self.smtp_url, password)
        except ValueError as error:
            raise SettingsError(f"{PREFIX}SMTP_URL cannot be used: {error}") from None

    @property
    def mail_sender(self) -> str:
        """The address of the sender, without a name; "" if there is none."""
        header = self.smtp_from or ""
        address = parseaddr(header)[1]
        return address if header.isprintable() and address.isascii() and "@" in address[1:-1] else ""

    @property
    def public_url(self) -> str:
        """The address of the console without a slash at its end."""
        return (self.console_url or f"http://{url_host(self.host)}:{self.console_port}").rstrip("/")

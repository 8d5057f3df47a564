"""Sessions with mail servers: with TLS, with a log-in, and what their failures mean; the addresses of servers."""

import ssl
from collections.abc import AsyncIterator
from email.message import EmailMessage
from pathlib import Path

import pytest

from services.domain.settings import SettingsError
from services.webhooks.notices.mail_server import MailServer, mail_server
from services.webhooks.notices.smtp import AwayError, MailRefusal, SmtpTransport
from services.webhooks.settings import WebhooksSettings
from testkit.certificates import Authority
from testkit.mail_receiver import PASSWORD, USER, MailReceiver
from testkit.ports import free_ports

SENDER = "push@example.org"


class Certified:
    """A mail server with a certificate, and the contexts of both sides."""

    def __init__(self, directory: Path) -> None:
        authority = Authority(directory / "authority")
        issued = authority.issue("mail")
        self.receiver = MailReceiver(*free_ports(1))
        self.server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server_side.load_cert_chain(issued.certificate, issued.key)
        self.client_side = ssl.create_default_context(cafile=str(authority.file))

    def transport(self, scheme: str, *, trusted: bool = True, password: str = PASSWORD) -> SmtpTransport:
        server = MailServer(scheme, "127.0.0.1", self.receiver.port, USER, password)
        return SmtpTransport(server, SENDER, self.client_side if trusted else ssl.create_default_context())


@pytest.fixture
async def certified(tmp_path: Path) -> AsyncIterator[Certified]:
    made = Certified(tmp_path)
    yield made
    await made.receiver.stop()


def message(address: str) -> EmailMessage:
    made = EmailMessage()
    made["From"], made["To"], made["Subject"] = SENDER, address, "hello"
    made.set_content("hello")
    return made


async def outcomes(transport: SmtpTransport, *addresses: str) -> list[MailRefusal | None]:
    return [each async for each in transport.send([(address, message(address)) for address in addresses])]


@pytest.mark.parametrize("scheme", ["smtp", "smtps"])
async def test_mails_go_over_tls_after_a_log_in(certified: Certified, scheme: str) -> None:
    tls = {"implicit" if scheme == "smtps" else "starttls": certified.server_side}
    await certified.receiver.start(**tls, log_in=True)
    assert await outcomes(certified.transport(scheme), "a@example.org", "b@example.org") == [None, None]
    assert [mail["To"] for mail in certified.receiver.mails] == ["a@example.org", "b@example.org"]
    with pytest.raises(AwayError, match="certificate"):
        await outcomes(certified.transport(scheme, trusted=False), "a@example.org")
    with pytest.raises(AwayError):
        await outcomes(certified.transport(scheme, password="wrong"), "a@example.org")
    assert len(certified.receiver.mails) == 2


async def test_no_password_goes_to_a_server_without_starttls(certified: Certified) -> None:
    await certified.receiver.start()
    with pytest.raises(AwayError):
        await outcomes(certified.transport("smtp"), "a@example.org")
    assert certified.receiver.logged_in == []


async def test_refusals_are_of_one_mail(certified: Certified) -> None:
    receiver = certified.receiver
    await receiver.start()
    receiver.refusals = {"no@example.org": "550 no such user", "later@example.org": "450 try later"}
    receiver.answers = ["552 too large", ""]
    transport = SmtpTransport(
        MailServer("smtp", "127.0.0.1", receiver.port, is_plain=True), SENDER, certified.client_side
    )
    asked = ("no@example.org", "later@example.org", "large@example.org", "yes@example.org")
    found = await outcomes(transport, *asked)
    assert [refusal and refusal.is_final for refusal in found] == [True, False, True, None]
    assert [mail["To"] for mail in receiver.mails] == ["yes@example.org"]
    await receiver.stop()
    with pytest.raises(AwayError):
        await outcomes(transport, "yes@example.org")


@pytest.mark.parametrize(
    ("url", "password", "server"),
    [
        ("smtps://mail.example.org", "", MailServer("smtps", "mail.example.org", 465)),
        (
            "smtp://al%40example.org@mail:2525",
            "p",
            MailServer("smtp", "mail", 2525, "al@example.org", "p"),
        ),
        ("smtp://127.0.0.1:25?tls=no", "", MailServer("smtp", "127.0.0.1", 25, is_plain=True)),
    ],
)
def test_addresses_of_servers(url: str, password: str, server: MailServer) -> None:
    assert mail_server(url, password) == server


@pytest.mark.parametrize(
    ("url", "password", "told"),
    [
        ("mail.example.org", "", "use smtps://"),
        ("http://mail", "", "use smtps://"),
        ("smtp://mail:x", "", "use smtps://"),
        ("smtp://mail/path", "", "use smtps://"),
        ("smtp://u:p@mail", "", "a file of its own"),
        ("smtp://u@mail", "", "a user needs a password"),
        ("smtp://mail", "p", "a user needs a password"),
        ("smtp://u@mail?tls=no", "p", "without TLS"),
        ("smtps://mail?tls=no", "", "the one option"),
    ],
)
def test_wrong_addresses_are_refused(url: str, password: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        mail_server(url, password)


def test_wrong_settings_are_one_clear_line(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("p\n")
    right = {"smtp_url": "smtp://u@mail", "smtp_from": "Carillon <push@example.org>", "smtp_password_file": str(file)}
    settings = WebhooksSettings(**right)  # type: ignore[arg-type]
    settings.check()
    assert settings.mail_sender == "push@example.org"
    assert settings.mail_server() == MailServer("smtp", "mail", 587, "u", "p")
    assert "'p'" not in repr(settings.mail_server())
    assert WebhooksSettings().mail_server() is None
    for wrong, told in (
        ({"smtp_from": None}, "CARILLON_SMTP_FROM is None"),
        ({"smtp_from": "Carillon"}, "CARILLON_SMTP_FROM"),
        ({"smtp_from": "Carillon\nBcc: everyone@example.org <push@example.org>"}, "CARILLON_SMTP_FROM"),
        ({"smtp_password_file": "/nowhere"}, "CARILLON_SMTP_PASSWORD_FILE is '/nowhere'"),
        ({"smtp_password_file": None}, "CARILLON_SMTP_URL cannot be used: a user needs"),
    ):
        with pytest.raises(SettingsError, match=told):
            WebhooksSettings(**{**right, **wrong}).check()  # type: ignore[arg-type]

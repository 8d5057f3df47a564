"""The address of the mail server in settings."""

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

_PORTS = {"smtps": 465, "smtp": 587}
_FORM = "use smtps://USER@HOST:465, or smtp://USER@HOST:587 for a server with STARTTLS"


@dataclass(frozen=True, slots=True)
class MailServer:
    """The server that takes mails. `scheme`: smtps for TLS from the first byte, smtp for STARTTLS.

    `is_plain`: neither is used, as with a relay on the same host. Without a user nobody logs in.
    """

    scheme: str
    host: str
    port: int
    user: str = ""
    password: str = field(default="", repr=False)
    is_plain: bool = False


def mail_server(url: str, password: str) -> MailServer:
    """Return the server with this URL. ValueError: it is none, or the password and the user do not go together."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(_FORM) from None
    if parts.scheme not in _PORTS or not parts.hostname or parts.path not in ("", "/") or parts.fragment:
        raise ValueError(_FORM)
    if parts.password is not None:
        raise ValueError("the password belongs into a file of its own")
    if parts.query not in ("", "tls=no") or (parts.query and parts.scheme == "smtps"):
        raise ValueError("the one option is smtp://HOST:25?tls=no")
    user = unquote(parts.username or "")
    if bool(user) != bool(password):
        raise ValueError("a user needs a password, and a password a user")
    if user and parts.query:
        raise ValueError("a password is not sent without TLS")
    return MailServer(parts.scheme, parts.hostname, port or _PORTS[parts.scheme], user, password, bool(parts.query))

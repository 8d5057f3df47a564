"""Web Push credentials of an app: the VAPID key pair (RFC 8292) of all its subscriptions, and a contact."""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from protos.registry.v1.apps_pb2 import CHANNEL_WEBPUSH, App
from services.domain.channel_credentials.fields import (
    NEW,
    ChannelVendor,
    CredentialField,
    CredentialsForm,
    FieldKind,
    FieldValue,
    words,
)
from services.domain.channel_credentials.stored import open_credentials, settings_of
from services.domain.master_key import Keys
from services.domain.push_endpoints import AllowedHosts, allowed_hosts, checked_hosts
from services.errors import Code, InputError

MAX_CONTACT_LENGTH = 200
_KNOWN = "known"
"""In the place of hosts: none besides the known ones."""
_MAIL = re.compile(r"mailto:[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@([A-Za-z0-9.-]{1,150})")
_PAGE = re.compile(r"https://([A-Za-z0-9.-]{1,150})(?:/[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*)?")
_DOMAIN = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,20}[A-Za-z][A-Za-z0-9-]{0,61}[A-Za-z0-9]")
_LOCAL = ("localhost", "local", "internal", "invalid", "test")


@dataclass(frozen=True, slots=True)
class WebPushCredentials:
    """An app's key pair. `contact`: a mailto or https URL at which push services reach the sender.

    `public_key`: the uncompressed point, 65 bytes.
    """

    public_key: bytes
    contact: str
    key_pem: str = field(repr=False)
    hosts: AllowedHosts = field(default_factory=AllowedHosts, repr=False, compare=False)

    @property
    def public_key_text(self) -> str:
        return key_text(self.public_key)


def key_text(public_key: bytes) -> str:
    """Return a public key as browsers take it (`applicationServerKey`): base64url without padding, 87 characters."""
    return urlsafe_b64encode(public_key).rstrip(b"=").decode()


def checked_contact(contact: str, at: str) -> str:
    """Return the contact. InputError: push services, Apple's above all, would refuse the app's pushes because of it."""
    found = _MAIL.fullmatch(contact) or _PAGE.fullmatch(contact)
    if len(contact) > MAX_CONTACT_LENGTH or found is None:
        raise InputError(Code.WRONG_CONTACT, at=at)
    domain = found[1].lower()
    if not _DOMAIN.fullmatch(domain) or domain.rpartition(".")[2] in _LOCAL:
        raise InputError(Code.LOCAL_CONTACT, at=at)
    return contact


def _new_key(value: str, at: str) -> FieldValue:
    if value != NEW:
        raise InputError(Code.UNREADABLE, at=at, problem=f"write {NEW} for a key that is made here")
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    public_key = key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    return FieldValue({"key": key_text(public_key)}, pem)


def _read_contact(value: str, at: str) -> FieldValue:
    return FieldValue({"contact": checked_contact(value.strip(), at)})


def _read_hosts(value: str, at: str) -> FieldValue:
    hosts = [] if value.strip() == _KNOWN else value.replace(",", " ").split()
    return FieldValue({"hosts": ",".join(checked_hosts(hosts, at))})


WEB_PUSH = CredentialsForm(
    CHANNEL_WEBPUSH,
    words("Web Push"),
    (
        CredentialField(
            "key",
            FieldKind.MADE,
            _new_key,
            words("Web Push key"),
            words("Another key ends all subscriptions."),
        ),
        CredentialField(
            "contact",
            FieldKind.TEXT,
            _read_contact,
            words("Contact"),
            words("A mailto or https URL at which push services reach you, such as mailto:push@example.org."),
            is_needed=True,
        ),
        CredentialField(
            "hosts",
            FieldKind.LIST,
            _read_hosts,
            words("Further push services"),
            words("Besides the known ones: HOST, *.DOMAIN, HOST:PORT for one of your own, or * for every public one."),
        ),
    ),
    {
        "key": words("Web Push key"),
        "contact": words("Web Push contact"),
        "hosts": words("Further push services"),
    },
    ChannelVendor("the push services", "the push services of Web Push", "CARILLON_WEBPUSH=internet sends to them."),
    words(
        "Reaches browsers without an open page. The key is made here and never shown; browsers subscribe with its"
        " public half."
    ),
)


def public_key_of(app: App) -> str:
    """Return the app's public key as `key_text` does, "" for an app without one."""
    return settings_of(app, CHANNEL_WEBPUSH).get("key", "")


def open_web_push(app: App, keys: Keys) -> WebPushCredentials | None:
    """Decrypt the app's credentials; None if it has none. CarillonError: they were sealed with another master key."""
    opened = open_credentials(app, CHANNEL_WEBPUSH, keys)
    if opened is None:
        return None
    hosts = opened.settings.get("hosts", "")
    return WebPushCredentials(
        public_key=urlsafe_b64decode(opened.settings["key"] + "="),
        contact=opened.settings["contact"],
        key_pem=opened.secret,
        hosts=allowed_hosts(tuple(hosts.split(",") if hosts else ())),
    )

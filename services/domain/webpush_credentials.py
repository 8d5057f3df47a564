"""Web Push credentials of an app: the VAPID key pair (RFC 8292) of all its subscriptions, and a contact."""

import re
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from protos.registry.v1.apps_pb2 import App, WebPushKey
from services.domain.master_key import Keys
from services.domain.push_endpoints import AllowedHosts, allowed_hosts
from services.errors import CarillonError, Code, InputError
from services.process.logs import logger

MAX_CONTACT_LENGTH = 200
_CONTACT = "the Web Push contact"
_MAIL = re.compile(r"mailto:[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@([A-Za-z0-9.-]{1,150})")
_PAGE = re.compile(r"https://([A-Za-z0-9.-]{1,150})(?:/[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*)?")
_DOMAIN = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,20}[A-Za-z][A-Za-z0-9-]{0,61}[A-Za-z0-9]")
_LOCAL = ("localhost", "local", "internal", "invalid", "test")


@dataclass(frozen=True, slots=True)
class WebPushCredentials:
    """An app's key pair. `contact`: a mailto or https URL at which push services reach whoever sends.

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


def new_web_push_key(app: App, contact: str, keys: Keys) -> WebPushKey:
    """Return a new key pair for the app's record, its private key sealed. InputError: the contact is no URL to use."""
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    public_key = key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    return WebPushKey(sealed_pem=keys.seal(pem, _context(app)), public_key=public_key, contact=checked_contact(contact))


def checked_contact(contact: str) -> str:
    """Return the contact. InputError: push services, Apple's above all, would refuse the app's pushes because of it."""
    found = _MAIL.fullmatch(contact) or _PAGE.fullmatch(contact)
    if len(contact) > MAX_CONTACT_LENGTH or found is None:
        raise InputError(Code.WRONG_CONTACT, at=_CONTACT)
    domain = found[1].lower()
    if not _DOMAIN.fullmatch(domain) or domain.rpartition(".")[2] in _LOCAL:
        raise InputError(Code.LOCAL_CONTACT, at=_CONTACT)
    return contact


class WebPushCredentialsCache:
    """Decrypted credentials by app, decrypted again when the app's record changes.

    Credentials sealed with another master key are logged once and treated as missing.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._by_appkey: dict[str, tuple[App, WebPushCredentials | None]] = {}

    def __call__(self, app: App) -> WebPushCredentials | None:
        cached = self._by_appkey.get(app.appkey)
        if cached is None or cached[0] is not app:
            cached = self._by_appkey[app.appkey] = app, self._open(app)
        return cached[1]

    def _open(self, app: App) -> WebPushCredentials | None:
        try:
            return open_web_push(app, self._keys)
        except CarillonError as error:
            logger.error(
                "a Web Push key cannot be decrypted: it was sealed with another master key; bring that key back. A new"
                " key, of `carillon app set APPKEY --webpush new`, invalidates all subscriptions",
                appkey=app.appkey,
                error=str(error),
            )
            return None


def open_web_push(app: App, keys: Keys) -> WebPushCredentials | None:
    """Decrypt the app's credentials; None if it has none. CarillonError: they were sealed with another master key."""
    if not app.HasField("web_push"):
        return None
    key = app.web_push
    return WebPushCredentials(
        public_key=key.public_key,
        contact=key.contact,
        key_pem=keys.open(key.sealed_pem, _context(app)),
        hosts=allowed_hosts(tuple(key.hosts)),
    )


def web_push_sealed_anew(app: App, keys: Keys) -> bytes | None:
    """Return the app's private key sealed with the key in force; None if it is sealed with that already."""
    return keys.sealed_anew(app.web_push.sealed_pem, _context(app))


def _context(app: App) -> str:
    """Encryption context that differs from those of the app's other secrets, so that they cannot be swapped."""
    return f"{app.appkey}/webpush"

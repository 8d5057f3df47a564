"""A Firebase service account: the JSON file that Google's console gives, checked, sealed for storage, and opened."""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from protos.registry.v1.apps_pb2 import App, FcmAccount
from services.domain.master_key import Keys
from services.errors import CarillonError, Code, InputError
from services.process.logs import logger

GOOGLE_TOKEN_URI = "https://oauth2.googleapis.com/token"  # noqa: S105  # an address, no secret
MAX_FILE_BYTES = 16 * 1024
_FILE = "the FCM key file"
_MIN_KEY_BITS = 2048


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """An account of a Firebase project. `private_key`: PEM text of an RSA key."""

    project_id: str
    client_email: str
    private_key_id: str
    private_key: str = field(repr=False)
    token_uri: str = GOOGLE_TOKEN_URI


class _File(msgspec.Struct):
    type: str
    project_id: str
    private_key_id: str
    private_key: str
    client_email: str
    token_uri: str = GOOGLE_TOKEN_URI


_files = msgspec.json.Decoder(_File)


def parse_service_account(content: bytes) -> ServiceAccount:
    """Read the file. InputError, whose text never quotes the key: it is no such file, or names another token server.

    A file of somebody else could name a server of theirs, which would get signed assertions.
    """
    if len(content) > MAX_FILE_BYTES:
        raise InputError(Code.WRONG_BYTES, at=_FILE, most=MAX_FILE_BYTES)
    try:
        file = _files.decode(content)
    except msgspec.ValidationError:
        raise InputError(Code.FCM_FILE_LACKS_FIELD, at=_FILE) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InputError(Code.FCM_FILE_NO_JSON, at=_FILE) from None
    if file.type != "service_account":
        raise InputError(Code.FCM_FILE_OF_ANOTHER_TYPE, at=_FILE)
    if file.token_uri != GOOGLE_TOKEN_URI:
        raise InputError(Code.FCM_FILE_OF_ANOTHER_SERVER, at=_FILE, server=GOOGLE_TOKEN_URI)
    if not all((file.project_id, file.client_email, file.private_key_id)):
        raise InputError(Code.FCM_FILE_LACKS_FIELD, at=_FILE)
    _check_key(file.private_key)
    return ServiceAccount(file.project_id, file.client_email, file.private_key_id, file.private_key)


def _check_key(pem: str) -> None:
    try:
        key = serialization.load_pem_private_key(pem.encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InputError(Code.FCM_KEY_WRONG, at=_FILE, least=_MIN_KEY_BITS) from None
    if not isinstance(key, rsa.RSAPrivateKey) or key.key_size < _MIN_KEY_BITS:
        raise InputError(Code.FCM_KEY_WRONG, at=_FILE, least=_MIN_KEY_BITS)


# An app's account in its record: sealed, and opened where messages are sent.

AccountSource = Callable[[App], ServiceAccount | None]
"""Returns the app's account, or None if it has no usable one, so that nothing can be sent for it."""


def sealed_account(app: App, file: bytes, keys: Keys) -> FcmAccount:
    """Return the account of a file for the app's record, its key sealed. InputError: the file is no account's."""
    account = parse_service_account(file)
    return FcmAccount(
        sealed_pem=keys.seal(account.private_key, _context(app)),
        project_id=account.project_id,
        client_email=account.client_email,
        private_key_id=account.private_key_id,
    )


def open_account(app: App, keys: Keys) -> ServiceAccount | None:
    """Decrypt the app's account; None if it has none. CarillonError: it was sealed with another master key."""
    if not app.HasField("fcm"):
        return None
    fcm = app.fcm
    pem = keys.open(fcm.sealed_pem, _context(app))
    return ServiceAccount(fcm.project_id, fcm.client_email, fcm.private_key_id, pem)


class AccountCache:
    """Decrypted accounts by app, decrypted again when the app's record changes.

    An account sealed with another master key is logged once and treated as missing.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._by_appkey: dict[str, tuple[App, ServiceAccount | None]] = {}

    def __call__(self, app: App) -> ServiceAccount | None:
        cached = self._by_appkey.get(app.appkey)
        if cached is None or cached[0] is not app:
            cached = self._by_appkey[app.appkey] = app, self._open(app)
        return cached[1]

    def _open(self, app: App) -> ServiceAccount | None:
        try:
            return open_account(app, self._keys)
        except CarillonError as error:
            logger.error(
                "a service account's key cannot be decrypted: it was sealed with another master key; bring that key"
                " back, or set the account again with `carillon app set APPKEY --fcm-service-account FILE`",
                appkey=app.appkey,
                error=str(error),
            )
            return None


def account_sealed_anew(app: App, keys: Keys) -> bytes | None:
    """Return the account's key sealed with the key in force; None if it is sealed with that already."""
    return keys.sealed_anew(app.fcm.sealed_pem, _context(app))


def _context(app: App) -> str:
    """Encryption context that differs from those of the app's other secrets, so that they cannot be swapped."""
    return f"{app.appkey}/fcm"

"""A Firebase service account: the JSON file that Google's console gives, checked and opened."""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from protos.registry.v1.apps_pb2 import CHANNEL_FCM, App
from services.domain.channel_credentials.fields import (
    MAX_VALUE_LENGTH,
    ChannelVendor,
    CredentialField,
    CredentialsForm,
    FieldKind,
    FieldValue,
    words,
)
from services.domain.channel_credentials.stored import open_credentials
from services.domain.master_key import Keys
from services.errors import Code, InputError

GOOGLE_TOKEN_URI = "https://oauth2.googleapis.com/token"  # noqa: S105  # an address, no secret
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


def parse_service_account(content: str, at: str) -> ServiceAccount:
    """Read the file. InputError, whose text never quotes the key: it is no such file, or names another token server.

    A file of somebody else could name a server of theirs, which would get signed assertions.
    """
    if not content.strip():
        raise InputError(Code.WRONG_BYTES, at=at, most=MAX_VALUE_LENGTH)
    try:
        file = _files.decode(content)
    except msgspec.ValidationError:
        raise InputError(Code.FCM_FILE_LACKS_FIELD, at=at) from None
    except (msgspec.DecodeError, RecursionError):
        raise InputError(Code.FCM_FILE_NO_JSON, at=at) from None
    if file.type != "service_account":
        raise InputError(Code.FCM_FILE_OF_ANOTHER_TYPE, at=at)
    if file.token_uri != GOOGLE_TOKEN_URI:
        raise InputError(Code.FCM_FILE_OF_ANOTHER_SERVER, at=at, server=GOOGLE_TOKEN_URI)
    if not all((file.project_id, file.client_email, file.private_key_id)):
        raise InputError(Code.FCM_FILE_LACKS_FIELD, at=at)
    _check_key(file.private_key, at)
    return ServiceAccount(file.project_id, file.client_email, file.private_key_id, file.private_key)


def _check_key(pem: str, at: str) -> None:
    try:
        key = serialization.load_pem_private_key(pem.encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InputError(Code.FCM_KEY_WRONG, at=at, least=_MIN_KEY_BITS) from None
    if not isinstance(key, rsa.RSAPrivateKey) or key.key_size < _MIN_KEY_BITS:
        raise InputError(Code.FCM_KEY_WRONG, at=at, least=_MIN_KEY_BITS)


# The form of the account, and the account of an app's record, opened where messages are sent.

AccountSource = Callable[[App], ServiceAccount | None]
"""Returns the app's account, or None if it has no usable one, so that nothing can be sent for it."""


def _read_account(file: str, at: str) -> FieldValue:
    account = parse_service_account(file, at)
    settings = {
        "account": account.client_email,
        "project": account.project_id,
        "key_id": account.private_key_id,
    }
    return FieldValue(settings, account.private_key)


FCM = CredentialsForm(
    CHANNEL_FCM,
    words("Firebase Cloud Messaging"),
    (
        CredentialField(
            "service_account",
            FieldKind.SECRET,
            _read_account,
            words("Content of the service account's JSON file"),
            words(
                "From Firebase's console: Project settings, Service accounts, Generate new private key. It is stored"
                " encrypted and never shown."
            ),
        ),
    ),
    {
        "account": words("Service account for FCM"),
        "project": words("Firebase project"),
        "key_id": words("Key id of the service account"),
    },
    ChannelVendor(
        "Google",
        "Google (FCM)",
        "CARILLON_FCM_URL=https://fcm.googleapis.com sends to Google.",
        "Google validates a message to an address that nobody has.",
    ),
)


def open_account(app: App, keys: Keys) -> ServiceAccount | None:
    """Decrypt the app's account; None if it has none. CarillonError: it was sealed with another master key."""
    opened = open_credentials(app, CHANNEL_FCM, keys)
    if opened is None:
        return None
    settings = opened.settings
    return ServiceAccount(settings["project"], settings["account"], settings["key_id"], opened.secret)

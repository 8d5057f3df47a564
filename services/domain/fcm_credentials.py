"""A Firebase service account: the JSON file that Google's console gives, checked before it is stored."""

from dataclasses import dataclass, field

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from services.errors import InputError

GOOGLE_TOKEN_URI = "https://oauth2.googleapis.com/token"  # noqa: S105  # an address, no secret
MAX_FILE_BYTES = 16 * 1024
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
        raise InputError(f"the FCM key file has more than {MAX_FILE_BYTES} bytes: it is not Google's")
    try:
        file = _files.decode(content)
    except msgspec.ValidationError:
        raise InputError("the FCM key file lacks a field; give the JSON file of a service account, as it is") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InputError("the FCM key file is no JSON; give the file of a service account, as it is") from None
    if file.type != "service_account":
        raise InputError("the FCM key file is of another type than service_account (google-services.json is not it)")
    if file.token_uri != GOOGLE_TOKEN_URI:
        raise InputError(f"the FCM key file names another token_uri than {GOOGLE_TOKEN_URI}")
    if not all((file.project_id, file.client_email, file.private_key_id)):
        raise InputError("the FCM key file has an empty field")
    _check_key(file.private_key)
    return ServiceAccount(file.project_id, file.client_email, file.private_key_id, file.private_key)


def _check_key(pem: str) -> None:
    try:
        key = serialization.load_pem_private_key(pem.encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InputError("the private key in the FCM key file is no key in PEM form") from None
    if not isinstance(key, rsa.RSAPrivateKey) or key.key_size < _MIN_KEY_BITS:
        raise InputError(f"the private key in the FCM key file is no RSA key of {_MIN_KEY_BITS} bits or more")

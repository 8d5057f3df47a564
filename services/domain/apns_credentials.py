"""APNs credentials of an iOS app: validated and sealed for storage, decrypted where pushes are sent."""

from dataclasses import dataclass, field
from enum import Enum

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from protos.registry.v1.apps_pb2 import (
    APNS_ENVIRONMENT_BOTH,
    APNS_ENVIRONMENT_PRODUCTION,
    APNS_ENVIRONMENT_SANDBOX,
    App,
)
from services.domain.master_key import Keys
from services.errors import CarillonError, Code, InputError
from services.process.logs import logger


class Environment(Enum):
    """Apple's production and sandbox services accept different device tokens; an app may have devices in both."""

    PRODUCTION = "production"
    SANDBOX = "sandbox"
    BOTH = "both"


ENVIRONMENTS = {
    APNS_ENVIRONMENT_PRODUCTION: Environment.PRODUCTION,
    APNS_ENVIRONMENT_SANDBOX: Environment.SANDBOX,
    APNS_ENVIRONMENT_BOTH: Environment.BOTH,
}


APPLE_URLS = {
    Environment.PRODUCTION: "https://api.push.apple.com",
    Environment.SANDBOX: "https://api.sandbox.push.apple.com",
}
"""Base URLs of Apple's services."""


@dataclass(frozen=True, slots=True)
class ApnsCredentials:
    """A team's signing key, as PEM text of Apple's .p8 file, for the app whose bundle id is `topic`."""

    key_id: str
    team_id: str
    topic: str
    key_pem: str = field(repr=False)
    environment: Environment = Environment.PRODUCTION


def open_credentials(app: App, keys: Keys) -> ApnsCredentials | None:
    """Decrypt the app's credentials; None if it has none. CarillonError: they were sealed with another master key."""
    if not app.HasField("apns"):
        return None
    apns = app.apns
    return ApnsCredentials(
        key_id=apns.key_id,
        team_id=apns.team_id,
        topic=apns.topic,
        key_pem=keys.open(apns.sealed_pem, _context(app)),
        environment=ENVIRONMENTS.get(apns.environment, Environment.PRODUCTION),
    )


class ApnsCredentialsCache:
    """Decrypted credentials by app, decrypted again when the app's record changes.

    Credentials sealed with another master key are logged once and treated as missing.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._by_appkey: dict[str, tuple[App, ApnsCredentials | None]] = {}

    def __call__(self, app: App) -> ApnsCredentials | None:
        cached = self._by_appkey.get(app.appkey)
        if cached is None or cached[0] is not app:
            cached = self._by_appkey[app.appkey] = app, self._open(app)
        return cached[1]

    def _open(self, app: App) -> ApnsCredentials | None:
        try:
            return open_credentials(app, self._keys)
        except CarillonError as error:
            logger.error(
                "an APNs key cannot be decrypted: it was sealed with another master key; bring that key back, or set"
                " the app's key again with `carillon app set APPKEY --apns-key FILE`",
                appkey=app.appkey,
                error=str(error),
            )
            return None


def seal_key(app: App, pem: str, keys: Keys) -> bytes:
    """Validate and encrypt a key for the app's record. InputError, whose text never quotes the key: it is invalid."""
    return keys.seal(_normalized(pem), _context(app))


def sealed_anew(app: App, keys: Keys) -> bytes | None:
    """Return the app's APNs key sealed with the key in force; None if it is sealed with that already."""
    return keys.sealed_anew(app.apns.sealed_pem, _context(app))


def _context(app: App) -> str:
    """Encryption context that differs from that of the app's secret, so that the two ciphertexts cannot be swapped."""
    return f"{app.appkey}/apns"


def _normalized(pem: str) -> str:
    """Return the key as PKCS #8 PEM, without any text around it. InputError: it is no P-256 key."""
    try:
        key = serialization.load_pem_private_key(pem.encode(), None)
    except TypeError:
        raise InputError(Code.APNS_KEY_ENCRYPTED, at="the APNs key") from None
    except (ValueError, UnsupportedAlgorithm):
        raise InputError(Code.APNS_KEY_UNREADABLE, at="the APNs key") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
        raise InputError(Code.APNS_KEY_WRONG_CURVE, at="the APNs key")
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()

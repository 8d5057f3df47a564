"""What signs an app's pushes to Apple: checked before it is kept, and opened where it is needed."""

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
from services.domain.master_key import MasterKey
from services.runtime.errors import CarillonError, InputError
from services.runtime.process.logs import logger


class Environment(Enum):
    """Apple has two services that know different tokens; an app may have devices in both."""

    PRODUCTION = "production"
    SANDBOX = "sandbox"
    BOTH = "both"


ENVIRONMENTS = {
    APNS_ENVIRONMENT_PRODUCTION: Environment.PRODUCTION,
    APNS_ENVIRONMENT_SANDBOX: Environment.SANDBOX,
    APNS_ENVIRONMENT_BOTH: Environment.BOTH,
}
"""As the app's record has them."""


@dataclass(frozen=True, slots=True)
class ApnsCredentials:
    """A key of the app's team, made by Apple, as PEM text of the .p8 file; `topic` is the bundle id."""

    key_id: str
    team_id: str
    topic: str
    key_pem: str = field(repr=False)
    environment: Environment = Environment.PRODUCTION


def opened(app: App, keys: MasterKey) -> ApnsCredentials | None:
    """The app's credentials; None while it has none. CarillonError: they were sealed with another master key."""
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


class OpenedCredentials:
    """Opens each app's credentials once, and again when its record has changed.

    A key that was sealed with another master key is logged and counts as none.
    """

    def __init__(self, keys: MasterKey) -> None:
        self._keys = keys
        self._known: dict[str, tuple[App, ApnsCredentials | None]] = {}

    def __call__(self, app: App) -> ApnsCredentials | None:
        known = self._known.get(app.appkey)
        if known is None or known[0] is not app:
            known = self._known[app.appkey] = app, self._open(app)
        return known[1]

    def _open(self, app: App) -> ApnsCredentials | None:
        try:
            return opened(app, self._keys)
        except CarillonError as error:
            logger.error("an APNs key cannot be opened", appkey=app.appkey, error=str(error))
            return None


def sealed(app: App, pem: str, keys: MasterKey) -> bytes:
    """The key as the app's record holds it. InputError, without a word of what was given, when it is none."""
    return keys.seal(_checked(pem), _context(app))


def _context(app: App) -> str:
    """Not the app's secret's, so that neither can be put in the other's place."""
    return f"{app.appkey}/apns"


def _checked(pem: str) -> str:
    """The key alone, whatever text stood around it."""
    try:
        key = serialization.load_pem_private_key(pem.encode(), None)
    except TypeError:
        raise InputError("the APNs key is encrypted; give the .p8 file as Apple made it") from None
    except (ValueError, UnsupportedAlgorithm):
        raise InputError("the APNs key is no private key in PEM form, as Apple's AuthKey_….p8 is") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
        raise InputError("the APNs key is not on the curve P-256, as Apple's are")
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()

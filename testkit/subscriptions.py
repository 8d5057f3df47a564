"""Push subscriptions as browsers make them: an endpoint and keys."""

from base64 import urlsafe_b64encode

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat


def subscription_keys_as_text(number: int = 1) -> dict[str, str]:
    """Return the keys of a subscription as `PushSubscription.toJSON()` has them, always the same for a number."""
    point = ec.derive_private_key(number, ec.SECP256R1()).public_key()
    return {
        "p256dh": _text(point.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)),
        "auth": _text(number.to_bytes(16)),
    }


def _text(value: bytes) -> str:
    return urlsafe_b64encode(value).decode().rstrip("=")

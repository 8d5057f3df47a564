"""One-time codes by time (TOTP, RFC 6238): six digits of a 30 s interval, accepted one interval early or late."""

import hmac

import pyotp

from services.errors import InputError

STEP_S = 30
_ISSUER = "Carillon"


def new_secret() -> str:
    """Return a new TOTP secret in base 32, as authenticator apps take it."""
    return pyotp.random_base32()


def otpauth_uri(secret: str, login: str) -> str:
    """Return the address that authenticator apps read from a QR code."""
    return pyotp.TOTP(secret, interval=STEP_S).provisioning_uri(name=login, issuer_name=_ISSUER)


def matching_step(secret: str, code: str, now_ms: int) -> int:
    """Return the number of the interval whose code this is: the present interval, the one before or the one after; else
    0.
    """
    digits = "".join(code.split())
    present = now_ms // (1000 * STEP_S)
    totp = pyotp.TOTP(secret, interval=STEP_S)
    matching = [
        step
        for step in (present - 1, present, present + 1)
        if hmac.compare_digest(totp.generate_otp(step).encode(), digits.encode())
    ]
    return max(matching, default=0)


def check_secret(secret: str) -> None:
    """Check the secret of a user's one-time codes. InputError: the text is no secret as `new_secret` makes them."""
    try:
        is_long_enough = len(pyotp.TOTP(secret).byte_secret()) >= 20
    except ValueError:
        is_long_enough = False
    if not is_long_enough:
        raise InputError("secret must be the one that StartTotp returned")

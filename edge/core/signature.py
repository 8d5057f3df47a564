"""Signatures of requests: MD5 over the canonical text and the secrets of the apps that the request names."""

import hashlib
import hmac
from collections.abc import Sequence
from typing import NamedTuple

from protos.registry.v1.apps_pb2 import PLATFORM_UNSPECIFIED, Platform
from services.domain.apps import AppDirectory
from services.domain.ids import new_secret
from services.domain.master_key import MasterKey
from services.runtime.errors import SignError


class AppRef(NamedTuple):
    """An app as a request names it; PLATFORM_UNSPECIFIED where it may be of either platform."""

    appkey: str
    platform: "Platform.ValueType"


Signers = tuple[AppRef, ...]
"""Apps whose secrets, in this order, follow the canonical text when the sign is computed."""


def sign_text(text: str, secrets: Sequence[str]) -> str:
    """Return the sign of a canonical text: MD5 of the text followed by the secrets, 32 lowercase hex digits."""
    return hashlib.md5("".join([text, *secrets]).encode(), usedforsecurity=False).hexdigest()


class SignatureVerifier:
    """Verifies signs in constant time. An unknown app costs as much as a wrong sign and is answered alike."""

    def __init__(self, apps: AppDirectory, keys: MasterKey) -> None:
        self._apps = apps
        self._keys = keys
        self._opened_secrets: dict[bytes, str] = {}
        self._no_secret = new_secret()

    async def verify(self, text: str, sign: str, accepted: Sequence[Signers]) -> None:
        """Return when the text was signed by one of `accepted`; SignError otherwise.

        Before a refusal the app directory is refreshed once: an app or a secret may be newer than its copy here.
        """
        if not self._is_signed(text, sign, accepted):
            await self._apps.refresh()
            if not self._is_signed(text, sign, accepted):
                raise SignError("sign not correct")

    def _is_signed(self, text: str, sign: str, accepted: Sequence[Signers]) -> bool:
        given = sign.encode()
        matches = [self._matches(text, given, signers) for signers in accepted]
        return any(matches)

    def _matches(self, text: str, given: bytes, signers: Signers) -> bool:
        secrets = [self._secret(signer) for signer in signers]
        right = sign_text(text, [secret or self._no_secret for secret in secrets]).encode()
        return hmac.compare_digest(right, given) and None not in secrets

    def _secret(self, signer: AppRef) -> str | None:
        app = self._apps.get(signer.appkey)
        if app is None or signer.platform not in (app.platform, PLATFORM_UNSPECIFIED):
            return None
        secret = self._opened_secrets.get(app.sealed_secret)
        if secret is None:
            secret = self._opened_secrets[app.sealed_secret] = self._keys.open(app.sealed_secret, app.appkey)
        return secret

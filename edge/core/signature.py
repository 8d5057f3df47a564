"""Who may push for an app: whoever signs with its secret."""

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
"""Apps whose secrets, in this order, follow the canonical text when the sign is made."""


def sign_text(text: str, secrets: Sequence[str]) -> str:
    """The sign of a canonical text: MD5 of the text and the secrets behind it, 32 lowercase hexadecimal digits."""
    return hashlib.md5("".join([text, *secrets]).encode(), usedforsecurity=False).hexdigest()


class Gate:
    """Checks signs. An app that does not exist costs what a wrong sign costs, and is answered alike."""

    def __init__(self, apps: AppDirectory, keys: MasterKey) -> None:
        self._apps = apps
        self._keys = keys
        self._opened: dict[bytes, str] = {}
        self._no_secret = new_secret()

    async def admit(self, text: str, sign: str, accepted: Sequence[Signers]) -> None:
        """Return when the text was signed by one of `accepted`; SignError otherwise.

        Before it refuses, it looks once whether an app or a secret is newer than what is known here.
        """
        if not self._signed(text, sign, accepted):
            await self._apps.refresh()
            if not self._signed(text, sign, accepted):
                raise SignError("sign not correct")

    def _signed(self, text: str, sign: str, accepted: Sequence[Signers]) -> bool:
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
        secret = self._opened.get(app.sealed_secret)
        if secret is None:
            secret = self._opened[app.sealed_secret] = self._keys.open(app.sealed_secret, app.appkey)
        return secret

"""Signatures of requests: MD5 over the canonical text and the secrets of the apps that the request names."""

import hashlib
import hmac
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain, combinations
from typing import NamedTuple

from protos.registry.v1.apps_pb2 import PLATFORM_UNSPECIFIED, Platform
from services.domain.apps import OUTDATED, AppDirectory
from services.domain.ids import new_secret
from services.domain.master_key import Keys
from services.errors import SignError, UnavailableError
from services.process.clock import Clock


class AppRef(NamedTuple):
    """An app as a request names it; PLATFORM_UNSPECIFIED where it may be of either platform."""

    appkey: str
    platform: "Platform.ValueType"


Signers = tuple[AppRef, ...]
"""Apps whose secrets, in this order, follow the canonical text when the sign is computed."""


def sign_text(text: str, secrets: Sequence[str]) -> str:
    """Return the sign of a canonical text: MD5 of the text followed by the secrets, 32 lowercase hex digits."""
    return hashlib.md5("".join([text, *secrets]).encode(), usedforsecurity=False).hexdigest()


MAX_MIXED = 4
"""Upper bound of the apps with two valid secrets for which one request may mix old and new secrets."""


class Secrets(NamedTuple):
    """The secrets with which an app may sign. None: the app has no such secret, or there is no such app."""

    current: str | None
    old: str | None


class UsedSecrets(NamedTuple):
    """The secrets of a right sign, in their order, and the appkeys whose old secret is among them."""

    signed_by_old: Sequence[str]
    secrets: Sequence[str]


class SignatureVerifier:
    """Verifies signs in constant time. An unknown app costs as much as a wrong sign and is answered alike.

    While an app changes its secret, the old one signs too. A request of several apps may then be signed with any
    mixture of current and old secrets, up to MAX_MIXED of such apps. The number of signs that are tried follows from
    the number of apps in the request alone, so the time of an answer does not tell which apps exist or have an old
    secret.
    """

    def __init__(self, apps: AppDirectory, keys: Keys, clock: Clock) -> None:
        self._apps = apps
        self._keys = keys
        self._clock = clock
        self._opened_secrets: dict[bytes, str] = {}
        self._no_secret = new_secret()

    async def verify(self, hashed_text: "hashlib._Hash", sign: str, accepted: Sequence[Signers]) -> UsedSecrets:
        """Return what signed the text, if that was one of `accepted`.

        `hashed_text`: MD5 of the canonical text.

        Before a SignError the app directory is refreshed once: an app or a secret may be newer than its copy here.
        UnavailableError: the refresh failed, so the sign is not refused.
        """
        used = self._verify(hashed_text, sign, accepted)
        if used is None:
            is_current = await self._apps.refresh()
            used = self._verify(hashed_text, sign, accepted)
            if used is None:
                raise SignError("sign not correct") if is_current else UnavailableError(OUTDATED)
        return used

    def _verify(self, hashed_text: "hashlib._Hash", sign: str, accepted: Sequence[Signers]) -> UsedSecrets | None:
        given = sign.encode()
        matches: list[UsedSecrets] = []
        for signers in accepted:
            secrets = [self._secrets(signer) for signer in signers]
            for old in _choices(tuple([pair.old is not None for pair in secrets])):
                chosen = [pair.old if place in old else pair.current for place, pair in enumerate(secrets)]
                right = hashed_text.copy()
                right.update("".join([secret or self._no_secret for secret in chosen]).encode())
                if hmac.compare_digest(right.hexdigest().encode(), given) and None not in chosen:
                    by_old = [signers[place].appkey for place in old]
                    matches.append(UsedSecrets(by_old, [secret for secret in chosen if secret is not None]))
        return matches[0] if matches else None

    def _secrets(self, signer: AppRef) -> Secrets:
        app = self._apps.get(signer.appkey)
        if app is None or signer.platform not in (app.platform, PLATFORM_UNSPECIFIED):
            return Secrets(None, None)
        has_old = app.old_sealed_secret and self._clock.now_ms() < app.old_secret_until_ms
        return Secrets(
            self._open(app.sealed_secret, app.appkey),
            self._open(app.old_sealed_secret, app.appkey) if has_old else None,
        )

    def _open(self, sealed: bytes, appkey: str) -> str:
        secret = self._opened_secrets.get(sealed)
        if secret is None:
            secret = self._opened_secrets[sealed] = self._keys.open(sealed, appkey)
        return secret


@lru_cache(maxsize=256)
def _choices(have_old: tuple[bool, ...]) -> Sequence[tuple[int, ...]]:
    """Return the combinations of secrets to try, each as the places of the apps that sign with their old one.

    Up to MAX_MIXED places take part, the places of apps that have an old secret first.
    """
    with_old = [place for place, has_old in enumerate(have_old) if has_old]
    if len(with_old) > MAX_MIXED:
        return [(), tuple(with_old)]
    others = [place for place, has_old in enumerate(have_old) if not has_old]
    places = [*with_old, *others][:MAX_MIXED]
    return list(chain.from_iterable(combinations(places, count) for count in range(len(places) + 1)))

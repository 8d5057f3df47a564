"""Access tokens of a Firebase service account (OAuth 2.0, JWT bearer grant, RFC 7523)."""

from collections.abc import Awaitable, Callable, Mapping

from joserfc import jwt
from joserfc.jwk import RSAKey

from services.delivery.channels.access_tokens import AccessTokens, TokenOwner, TokenResponse
from services.domain.channel_credentials.fcm import ServiceAccount
from services.process.clock import Clock

SCOPE = "https://www.googleapis.com/auth/firebase.messaging"
GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ASSERTION_S = 3_600
"""Validity of an assertion, which Google allows to be an hour at most."""

Post = Callable[[str, Mapping[str, str]], Awaitable[TokenResponse]]
"""Posts a form to a URL."""


def account_tokens(account: ServiceAccount, post: Post, clock: Clock) -> AccessTokens:
    """Return the access tokens of an account, asked for with assertions that its key signs."""
    key = RSAKey.import_key(account.private_key)

    def request() -> Awaitable[TokenResponse]:
        form = {"grant_type": GRANT, "assertion": _assertion(account, key, clock.now_ms() // 1000)}
        return post(account.token_uri, form)

    owner = TokenOwner(
        "fcm", "Google", account.project_id, "service account", "is its key deleted, or the clock wrong?"
    )
    return AccessTokens(owner, request, clock)


def _assertion(account: ServiceAccount, key: RSAKey, now_s: int) -> str:
    header = {"typ": "JWT", "alg": "RS256", "kid": account.private_key_id}
    claims = {
        "iss": account.client_email,
        "scope": SCOPE,
        "aud": account.token_uri,
        "iat": now_s,
        "exp": now_s + ASSERTION_S,
    }
    return jwt.encode(header, claims, key, algorithms=["RS256"])

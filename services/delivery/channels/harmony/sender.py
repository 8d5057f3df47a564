"""The senders of HarmonyOS messages: one for each service account, shared by apps; all use the same server.

Huawei grants no access tokens there: a request bears a JWT that the account's key has signed.
"""

from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

import msgspec
from joserfc import jwt
from joserfc.jwk import RSAKey

from services.delivery.channels.access_tokens import AccessTokens, TokenOwner, TokenResponse
from services.delivery.channels.harmony.responses import HarmonyAnswer, parse_answer
from services.delivery.channels.http1 import Http1Server
from services.delivery.channels.huawei.batches import MAX_ANSWER_BYTES, BatchSender, HuaweiCall
from services.delivery.channels.shared_senders import SharedSenders
from services.domain.channel_credentials.harmony import HarmonyAccount
from services.domain.channel_credentials.hms import HUAWEI_TOKEN_URL, HUAWEI_URL
from services.process.clock import Clock

JWT_S = 3_600
"""Validity of a JWT, which Huawei allows to be a day at most."""


@dataclass(frozen=True, slots=True)
class HarmonyEndpoint:
    """Where requests go. `authority`: PEM text of trusted certificates; None for the system's."""

    url: str = HUAWEI_URL
    authority: str | None = None


def send_path(account: HarmonyAccount) -> str:
    """Return the path of the call."""
    return f"/v3/{quote(account.project_id, safe='')}/messages:send"


class SenderPool:
    """Makes and shares the senders of accounts; all go to the same server."""

    def __init__(self, endpoint: HarmonyEndpoint, clock: Clock) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._server: Http1Server | None = None
        self._senders: SharedSenders[HarmonyAccount, BatchSender[HarmonyAnswer]] = SharedSenders("HarmonyOS", clock)

    def get(self, account: HarmonyAccount) -> BatchSender[HarmonyAnswer]:
        """Return the sender of the account, to send by it now."""
        return self._senders.get(account, partial(self._make, account))

    async def close(self) -> None:
        await self._senders.close()
        if self._server is not None:
            self._server.close()

    def _make(self, account: HarmonyAccount) -> BatchSender[HarmonyAnswer]:
        endpoint = self._endpoint
        if self._server is None:  # most installations have no account, and trusted certificates take 30 ms
            self._server = Http1Server("harmony", endpoint.url, self._clock, endpoint.authority, MAX_ANSWER_BYTES)
        call = HuaweiCall("harmony", send_path(account), HarmonyAnswer, parse_answer)
        return BatchSender(call, self._server, account_tokens(account, self._clock), self._clock)


def account_tokens(account: HarmonyAccount, clock: Clock) -> AccessTokens:
    """Return the JWTs of an account, each used until it ends soon."""
    key = RSAKey.import_key(account.private_key)

    async def sign() -> TokenResponse:
        granted = {"access_token": _signed(account, key, clock.now_ms() // 1000), "expires_in": JWT_S}
        return TokenResponse(200, msgspec.json.encode(granted))

    hint = "is its key deleted, or the clock wrong?"
    return AccessTokens(TokenOwner("harmony", "Huawei", account.project_id, "service account", hint), sign, clock)


def _signed(account: HarmonyAccount, key: RSAKey, now_s: int) -> str:
    header = {"kid": account.key_id, "typ": "JWT", "alg": "PS256"}
    claims = {"iss": account.sub_account, "aud": HUAWEI_TOKEN_URL, "iat": now_s, "exp": now_s + JWT_S}
    return jwt.encode(header, claims, key, algorithms=["PS256"])

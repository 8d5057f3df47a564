"""Huawei's Push Kit of HarmonyOS 5 and later: its call, its signatures, and the service that delivery asks.

Huawei grants no access tokens there: a request bears a JWT that the account's key has signed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote

from joserfc import jwt
from joserfc.jwk import RSAKey

from protos.registry.v1.apps_pb2 import CHANNEL_HARMONY, App
from services.delivery.channels.access_tokens import AccessTokens, TokenOwner, TokenResponse
from services.delivery.channels.batches.sender import MAX_ANSWER_BYTES, BatchSender, VendorCall
from services.delivery.channels.batches.service import Vendor, VendorSenders, VendorServers, VendorService
from services.delivery.channels.batches.tokens import granted
from services.delivery.channels.harmony.request import HarmonyMessage
from services.delivery.channels.harmony.responses import HarmonyAnswer, parse_answer
from services.delivery.channels.huawei import MAX_TOKENS
from services.domain.channel_credentials.harmony import HarmonyAccount
from services.domain.channel_credentials.hms import HUAWEI_TOKEN_URL, HUAWEI_URL
from services.process.clock import Clock

VENDOR = Vendor(
    CHANNEL_HARMONY,
    "HarmonyOS",
    "the app has no service account for HarmonyOS, so its messages wait; set one:"
    " carillon app set APPKEY --harmony-service-account FILE",
    "the app has no usable service account for HarmonyOS",
    HarmonyMessage,
)

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


def account_tokens(account: HarmonyAccount, clock: Clock) -> AccessTokens:
    """Return the JWTs of an account, each used until it ends soon."""
    key = RSAKey.import_key(account.private_key)

    async def sign() -> TokenResponse:
        return granted(_signed(account, key, clock.now_ms() // 1000), JWT_S)

    hint = "is its key deleted, or the clock wrong?"
    return AccessTokens(TokenOwner("harmony", "Huawei", account.project_id, "service account", hint), sign, clock)


def _signed(account: HarmonyAccount, key: RSAKey, now_s: int) -> str:
    header = {"kid": account.key_id, "typ": "JWT", "alg": "PS256"}
    claims = {"iss": account.sub_account, "aud": HUAWEI_TOKEN_URL, "iat": now_s, "exp": now_s + JWT_S}
    return jwt.encode(header, claims, key, algorithms=["PS256"])


def harmony_service(
    endpoint: Callable[[], HarmonyEndpoint], account_of: Callable[[App], HarmonyAccount | None], clock: Clock
) -> VendorService[HarmonyAccount, HarmonyAnswer]:
    """Return the service. `endpoint` is asked once it is opened."""

    def senders() -> VendorSenders[HarmonyAccount, HarmonyAnswer]:
        at = endpoint()
        servers = VendorServers("harmony", clock, at.authority, MAX_ANSWER_BYTES)

        def sender(account: HarmonyAccount) -> BatchSender[HarmonyAnswer]:
            call = VendorCall("harmony", send_path(account), HarmonyAnswer, parse_answer, max_tokens=MAX_TOKENS)
            return BatchSender(call, servers.get(at.url), account_tokens(account, clock), clock)

        return VendorSenders("HarmonyOS", servers, sender, clock)

    return VendorService(VENDOR, senders, account_of, clock)

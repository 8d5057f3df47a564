"""Simulator of Huawei's Push Kit of HarmonyOS 5 and later, and the service accounts that it knows."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import RSAKey

from protos.registry.v1.apps_pb2 import App
from services.domain.channel_credentials.harmony import HarmonyAccount
from services.domain.channel_credentials.hms import HUAWEI_TOKEN_URL
from services.hms_simulator.harmony_requests import HarmonyMessageSchema, HarmonyNotificationSchema, validate
from services.hms_simulator.push_kit import PushKitSimulator
from services.hms_simulator.requests import JWT_EXPIRED, NOT_AUTHENTICATED, is_token
from services.process.clock import Clock
from services.push_simulator.certificates import SelfSigned
from services.push_simulator.http1_service import PushRefusedError, ReceivedRequest, Script

JWT_TOO_LONG = "80300036"
_MAX_JWT_S = 86_400
_MAX_CLOCK_SKEW_S = 300


class _Claims(msgspec.Struct):
    iss: str
    aud: str
    iat: int
    exp: int


class HarmonySimulator(PushKitSimulator[HarmonyMessageSchema]):
    """HarmonyOS's call. Tokens that begin with one of `reasons` and a colon are refused alone, for this reason."""

    name = "harmony-simulator"
    reasons = frozenset(
        (
            "tokenFormatError", "tokenPlatformNotSupport", "noRight", "noPushTypeRight", "appinfoError",
            "countryNotSupport", "differentImgVerifyPolicy", "disableSendMarketingPenalty", "atomicUnableToPush",
            "noRightToSendThisLiveView",
        )
    )  # fmt: skip

    def __init__(
        self, clock: Clock, host: str = "127.0.0.1", port: int = 0, certificate: SelfSigned | None = None
    ) -> None:
        super().__init__(host, port, certificate)
        self._clock = clock
        self._accounts: dict[str, tuple[HarmonyAccount, RSAKey]] = {}

    def register(self, account: HarmonyAccount) -> None:
        """Accept requests for the account's project that its key signs."""
        self._accounts[f"/v3/{account.project_id}/messages:send"] = account, RSAKey.import_key(account.private_key)

    def delete(self, account: HarmonyAccount) -> None:
        """Accept no request of the account any more."""
        del self._accounts[f"/v3/{account.project_id}/messages:send"]

    def shown(self, token: str) -> dict[int | str, HarmonyNotificationSchema]:
        """Return what the phone with this token shows by itself: the latest notification of each id."""
        return {
            f"without {number}" if notification.notify_id is msgspec.UNSET else notification.notify_id: notification
            for number, received in enumerate(self.received)
            if received.token == token and not received.is_dry
            if (notification := received.message.payload.notification)
        }

    def judge(self, headers: Mapping[str, str], body: bytes) -> ReceivedRequest[HarmonyMessageSchema]:
        self._authenticate(headers[":path"], headers.get("authorization", ""))
        return validate(body, headers.get("push-type", ""))

    def refused_as(self, token: str, script: Script) -> str:
        return super().refused_as(token, script) or ("" if is_token(token) else "tokenFormatError")

    def told(self, valid: int, refused: Mapping[str, str]) -> str:
        by_reason: dict[str, list[str]] = {}
        for token, why in refused.items():
            by_reason.setdefault(why, []).append(token)
        return msgspec.json.encode({"success": valid, "failure": len(refused), "illegalTokens": by_reason}).decode()

    def _authenticate(self, path: str, authorization: str) -> None:
        claims = self._claims(path, authorization)
        if claims is None:
            raise PushRefusedError(NOT_AUTHENTICATED, "authentication error")
        if claims.exp - claims.iat > _MAX_JWT_S:
            raise PushRefusedError(JWT_TOO_LONG, "the token is valid for more than a day")
        if not claims.iat - _MAX_CLOCK_SKEW_S <= self._clock.now_ms() // 1000 < claims.exp:
            raise PushRefusedError(JWT_EXPIRED, "the token has expired")

    def _claims(self, path: str, authorization: str) -> _Claims | None:
        """Return the claims of a JWT of the account that may send on this path; None: it is none."""
        known = self._accounts.get(path)
        if known is None or not authorization.startswith("Bearer "):
            return None
        account, key = known
        try:
            token = jwt.decode(authorization.removeprefix("Bearer "), key, algorithms=["PS256"])
            claims = msgspec.convert(token.claims, _Claims)
        except (JoseError, ValueError, msgspec.ValidationError):
            return None
        shown = token.header.get("kid"), token.header.get("typ"), claims.iss, claims.aud
        return claims if shown == (account.key_id, "JWT", account.sub_account, HUAWEI_TOKEN_URL) else None


def new_key() -> str:
    """Return a new key as PEM text, as Huawei's console makes them."""
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def simulated_accounts(
    simulator: HarmonySimulator, account_of: Callable[[App], HarmonyAccount | None]
) -> Callable[[App], HarmonyAccount | None]:
    """Return the accounts of apps with a key of the simulator's in the place of theirs, made when first needed."""
    made: dict[str, tuple[HarmonyAccount, HarmonyAccount]] = {}
    key = functools.cache(new_key)

    def simulated_account(app: App) -> HarmonyAccount | None:
        real = account_of(app)
        if real is None:
            return None
        known = made.get(app.appkey)
        if known is None or known[0] is not real:
            known = made[app.appkey] = real, replace(real, private_key=key())
            simulator.register(known[1])
        return known[1]

    return simulated_account

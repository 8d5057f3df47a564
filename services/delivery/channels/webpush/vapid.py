"""VAPID (RFC 8292): the header by which an app proves to a push service that a subscription is its own."""

from collections import OrderedDict

from joserfc import jwt
from joserfc.jwk import ECKey

from services.domain.channel_credentials.webpush import WebPushCredentials
from services.process.clock import Clock

LIFETIME_MS = 12 * 3_600_000
"""Validity of a token from its hour on. Push services accept at most 24 hours; a clock may be wrong by half of it."""

_HOUR_MS = 3_600_000
_MAX_AUDIENCES = 1_000
"""Upper bound of the push services whose headers are kept; the least recently used are made again."""


class VapidHeaders:
    """The `Authorization` headers of one app, one for each push service and hour.

    A signature costs as much as the encryption of a message, and the header is the same for all of an app's messages to
    a push service.
    """

    def __init__(self, credentials: WebPushCredentials, clock: Clock) -> None:
        self._key = ECKey.import_key(credentials.key_pem)
        self.public_key = credentials.public_key_text
        self._contact = credentials.contact
        self._clock = clock
        self._headers: OrderedDict[str, tuple[int, str]] = OrderedDict()

    def header(self, audience: str, *, is_renewed: bool = False) -> str:
        """Return the header for an origin, such as `https://push.example.org`; `is_renewed`: sign another one."""
        now_ms = self._clock.now_ms()
        hour, header = self._headers.get(audience, (-1, ""))
        if is_renewed or hour != now_ms // _HOUR_MS:
            hour, header = now_ms // _HOUR_MS, self._signed(audience, now_ms)
            self._headers[audience] = hour, header
            if len(self._headers) > _MAX_AUDIENCES:
                self._headers.popitem(last=False)
        self._headers.move_to_end(audience)
        return header

    def _signed(self, audience: str, now_ms: int) -> str:
        claims = {"aud": audience, "exp": (now_ms + LIFETIME_MS) // 1000, "sub": self._contact}
        token = jwt.encode({"typ": "JWT", "alg": "ES256"}, claims, self._key, algorithms=["ES256"])
        return f"vapid t={token}, k={self.public_key}"

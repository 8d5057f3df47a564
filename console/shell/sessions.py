"""A browser's cookies: the sealed session, its CSRF token, and the browser's own token for log-ins."""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie

import msgspec

from services.domain.master_key import Keys
from services.errors import CarillonError
from services.process.clock import Clock

IDLE_MS = 12 * 3_600_000
"""How long a session lasts without a request."""

LONGEST_MS = 7 * 24 * 3_600_000
"""How long a session lasts at most."""

SEEN_STEP_MS = 5 * 60_000
"""The time of the last request is kept to this precision, so that few answers set a cookie."""

_CONTEXT = "console/session"
_MAX_COOKIE = 4000


class Pending(msgspec.Struct, frozen=True):
    """A log-in whose password is right and whose one-time code is missing; it holds the password until `until_ms`."""

    login: str
    password: str
    until_ms: int


class PendingProviderLogIn(msgspec.Struct, frozen=True):
    """A log-in with the OpenID Connect provider that was begun. `next`: the path to go to afterwards."""

    state: str
    nonce: str
    verifier: str
    next: str
    until_ms: int


class ProviderSession(msgspec.Struct, frozen=True):
    """What a session keeps of its log-in with the provider, which allowed it at `checked_ms` for the last time.

    `key` names the session in this process's memory. `refresh_token` and `id_token` are empty where there is none, or
    none that fits into a cookie.
    """

    key: str
    refresh_token: str
    id_token: str
    checked_ms: int


class Session(msgspec.Struct, frozen=True):
    """One browser's session, named by the hash of its CSRF token.

    `user_id` is empty before the log-in; `epoch` is the user's session epoch at that time.
    `csrf` is the token that every form must send. `notice` and `shown_once` are for the next page alone.
    `provider` is set if the user has logged in with the OpenID Connect provider.
    """

    csrf: str
    started_ms: int
    seen_ms: int
    user_id: str = ""
    epoch: int = 0
    notice: str = ""
    shown_once: str = ""
    pending: Pending | None = None
    provider_log_in: PendingProviderLogIn | None = None
    provider: ProviderSession | None = None

    @property
    def hash(self) -> bytes:
        """The name under which the log-out of this session is in the log."""
        return hashlib.sha256(self.csrf.encode()).digest()


class Sessions:
    """Reads and writes the session cookie: sealed with the installation's key of secrets, HttpOnly and SameSite=Lax."""

    def __init__(self, keys: Keys, clock: Clock, *, is_secure: bool) -> None:
        self._keys = keys
        self._clock = clock
        self._is_secure = is_secure
        self.cookie_name = "__Host-carillon" if is_secure else "carillon"

    def new(self, user_id: str = "", epoch: int = 0, provider: ProviderSession | None = None) -> Session:
        """Return a session that begins now, with a CSRF token of its own."""
        now_ms = self._clock.now_ms()
        return Session(secrets.token_urlsafe(24), now_ms, now_ms, user_id, epoch, provider=provider)

    def read(self, header: str | None) -> Session | None:
        """Return the session in a Cookie header; None if there is none, or it is too old. It may have been ended."""
        sealed = self._cookie(header or "")
        if not sealed:
            return None
        try:
            text = self._keys.open(base64.urlsafe_b64decode(sealed + "=" * (-len(sealed) % 4)), _CONTEXT)
            session = msgspec.json.decode(text, type=Session)
        except (CarillonError, msgspec.DecodeError, binascii.Error, ValueError):
            return None
        now_ms = self._clock.now_ms()
        is_over = now_ms >= session.seen_ms + IDLE_MS or now_ms >= session.started_ms + LONGEST_MS
        return None if is_over else session

    def seen(self, session: Session) -> Session:
        """Return the session with the time of this request, if that has changed enough."""
        now_ms = self._clock.now_ms()
        return msgspec.structs.replace(session, seen_ms=now_ms) if now_ms >= session.seen_ms + SEEN_STEP_MS else session

    def set_cookie(self, session: Session) -> str:
        """Return the Set-Cookie header of a session. The browser forgets it when it is closed."""
        sealed = self._keys.seal(msgspec.json.encode(session).decode(), _CONTEXT)
        value = base64.urlsafe_b64encode(sealed).decode().rstrip("=")
        if len(value) > _MAX_COOKIE:
            raise CarillonError("the session is too large for a cookie")
        return f"{self.cookie_name}={value}; Path=/; HttpOnly; SameSite=Lax" + ("; Secure" if self._is_secure else "")

    def _cookie(self, header: str) -> str:
        try:
            found = SimpleCookie(header).get(self.cookie_name)
        except CookieError:
            return ""
        return found.value if found else ""


# The CSRF token of a session as forms carry it.
#
# Each page shows the token combined with another random pad (XOR), because pages are compressed: from the sizes of
# pages that show the token itself beside text of a request, an attacker could guess it byte by byte (the BREACH
# attack).


def padded(token: str) -> str:
    """Return a new pad, and the token XORed with it, in one text."""
    pad = secrets.token_bytes(len(token))
    return base64.urlsafe_b64encode(pad + _xor(pad, token.encode())).decode()


def is_token(given: str, token: str) -> bool:
    """Return whether a form has sent this token, with any pad."""
    try:
        decoded = base64.urlsafe_b64decode(given)
    except (binascii.Error, ValueError):
        return False
    half = len(decoded) // 2
    return hmac.compare_digest(_xor(decoded[:half], decoded[half : 2 * half]), token.encode())


def _xor(pad: bytes, text: bytes) -> bytes:
    return bytes(one ^ other for one, other in zip(pad, text, strict=True))


# The cookie of a known browser: tokens by which accounts tells its attempts to log in from those of strangers.

KEPT_S = 180 * 24 * 3600
"""How long the browser keeps the cookie, and a token is valid."""

MAX_USERS = 4
_TOKEN = re.compile(r"[0-9a-f]{16}\.[A-Za-z0-9_-]{1,200}")

Tokens = Mapping[str, str]
"""The token of each user who has logged in with this browser, by user id, the latest one first."""


class BrowserCookie:
    """Reads and writes the cookie, which outlives sessions and log-outs; HttpOnly and SameSite=Lax as the session's."""

    def __init__(self, *, is_secure: bool) -> None:
        self._is_secure = is_secure
        self.name = "__Host-carillon-browser" if is_secure else "carillon-browser"

    def read(self, header: str | None) -> Tokens:
        """Return the well-formed tokens in a Cookie header; the role accounts checks them."""
        try:
            found = SimpleCookie(header or "").get(self.name)
        except CookieError:
            return {}
        texts = found.value.split(":")[:MAX_USERS] if found else []
        pairs = [text.partition(".") for text in texts if _TOKEN.fullmatch(text)]
        return {user_id: token for user_id, _, token in pairs}

    def set_cookie(self, tokens: Tokens) -> str:
        """Return the Set-Cookie header of these tokens."""
        value = ":".join(f"{user_id}.{token}" for user_id, token in tokens.items())
        kept = f"Max-Age={KEPT_S}; Path=/; HttpOnly; SameSite=Lax"
        return f"{self.name}={value}; {kept}" + ("; Secure" if self._is_secure else "")


def with_token(tokens: Tokens, user_id: str, token: str) -> Tokens:
    """Return the tokens with this one first, in place of an earlier one of the user; the oldest are left out."""
    others = [(known, text) for known, text in tokens.items() if known != user_id]
    return dict([(user_id, token), *others][:MAX_USERS])

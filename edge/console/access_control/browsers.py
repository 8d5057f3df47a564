"""The cookie of a known browser: tokens by which accounts tells its attempts to log in from those of strangers."""

import re
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie

KEPT_S = 180 * 24 * 3600
"""How long the browser keeps the cookie, and a token is valid."""

MAX_USERS = 4
_TOKEN = re.compile(r"[0-9a-f]{16}\.[A-Za-z0-9_-]{1,200}")

Tokens = Mapping[str, str]
"""The token of each user who has logged in with this browser, by user id, the latest one first."""


class BrowserCookie:
    """Reads and writes the cookie, which outlives sessions and log-outs; it is HttpOnly, SameSite=Lax, as theirs is."""

    def __init__(self, *, is_secure: bool) -> None:
        self._is_secure = is_secure
        self.name = "__Host-carillon-browser" if is_secure else "carillon-browser"

    def read(self, header: str | None) -> Tokens:
        """Return the tokens in a Cookie header; what is none is left out, for accounts checks them."""
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

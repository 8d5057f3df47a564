"""Tokens of browsers in which a user has logged in (OWASP "Device Cookies"). A token alone logs nobody in.

By them the attempts of these browsers are told apart from those of strangers.
"""

import base64
import binascii
import secrets
from collections.abc import Sequence

from protos.accounts.v1.accounts_pb2 import User
from services.domain.master_key import Keys
from services.runtime.errors import CarillonError

TOKEN_MS = 180 * 24 * 3_600_000
"""How long a browser is a known one after its last log-in."""

MAX_TOKENS = 4
_MAX_LENGTH = 200


class BrowserTokens:
    """Makes and reads tokens: the user's session epoch, an id of the browser and the time, sealed for the user.

    A token is worth nothing once the session epoch has changed, as by another password or the end of all sessions.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def token(self, user_id: str, session_epoch: int, browser_id: str, now_ms: int) -> str:
        """Return the token of a browser; `browser_id`: its present id, or empty for one that is not known yet."""
        text = f"{session_epoch} {browser_id or secrets.token_hex(8)} {now_ms}"
        return base64.urlsafe_b64encode(self._keys.seal(text, _context(user_id))).decode().rstrip("=")

    def known(self, tokens: Sequence[str], user: User | None, now_ms: int) -> str:
        """Return the id of the browser that has a valid token of the user among these; "" if it has none."""
        if user is None:
            return ""
        for token in tokens[:MAX_TOKENS]:
            epoch, browser_id, made_ms = self._opened(token, user.user_id)
            if browser_id and epoch == user.session_epoch and now_ms < made_ms + TOKEN_MS:
                return browser_id
        return ""

    def _opened(self, token: str, user_id: str) -> tuple[int, str, int]:
        try:
            sealed = base64.urlsafe_b64decode(token[:_MAX_LENGTH] + "=" * (-len(token[:_MAX_LENGTH]) % 4))
            epoch, browser_id, made_ms = self._keys.open(sealed, _context(user_id)).split(" ")
            return int(epoch), browser_id, int(made_ms)
        except (CarillonError, binascii.Error, ValueError):
            return 0, "", 0


def _context(user_id: str) -> str:
    return f"user/{user_id}/browser"

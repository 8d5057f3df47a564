"""Rate limits of log-in attempts: strangers share one budget for a name, apart from the user's browsers and networks.

Guessing passwords for a name from many addresses uses up the strangers' budget, and nothing else:

    attempt from          counts in                                    burst  then one in
    a known browser       user × browser                                 10     30 s
    a known network       user × network, address                        10     30 s
    anywhere else         name × network, address, name (all of them)    10     30 s; of all together 20 and 60 s

An address has 50 attempts at once, and then one in 5 s. A refused attempt counts for the address too, unless it is from
a known browser.
"""

import base64
import binascii
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from protos.accounts.v1.accounts_pb2 import User
from services.accounts.store import key_of
from services.domain.attempt_buckets import AttemptBuckets, site_of
from services.domain.master_key import Keys
from services.errors import CarillonError
from services.net.sockets import network

STRANGERS_BURST = 20
STRANGERS_INTERVAL_MS = 60_000
"""The budget of all strangers together for a name: 80 attempts in the first hour, and 60 in each later one."""

_BURST = 10
_INTERVAL_MS = 30_000
_CODE_INTERVAL_MS = 900_000
_MAX_USERS = 100_000
_MAX_NAME = 200
"""Characters of a name by which its attempts are counted: no login has more, and memory stays bounded."""

Bucket: TypeAlias = tuple[AttemptBuckets, str]


class Acquaintance(StrEnum):
    """How well the service knows the source of an attempt; attempts of one kind wait for each other alone."""

    BROWSER = "known browsers"
    NETWORK = "known networks"
    NONE = "strangers"


@dataclass(frozen=True, slots=True)
class Source:
    """Where an attempt for a name comes from. `user_id` is empty for a name that nobody has.

    `browser_id`: the browser in which the user has logged in before, or empty. `is_known_network`: the user has logged
    in from the address's network before.
    """

    login: str
    address: str
    user_id: str = ""
    browser_id: str = ""
    is_known_network: bool = False

    @property
    def acquaintance(self) -> Acquaintance:
        if self.browser_id:
            return Acquaintance.BROWSER
        return Acquaintance.NETWORK if self.is_known_network else Acquaintance.NONE

    @property
    def account(self) -> str:
        """The user's id, or else the name as attempts for it are counted."""
        return self.user_id or key_of(self.login)[:_MAX_NAME]


class LogInLimits:
    """Counts attempts in memory: all buckets are full after a restart."""

    def __init__(self) -> None:
        self._addresses = AttemptBuckets(50, 5_000)
        self._known = AttemptBuckets(_BURST, _INTERVAL_MS, max_keys=_MAX_USERS)
        self._sessions = AttemptBuckets(_BURST, _INTERVAL_MS, max_keys=_MAX_USERS)
        self._codes = AttemptBuckets(_BURST, _CODE_INTERVAL_MS, max_keys=_MAX_USERS)
        # Unknown names are counted apart, so that inventing names evicts no bucket of a user.
        self._users = (AttemptBuckets(_BURST, _INTERVAL_MS), _strangers(_MAX_USERS))
        self._nobody = (AttemptBuckets(_BURST, _INTERVAL_MS), _strangers(_MAX_USERS))

    def refused_address(self, address: str, now_ms: int) -> int:
        """Return 0, or the seconds for which the address must wait, whatever the name. A refusal counts an attempt."""
        peer = network(address)
        wait_ms = self._addresses.wait_ms(peer, now_ms)
        if wait_ms:
            self._addresses.charge(peer, now_ms)
        return _seconds(wait_ms)

    def take(self, source: Source, now_ms: int) -> int:
        """Count an attempt and return 0; or return the seconds to wait, and charge an unknown browser's address."""
        buckets = self._buckets(source)
        wait_ms = max(bucket.wait_ms(key, now_ms) for bucket, key in buckets)
        if not wait_ms:
            for bucket, key in buckets:
                bucket.take(key, now_ms)
        elif not source.browser_id:
            self._addresses.charge(network(source.address), now_ms)
        return _seconds(wait_ms)

    def give_back(self, source: Source) -> None:
        """Take back an attempt that was counted and not looked at."""
        for bucket, key in self._buckets(source):
            bucket.give_back(key)

    def succeeded(self, source: Source) -> None:
        """Note that an attempt was right: neither it nor the earlier failed attempts from its source count any more."""
        self.give_back(source)
        first, key = self._buckets(source)[0]
        first.forget(key)
        self._codes.forget(_code_key(source))

    def take_code(self, source: Source, now_ms: int) -> int:
        """Count a one-time code after a right password, as `take` does: ten at once, and then one in 15 minutes."""
        wait_ms = self._codes.wait_ms(_code_key(source), now_ms)
        if not wait_ms:
            self._codes.take(_code_key(source), now_ms)
        return _seconds(wait_ms)

    def take_of_session(self, user_id: str, now_ms: int) -> int:
        """Count a password that a logged-in user gives again, as `take` does but apart from log-ins."""
        wait_ms = self._sessions.wait_ms(user_id, now_ms)
        if not wait_ms:
            self._sessions.take(user_id, now_ms)
        return _seconds(wait_ms)

    def _buckets(self, source: Source) -> Sequence[Bucket]:
        """Return the buckets in which an attempt counts; the first one is that of its source."""
        if source.browser_id:
            return [(self._known, f"{source.user_id}/{source.browser_id}")]
        site, address = site_of(source.address), (self._addresses, network(source.address))
        if source.is_known_network:
            return [(self._known, f"{source.user_id}/{site}"), address]
        sites, names = self._users if source.user_id else self._nobody
        return [(sites, f"{source.account}/{site}"), address, (names, source.account)]


def _strangers(max_keys: int) -> AttemptBuckets:
    return AttemptBuckets(STRANGERS_BURST, STRANGERS_INTERVAL_MS, max_keys=max_keys)


def _code_key(source: Source) -> str:
    """Return the key by which codes are counted: each known browser or network of a user has its own."""
    if source.browser_id:
        return f"{source.account}/{source.browser_id}"
    return f"{source.account}/{site_of(source.address)}" if source.is_known_network else source.account


def _seconds(wait_ms: int) -> int:
    return -(-wait_ms // 1000)


# Tokens of browsers in which a user has logged in (OWASP "Device Cookies"). A token alone logs nobody in.
# By its token, attempts from a known browser are told apart from those of strangers.

TOKEN_MS = 180 * 24 * 3_600_000
"""How long a browser is a known one after its last log-in."""

MAX_TOKENS = 4
_MAX_LENGTH = 200


class BrowserTokens:
    """Makes and reads tokens: the user's session epoch, an id of the browser and the time, sealed for the user.

    A token is invalid once the session epoch has changed, as by another password or the end of all sessions.
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

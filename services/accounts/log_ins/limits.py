"""Rate limits of log-in attempts, by login name and by network address."""

from services.accounts.store import key_of
from services.domain.accounts.attempt_buckets import AttemptBuckets
from services.runtime.sockets.peers import network

_MAX_NAME = 200
"""Characters of a name by which its attempts are counted: no login has more, and memory stays bounded."""


class LogInLimits:
    """Ten attempts at once and then one in 30 s for a login name; 50 and then one in 5 s from a network address.

    A successful log-in makes the name's bucket full again. All buckets are full after a restart.
    """

    def __init__(self) -> None:
        self._names = AttemptBuckets(10, 30_000)
        self._addresses = AttemptBuckets(50, 5_000)

    def take(self, login: str, address: str, now_ms: int) -> int:
        """Count an attempt and return 0; or count none and return the seconds after which to try again."""
        name, peer = _name_key(login), network(address)
        wait_ms = max(self._names.wait_ms(name, now_ms), self._addresses.wait_ms(peer, now_ms))
        if wait_ms:
            return -(-wait_ms // 1000)
        self._names.take(name, now_ms)
        self._addresses.take(peer, now_ms)
        return 0

    def forget(self, login: str) -> None:
        """Forget the attempts for a name that has logged in."""
        self._names.forget(_name_key(login))


def _name_key(login: str) -> str:
    return key_of(login)[:_MAX_NAME]

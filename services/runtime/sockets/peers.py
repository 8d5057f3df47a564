"""Counts open sockets by the network of their peer, so that no address takes more than its share."""

from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv4Address
from typing import TypeAlias

from services.runtime.http.client_address import ClientAddresses, Networks, read_address
from services.runtime.process.logs import logger

_ADDRESSES_KEPT = 4096
_LOOPBACK = Networks.parse(["127.0.0.0/8", "::1"])

IsShared: TypeAlias = Callable[[str], bool]
"""Says whether many clients share an address, such as a proxy's."""


@lru_cache(_ADDRESSES_KEPT)
def is_loopback(address: str) -> bool:
    """Return whether the peer is on this host, where a proxy in front of the service may run."""
    return read_address(address) in _LOOPBACK


def shared_addresses(addresses: ClientAddresses) -> IsShared:
    """Return a function that says whether an address is that of a trusted proxy or of this host."""
    return lambda address: is_loopback(address) or addresses.is_proxy(address)


@lru_cache(_ADDRESSES_KEPT)
def network(address: str, ipv6_bits: int = 64) -> str:
    """Return an IPv4 address itself, and of an IPv6 address the /64: one host may use all addresses in it."""
    found = read_address(address)
    if found is None or isinstance(found, IPv4Address):
        return str(found or address)
    return found.packed[: ipv6_bits // 8].hex()


class PeerCounts:
    """Counts of one kind of socket by peer network, at most `most` of each; shared addresses are not counted.

    The first refusal is logged with the `setting` that changes the bound.
    """

    def __init__(self, most: int, is_shared: IsShared, setting: str) -> None:
        self.most = most
        self._is_shared = is_shared
        self._setting = setting
        self._has_warned = False
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def take(self, address: str) -> str | None:
        """Count one more socket. Return the text that `release` takes; None: the network has its share already."""
        if not address or self._is_shared(address):
            return ""
        peer = network(address)
        count = self._counts.get(peer, 0)
        if count >= self.most:
            self._warn(address)
            return None
        self._counts[peer] = count + 1
        return peer

    def release(self, peer: str) -> None:
        """Count one socket less of what `take` returned."""
        if not peer:
            return
        left = self._counts[peer] - 1
        if left:
            self._counts[peer] = left
        else:
            del self._counts[peer]

    def _warn(self, address: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "an address has all connections that one address may have; raise the bound for a network that shares"
                " one, or exempt a proxy by CARILLON_TRUSTED_PROXIES",
                address=address,
                bound=self.most,
                setting=self._setting,
            )

"""Addresses of HTTP: a client's, behind trusted proxies too, and a listener's, as URLs name it."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, TypeAlias

from services.errors import Code, InputError

FORWARDED_HEADER = b"x-forwarded-for"
"""The name of the header, in lower case as parsers give it."""

_MAPPED_BITS = 96
_ADDRESSES_KEPT = 4096

Address: TypeAlias = IPv4Address | IPv6Address


class Networks:
    """A set of IP networks. An IPv4-mapped IPv6 address (::ffff:192.0.2.1) is in the networks of its IPv4 address."""

    def __init__(self, networks: Iterable[IPv4Network | IPv6Network]) -> None:
        self._networks = tuple(networks)

    @classmethod
    def parse(cls, texts: Iterable[str], at: str = "networks") -> "Networks":
        """Read networks such as 192.0.2.0/24, or single addresses; `at` is where they are set.

        InputError names the text that is neither.
        """
        return cls(_network(text, at) for text in texts)

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, address: Address | None) -> bool:
        return address is not None and any(address in network for network in self._networks)

    def texts(self) -> list[str]:
        """Return each network in its usual notation, always with its prefix length."""
        return [str(network) for network in self._networks]


class ClientAddresses:
    """Finds the address of the client behind a connection.

    `proxies` are believed: each adds the address of its own peer at the end of X-Forwarded-For. So the header is read
    from its end up to the first address that is no proxy's. An entry that is no address ends the reading: the client
    is then the last proxy before it. The header of any other peer is ignored.
    """

    def __init__(self, proxies: Networks) -> None:
        self._proxies = proxies

    def is_proxy(self, peer: str) -> bool:
        """Return whether the peer is a trusted proxy, whose connections are those of many clients."""
        return read_address(peer) in self._proxies

    def of(self, peer: str, forwarded: Sequence[str] = ()) -> str:
        """Return the client's address. `forwarded`: the values of all X-Forwarded-For headers, in order."""
        client = read_address(peer) if forwarded and self._proxies else None
        if client is None:
            return _text_of(peer)
        entries = ",".join(forwarded)
        while entries and client in self._proxies:
            entries, _, entry = entries.rpartition(",")
            found = read_address(entry)
            if found is None:
                break
            client = found
        return str(client)

    def of_scope(self, scope: Any) -> str:
        """Return the client's address of an ASGI request; "" where the server knows no peer."""
        peer = scope.get("client")
        if peer is None:
            return ""
        if not self._proxies:
            return _text_of(peer[0])
        return self.of(peer[0], [each.decode("latin-1") for name, each in scope["headers"] if name == FORWARDED_HEADER])


@lru_cache(_ADDRESSES_KEPT)
def _text_of(peer: str) -> str:
    """Return a peer's address in its usual notation; a text that is no address as it is."""
    address = read_address(peer)
    return peer if address is None else str(address)


@lru_cache(_ADDRESSES_KEPT)
def read_address(text: str) -> Address | None:
    """Return the IP address in a text, or None. It may have brackets and a port; a zone (%eth0) is left out.

    An IPv4-mapped IPv6 address is returned as IPv4. The latest addresses are kept: several bounds ask for each of them.
    """
    text = text.strip()
    if text.startswith("["):
        text, closed, port = text[1:].partition("]")
        if not closed or not (port == "" or _is_port(port)):
            return None
    elif text.count(":") == 1:
        text, _, port = text.partition(":")
        if not _is_port(f":{port}"):
            return None
    try:
        address = ip_address(text.partition("%")[0] if ":" in text else text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _is_port(text: str) -> bool:
    return text[:1] == ":" and text[1:].isascii() and text[1:].isdigit() and int(text[1:6]) <= 65535 and len(text) <= 6


def _network(text: str, at: str) -> IPv4Network | IPv6Network:
    try:
        network = ip_network(text.strip())
    except ValueError as error:
        raise InputError(Code.NO_NETWORK, at=at, text=text.strip(), problem=str(error)) from None
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    if mapped is not None and network.prefixlen >= _MAPPED_BITS:
        return IPv4Network((mapped, network.prefixlen - _MAPPED_BITS))
    return network


# The host of URLs at which a listener of this machine is reached.

_LOOPBACK_OF_WILDCARD = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104


def url_host(host: str) -> str:
    """Return the host of a URL to a listener on `host`: loopback for a wildcard, and an IPv6 address in brackets."""
    reached = _LOOPBACK_OF_WILDCARD.get(host, host)
    return f"[{reached}]" if ":" in reached else reached

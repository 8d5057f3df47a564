"""Which endpoints of Web Push subscriptions, and which receivers of webhooks, may be called: others choose these URLs.

An endpoint is called only if its host is allowed, and only at an address that is public: for Web Push a known push
service, or a host that the operator has named for the app; for webhooks every public host. A host that the operator has
named with its port may be private, and reached without TLS: HOST:PORT.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import NamedTuple

from services.errors import Code, InputError

KNOWN_HOSTS = (
    "fcm.googleapis.com",
    "updates.push.services.mozilla.com",
    "web.push.apple.com",
    "*.notify.windows.com",
)
"""The push services of Chrome, Firefox, Safari and Edge."""

ANY_HOST = "*"
"""In the place of a host: every host with a public address."""

_HOSTS = "webpush_hosts"
MAX_HOSTS = 32
MAX_ENDPOINT_LENGTH = 2048

_HTTPS_PORT = 443
_MAX_HOST_LENGTH = 253
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NUMERIC_END = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
_URL = re.compile(
    r"(https?)://"
    r"([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])"
    r"(?::([0-9]{1,5}))?"
    r"(/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*(?:\?[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*)?)"
)


class EndpointRefusedError(InputError):
    """An endpoint is not called. The text says why, without its path, which is a secret of the device."""


class Endpoint(NamedTuple):
    """The parts of an endpoint. `host`: in lower case, an IPv6 address without brackets. `target`: path and query."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def origin(self) -> str:
        """Scheme, host and port, as the `aud` of a VAPID token has them (RFC 6454)."""
        return f"{self.scheme}://{self.authority}"

    @property
    def authority(self) -> str:
        """The host, and the port unless it is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        is_default = self.port == (_HTTPS_PORT if self.scheme == "https" else 80)
        return host if is_default else f"{host}:{self.port}"


def parse_endpoint(url: str) -> Endpoint:
    """Read the URL of a subscription, so strictly that no other parser can read it differently.

    EndpointRefusedError: it is no such URL.

    It takes time linear in the URL's length: no part of the pattern can match what its neighbour matches.
    """
    if len(url) > MAX_ENDPOINT_LENGTH:
        raise EndpointRefusedError(f"an endpoint has at most {MAX_ENDPOINT_LENGTH} characters")
    found = _URL.fullmatch(url)
    if found is None:
        raise EndpointRefusedError("an endpoint is a plain https URL with a host and a path")
    scheme, host, port, target = found.groups()
    return Endpoint(scheme, _host(host), _port(port) if port else _HTTPS_PORT if scheme == "https" else 80, target)


class AllowedHosts:
    """The hosts whose endpoints may be called: the known ones, and those that the operator named."""

    def __init__(
        self,
        named: Iterable[str] = (),
        known: Iterable[str] = KNOWN_HOSTS,
        naming: str = "carillon app set APPKEY --webpush-hosts ",
    ) -> None:
        """`named`: HOST, *.DOMAIN, HOST:PORT or ANY_HOST each, as `checked_hosts` returns them.

        `naming`: what the operator writes before a host to name it, for errors.
        """
        hosts = (*known, *named)
        self._naming = naming
        self._any = ANY_HOST in hosts
        self._with_port = frozenset(host for host in hosts if _has_port(host))
        self._names = frozenset(hosts)
        self._domains = tuple(host[1:] for host in hosts if host.startswith("*."))

    def check(self, endpoint: Endpoint) -> bool:
        """Check that the endpoint may be called; return whether its host may have an address that is not public.

        Only a host that the operator has named together with its port may have such an address, a port other than 443,
        or no TLS. EndpointRefusedError: the endpoint must not be called.
        """
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        if f"{host}:{endpoint.port}" in self._with_port:
            return True
        if endpoint.scheme != "https" or endpoint.port != _HTTPS_PORT:
            raise EndpointRefusedError(
                f"the endpoint's host {endpoint.authority} is called by https and port 443 alone, unless the operator"
                f" names it with its port: {self._naming}HOST:PORT"
            )
        if _is_address(endpoint.host):
            raise EndpointRefusedError("the endpoint's host is an address; the operator may name it with its port")
        if not (self._any or endpoint.host in self._names or endpoint.host.endswith(self._domains)):
            raise EndpointRefusedError(
                f"the endpoint's host {endpoint.host} is no known push service; the operator may name it:"
                f" {self._naming}HOST"
            )
        return False

    def service_of(self, endpoint: Endpoint) -> str | None:
        """Return the host or domain, as known or named, by which the endpoint is allowed; None: only by ANY_HOST."""
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        if f"{host}:{endpoint.port}" in self._with_port or endpoint.host in self._names:
            return endpoint.authority
        return next((f"*{domain}" for domain in self._domains if endpoint.host.endswith(domain)), None)


@lru_cache(1024)
def allowed_hosts(named: tuple[str, ...]) -> AllowedHosts:
    """Return the hosts of an app, which many endpoints are checked against."""
    return AllowedHosts(named)


@lru_cache(16)
def webhook_hosts(named: str) -> AllowedHosts:
    """Return the hosts to which webhooks may go: all public ones, and those named in CARILLON_WEBHOOK_HOSTS.

    InputError names a wrong one.
    """
    setting = "CARILLON_WEBHOOK_HOSTS"
    hosts = checked_hosts([host for host in named.split(",") if host.strip()], setting)
    return AllowedHosts(hosts, known=[ANY_HOST], naming=f"{setting}=")


def checked_hosts(given: Sequence[str], setting: str = _HOSTS) -> list[str]:
    """Return the hosts of a setting in lower case, each once. InputError names the wrong one."""
    if len(given) > MAX_HOSTS:
        raise InputError(Code.TOO_MANY_ENTRIES, at=setting, most=MAX_HOSTS)
    return list(dict.fromkeys(_checked_host(host, setting) for host in given))


def public_addresses(addresses: Iterable[str]) -> list[str]:
    """Return the addresses that a connection to a host of others may go to, in their order."""
    return [address for address in addresses if is_public(address)]


def is_public(address: str) -> bool:
    """Return whether an address is one of the internet, and not of this machine, its network, or its provider.

    An IPv6 address that contains an IPv4 address (mapped, NAT64, 6to4) counts as that one. A text that is no address is
    not public.
    """
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, IPv6Address):
        for network, shift in _CARRYING_IPV4:
            if parsed in network:
                return is_public(str(IPv4Address(int(parsed) >> shift & 0xFFFFFFFF)))
        return parsed in _IPV6_UNICAST and parsed.scope_id is None and not _is_in(parsed, _NOT_PUBLIC_IPV6)
    return not any(parsed in network for network in _NOT_PUBLIC_IPV4)


# Addresses with a special purpose, from IANA's registries (RFC 6890). The standard library's `is_global` differs among
# its releases.

_NOT_PUBLIC_IPV4 = tuple(
    map(
        IPv4Network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
            *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24"),
            *("203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
            "168.63.129.16/32",  # Azure's metadata and agents
        ),
    )
)
_IPV6_UNICAST = IPv6Network("2000::/3")
_NOT_PUBLIC_IPV6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "3fff::/20")))
_CARRYING_IPV4 = (
    (IPv6Network("::ffff:0:0/96"), 0),
    (IPv6Network("64:ff9b::/96"), 0),
    (IPv6Network("2002::/16"), 80),
)


def _is_in(address: IPv6Address, networks: Sequence[IPv6Network]) -> bool:
    return any(address in network for network in networks)


@lru_cache(maxsize=1024)
def _host(text: str) -> str:
    """Return a URL's host in its usual notation. EndpointRefusedError: it is no host, or an odd form of an address."""
    host = text.lower()
    if host.startswith("["):
        try:
            return str(IPv6Address(host[1:-1]))
        except ValueError:
            raise EndpointRefusedError("the endpoint's host is no IPv6 address") from None
    if _NUMERIC_END.fullmatch(host):
        try:
            return str(IPv4Address(host))
        except ValueError:
            raise EndpointRefusedError("the endpoint's host is an address in another form than 192.0.2.1") from None
    if len(host) > _MAX_HOST_LENGTH or not _NAME.fullmatch(host):
        raise EndpointRefusedError("the endpoint's host is no name of a host")
    return host


def _port(text: str) -> int:
    port = int(text)
    if not 1 <= port <= 65_535 or text.startswith("0"):
        raise EndpointRefusedError("the endpoint's port must be from 1 to 65535")
    return port


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _has_port(host: str) -> bool:
    return re.search(r":[0-9]+$", host.rpartition("]")[2] if host.startswith("[") else host) is not None


def _checked_host(given: str, setting: str) -> str:
    host = given.strip().lower()
    if host == ANY_HOST:
        return host
    try:
        endpoint = parse_endpoint(f"https://{host.removeprefix('*.')}/")
    except EndpointRefusedError as error:
        raise _wrong(given, setting, str(error)) from None
    if endpoint.target != "/":
        raise _wrong(given, setting, "it has no path")
    is_address = _is_address(endpoint.host)
    if host.startswith("*.") and (is_address or _has_port(host) or "." not in endpoint.host):
        raise _wrong(given, setting, "a wildcard stands before a domain of two parts, without a port")
    if is_address and not _has_port(host):
        raise _wrong(given, setting, "an address needs its port, such as 192.0.2.1:443")
    shown = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{shown}:{endpoint.port}" if _has_port(host) else host


def _wrong(given: str, setting: str, problem: str) -> InputError:
    return InputError(Code.WRONG_PUSH_HOST, at=setting, text=repr(given), problem=problem)

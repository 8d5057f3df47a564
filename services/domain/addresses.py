"""Addresses on channels: names of channels and routes, checks of what devices set, the hash by which records name one.

An address is personal data. It is in the log and in the registry's state; everything else names it by its hash.
"""

import hashlib
import re
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from protos.registry.v1.apps_pb2 import (
    CHANNEL_APNS,
    CHANNEL_SOCKETS,
    CHANNEL_UNSPECIFIED,
    CHANNEL_WEBPUSH,
    ROUTE_AUTO,
    ROUTE_OWN,
    ROUTE_VENDOR,
    App,
    Channel,
    Route,
)

WITHOUT_ADDRESSES = frozenset({CHANNEL_UNSPECIFIED, CHANNEL_SOCKETS, CHANNEL_APNS})
"""The channels that reach a device by its connection or its token, so that it sets no address on them."""

CHANNEL_NAMES: Mapping[int, str] = MappingProxyType(
    {
        number: name.removeprefix("CHANNEL_").lower()
        for name, number in Channel.items()
        if number not in WITHOUT_ADDRESSES
    }
)
"""The name of each channel with addresses, in frames, options and texts, such as "webpush"."""

CHANNELS: Mapping[str, "Channel.ValueType"] = MappingProxyType(
    {name: Channel.ValueType(number) for number, name in CHANNEL_NAMES.items()}
)
"""The channels by name."""

RouteName = Literal["auto", "own", "vendor"]

ROUTE_NAMES: Mapping["Route.ValueType", RouteName] = MappingProxyType(
    {ROUTE_AUTO: "auto", ROUTE_OWN: "own", ROUTE_VENDOR: "vendor"}
)
ROUTES: Mapping[str, "Route.ValueType"] = MappingProxyType({name: number for number, name in ROUTE_NAMES.items()})

MAX_ADDRESS_LENGTH = 2048
P256DH_BYTES = 65
AUTH_BYTES = 16

_PRINTABLE = re.compile(r"[!-~]+")
_ENDPOINT = re.compile(r"(https|http)://([a-z0-9.-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?(/[^#]*)?", re.IGNORECASE)
_BASE64URL = re.compile(r"[A-Za-z0-9_-]+={0,2}")
_UNCOMPRESSED = 4

# The curve P-256 (FIPS 186-4, D.1.2.3): y² = x³ - 3x + b over the field of this prime.
_PRIME = 2**256 - 2**224 + 2**192 + 2**96 - 1
_B = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B


class SubscriptionKeys(NamedTuple):
    """The keys of a Web Push subscription (RFC 8291): its public key and its secret."""

    p256dh: bytes
    auth: bytes


def route_name(app: App) -> RouteName:
    """Return the name of the route of the app's pushes that name none."""
    return ROUTE_NAMES.get(app.channel_route, "auto")


def channel_name(channel: int) -> str:
    """Return the channel's name; a number, of a channel that a newer writer knows."""
    return CHANNEL_NAMES.get(channel, str(channel))


def service_name(channel: int) -> str:
    """Return the name of a channel that a push service stands behind, Apple's too; as for `channel_name` otherwise."""
    return "apns" if channel == CHANNEL_APNS else channel_name(channel)


def named_channel(name: str) -> "Channel.ValueType":
    """Return the channel with this name. ValueError: there is none."""
    if name not in CHANNELS:
        raise ValueError(f"channel must be one of {', '.join(CHANNELS)}")
    return CHANNELS[name]


def address_hash(channel: int, address: str) -> bytes:
    """Return the 16 bytes by which records name an address; the same address on another channel has other ones."""
    return hashlib.sha256(f"{channel} {address}".encode()).digest()[:16]


def fingerprint(hash_: bytes) -> str:
    """Return the part of an address's hash by which people compare addresses: 8 hexadecimal digits."""
    return hash_[:4].hex()


def check_address(channel: "Channel.ValueType", address: str) -> None:
    """Check the shape of an address. ValueError: the text says what it must be, without the address.

    Whether a host may be called is for the sender to decide, at each message.
    """
    if not 1 <= len(address) <= MAX_ADDRESS_LENGTH:
        raise ValueError(f"address must have 1 to {MAX_ADDRESS_LENGTH} characters, but it has {len(address)}")
    if not _PRINTABLE.fullmatch(address):
        raise ValueError("address must be printable ASCII without spaces: hand over what the vendor's SDK returned")
    if channel == CHANNEL_WEBPUSH:
        _check_endpoint(address)


def _check_endpoint(address: str) -> None:
    found = _ENDPOINT.fullmatch(address)
    if found is None:
        raise ValueError(
            "address must be the endpoint of a push subscription: an https:// URL without user name and fragment"
        )
    scheme, _, port, _ = found.groups()
    if port is not None and not 1 <= int(port) <= 65_535:
        raise ValueError("address has a port that is not from 1 to 65535")
    if scheme.lower() == "http" and port is None:
        raise ValueError(
            "address must be an https:// URL; http:// is only for a push service of your own, with its port"
        )


def subscription_keys(p256dh: str, auth: str) -> SubscriptionKeys:
    """Return the keys of a subscription from their base64url text. ValueError: what is wrong, without the keys."""
    point = _bytes("keys.p256dh", p256dh, P256DH_BYTES)
    if point[0] != _UNCOMPRESSED or not _is_on_curve(point):
        raise ValueError("keys.p256dh must be an uncompressed point of the curve P-256: getKey('p256dh') in base64url")
    return SubscriptionKeys(point, _bytes("keys.auth", auth, AUTH_BYTES))


def _bytes(field: str, text: str, length: int) -> bytes:
    """Return the bytes of a base64url text, with or without padding.

    ValueError: the text is not base64url, or does not encode exactly `length` bytes.
    """
    expected = f"{field} must be {length} bytes in base64url"
    if len(text) > 2 * length or not _BASE64URL.fullmatch(text):
        raise ValueError(f"{expected}, which has the letters A-Z a-z 0-9 - _")
    bare = text.rstrip("=")
    try:
        found = urlsafe_b64decode(bare + "=" * (-len(bare) % 4))
    except ValueError:
        raise ValueError(f"{expected}, and this is cut off") from None
    if len(found) != length:
        raise ValueError(f"{expected}, but it has {len(found)}")
    return found


def _is_on_curve(point: bytes) -> bool:
    x, y = int.from_bytes(point[1:33]), int.from_bytes(point[33:])
    return x < _PRIME and y < _PRIME and (y * y - (x * x * x - 3 * x + _B)) % _PRIME == 0

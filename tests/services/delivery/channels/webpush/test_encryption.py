"""Web Push messages: the standard's vector, other libraries as receivers and senders, lengths, tokens."""

import base64
import json

import http_ece
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st
from py_vapid import Vapid02

from services.delivery.channels.webpush.encryption import (
    MAX_BODY_BYTES,
    Subscription,
    encrypt,
    max_plaintext_bytes,
)
from services.delivery.channels.webpush.request import SMALL_BODY_BYTES
from services.delivery.channels.webpush.vapid import VapidHeaders
from services.domain.channel_credentials.webpush import WebPushCredentials
from services.process.clock import ManualClock

POINT = serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
CURVE = ec.SECP256R1()
HOUR_S = 3600
NOW_MS = 1_800_000_000_000


def decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def key_of(text: str) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(int.from_bytes(decoded(text)), CURVE)


def received(body: bytes, key: ec.EllipticCurvePrivateKey, auth: bytes) -> bytes:
    plaintext: bytes = http_ece.decrypt(body, private_key=key, auth_secret=auth, version="aes128gcm")
    return plaintext


def test_the_example_of_the_standard() -> None:
    """RFC 8291, section 5."""
    receiver = key_of("q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94")
    subscription = Subscription("", receiver.public_key().public_bytes(*POINT), decoded("BTBZMqHH6r4Tts7J_aSIgg"))
    plaintext = b"When I grow up, I want to be a watermelon"
    body = encrypt(
        plaintext,
        subscription,
        MAX_BODY_BYTES - max_plaintext_bytes() + len(plaintext),
        key_of("yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw"),
        decoded("DGv6ra1nlYgDCS1FRnbzlw"),
    )
    assert body == decoded(
        "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3"
        "jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN"
    )


@given(st.binary(max_size=max_plaintext_bytes()), st.binary(min_size=16, max_size=16))
def test_another_library_reads_every_message(plaintext: bytes, auth: bytes) -> None:
    key = ec.generate_private_key(CURVE)
    body = encrypt(plaintext, Subscription("", key.public_key().public_bytes(*POINT), auth))
    assert received(body, key, auth) == plaintext
    assert len(body) <= MAX_BODY_BYTES
    assert (len(body) - 86 - 16) % 256 == 0 or len(body) == MAX_BODY_BYTES


@pytest.mark.parametrize("limit", [MAX_BODY_BYTES, SMALL_BODY_BYTES])
def test_no_body_is_longer_than_its_limit(limit: int) -> None:
    key = ec.generate_private_key(CURVE)
    subscription = Subscription("", key.public_key().public_bytes(*POINT), bytes(16))
    longest = bytes(max_plaintext_bytes(limit))
    assert len(encrypt(longest, subscription, limit)) == limit
    assert received(encrypt(longest, subscription, limit), key, bytes(16)) == longest
    assert len(encrypt(longest[:-300], subscription, limit)) < limit
    with pytest.raises(ValueError, match="1 bytes too long"):
        encrypt(longest + b"x", subscription, limit)
    assert max_plaintext_bytes(MAX_BODY_BYTES) == 3993


def test_equal_messages_differ_when_encrypted() -> None:
    key = ec.generate_private_key(CURVE)
    subscription = Subscription("", key.public_key().public_bytes(*POINT), bytes(16))
    assert encrypt(b"x", subscription)[:86] != encrypt(b"x", subscription)[:86]


@pytest.fixture
def credentials() -> WebPushCredentials:
    key = ec.generate_private_key(CURVE)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    return WebPushCredentials(key.public_key().public_bytes(*POINT), "mailto:push@example.org", pem)


def claims(header: str) -> dict[str, object]:
    scheme, token, _ = header.split(" ")
    assert scheme == "vapid"
    return dict(json.loads(decoded(token.removeprefix("t=").removesuffix(",").split(".")[1])))


def test_another_library_accepts_the_header(credentials: WebPushCredentials) -> None:
    header = VapidHeaders(credentials, ManualClock(NOW_MS)).header("https://push.example.org:8443")
    assert Vapid02.verify(header.replace(", k=", ",k="))  # it reads no space, which RFC 8292 has
    assert claims(header) == {
        "aud": "https://push.example.org:8443",
        "exp": NOW_MS // 1000 + 12 * HOUR_S,
        "sub": "mailto:push@example.org",
    }
    assert header.endswith(f", k={credentials.public_key_text}")
    assert len(credentials.public_key_text) == 87


def test_a_header_is_signed_once_an_hour_for_each_push_service(credentials: WebPushCredentials) -> None:
    clock = ManualClock(NOW_MS)
    headers = VapidHeaders(credentials, clock)
    first = headers.header("https://a.example")
    assert headers.header("https://b.example") != first
    assert headers.header("https://a.example") is first
    clock.move(HOUR_S)
    second = headers.header("https://a.example")
    assert claims(second)["exp"] == int(str(claims(first)["exp"])) + HOUR_S


def test_the_headers_of_unused_push_services_are_forgotten(credentials: WebPushCredentials) -> None:
    headers = VapidHeaders(credentials, ManualClock(NOW_MS))
    first = headers.header("https://used.example")
    for number in range(1_500):
        headers.header(f"https://{number}.example")
        assert headers.header("https://used.example") is first
    assert len(headers._headers) == 1_000

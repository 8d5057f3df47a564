"""The npm package web-push as another sender and receiver, in both directions."""

import os
import time
from base64 import urlsafe_b64decode

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from services.delivery.channels.webpush.encryption import Subscription, encrypt, max_plaintext_bytes
from services.process.clock import ManualClock
from services.webpush_simulator.server import WebPushSimulator
from services.webpush_simulator.subscriptions import base64url
from testkit.webpush import run_web_push


def raw(key: ec.EllipticCurvePrivateKey) -> tuple[str, str]:
    """Return the public and the private key as web-push takes them."""
    point = key.public_key().public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)
    return base64url(point), base64url(key.private_numbers().private_value.to_bytes(32))


async def test_each_reads_what_the_other_sends() -> None:
    """One process of Node for all, because starting it is most of the time. Its tokens are of the present time."""
    public, private = raw(ec.generate_private_key(ec.SECP256R1()))
    simulator = WebPushSimulator(ManualClock(int(time.time() * 1000)), port=8443)
    browser = simulator.subscribe("a", public)
    plaintexts = [b"x", os.urandom(1000), bytes(3000), os.urandom(max_plaintext_bytes())]
    ours = [encrypt(each, Subscription("", browser.p256dh, browser.auth)) for each in plaintexts]
    _, browser_key = raw(browser.key)
    answer = run_web_push(
        send={
            "subscription": browser.to_json(simulator.endpoint(browser)),
            "payloads": [base64url(each) for each in plaintexts],
            "vapid": {"subject": "mailto:push@example.org", "publicKey": public, "privateKey": private},
        },
        receive={
            "privateKey": browser_key,
            "auth": base64url(browser.auth),
            "bodies": [base64url(each) for each in ours],
        },
    )
    assert [_decoded(each) for each in answer["received"]] == plaintexts
    for sent in answer["sent"]:
        headers = [(name.lower(), str(value)) for name, value in sent["headers"].items()]
        target = [(":method", "POST"), (":path", f"/wpush/v2/{browser.token}")]
        reply = simulator.reply_to([*target, *headers], _decoded(sent["body"]))
        assert reply.status == 201, (reply, headers)
    assert [got.plaintext for got in simulator.received] == plaintexts


def _decoded(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))

"""Making messages for push services, without the network: Carillon's beside other libraries and a floor.

Web Push: `floor` is the key pair, the agreement and the cipher alone, as `cryptography` calls them; `encrypt` adds the
derivation of keys and the record; `request` is all that Carillon does for a message: text, encryption and headers.
http_ece and pywebpush do what `encrypt` does.

Each is measured in turns, in CPU time of one process; the figure is the median turn.
"""

import base64
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from protos.push.v1.push_pb2 import AndroidStyle, Message
from services.delivery.channels.webpush.encryption import Subscription, encrypt
from services.delivery.channels.webpush.request import SMALL_BODY_BYTES, WebPushRequest, urgency, web_push_text
from services.delivery.channels.webpush.vapid import VapidHeaders
from services.domain.channel_credentials.webpush import WebPushCredentials
from services.domain.push_endpoints import AllowedHosts, parse_endpoint
from services.process.clock import ManualClock

TURNS = 5
NOW_MS = 1_800_000_000_000
EXPIRES_MS = NOW_MS + 86_400_000
SUBSCRIPTIONS = 100
MESSAGE = Message(
    is_notif=True,
    content="Your order is on its way, and arrives between 9 and 11. " * 3,
    extra="campaign-7",
    android=AndroidStyle(title="News", click_action=2, click_param_json='"https://example.org/orders/7"'),
)
_CURVE = ec.SECP256R1()
Make = Callable[[int], object]
"""Makes the message of a number."""


def subscriptions() -> list[Subscription]:
    points = [ec.generate_private_key(_CURVE).public_key() for _ in range(SUBSCRIPTIONS)]
    return [
        Subscription(
            f"https://updates.push.services.mozilla.com/wpush/v2/{os.urandom(60).hex()}",
            point.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint),
            os.urandom(16),
        )
        for point in points
    ]


def new_credentials(*hosts: str) -> WebPushCredentials:
    """Return an app's new key pair; it may send to these hosts too."""
    key = ec.generate_private_key(_CURVE)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    point = key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    return WebPushCredentials(point, "mailto:push@example.org", pem, AllowedHosts(hosts))


def makers() -> dict[str, Make]:
    """Return what is measured by its name."""
    receivers = subscriptions()
    text = web_push_text(MESSAGE, EXPIRES_MS).push
    plaintext = text.text(7)
    small = web_push_text(MESSAGE, EXPIRES_MS, SMALL_BODY_BYTES).push
    vapid = VapidHeaders(new_credentials(), ManualClock(NOW_MS))
    hosts = AllowedHosts()

    def receiver(number: int) -> Subscription:
        return receivers[number % SUBSCRIPTIONS]

    def floor(number: int) -> object:
        known = ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, receiver(number).p256dh)
        shared = ec.generate_private_key(_CURVE).exchange(ec.ECDH(), known)
        return AESGCM(shared[:16]).encrypt(shared[16:28], plaintext, None)

    def request(number: int) -> object:
        made = WebPushRequest(receiver(number), number, text, small, EXPIRES_MS, urgency(MESSAGE))
        endpoint = parse_endpoint(made.subscription.endpoint)
        hosts.check(endpoint)
        return made.headers(vapid.header(endpoint.origin), NOW_MS), made.body()

    return {
        "Web Push: floor": floor,
        "Web Push: encrypt": lambda number: encrypt(plaintext, receiver(number)),
        "Web Push: request": request,
        **_others(receivers, plaintext),
    }


def _others(receivers: Sequence[Subscription], plaintext: bytes) -> dict[str, Make]:
    """Return other libraries by their names, without those that are not installed."""
    try:
        import http_ece
        import pywebpush
    except ImportError:
        print("left out: pip install pywebpush", file=sys.stderr)
        return {}

    def base64url(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    def by_http_ece(number: int) -> object:
        known = receivers[number % SUBSCRIPTIONS]
        sender = ec.generate_private_key(_CURVE)
        return http_ece.encrypt(
            plaintext,
            salt=os.urandom(16),
            private_key=sender,
            dh=known.p256dh,
            auth_secret=known.auth,
            version="aes128gcm",
        )

    def by_pywebpush(number: int) -> object:
        known = receivers[number % SUBSCRIPTIONS]
        keys = {"p256dh": base64url(known.p256dh), "auth": base64url(known.auth)}
        return pywebpush.WebPusher({"endpoint": known.endpoint, "keys": keys}).encode(plaintext, "aes128gcm")

    return {"Web Push: http_ece": by_http_ece, "Web Push: pywebpush": by_pywebpush}


def measure(messages: int) -> list[dict[str, Any]]:
    """Return messages a second and microseconds of CPU time of each, by the median of the turns."""
    made = makers()
    seconds: dict[str, list[float]] = {name: [] for name in made}
    for turn in range(TURNS):
        for name, make in made.items():
            begun = time.process_time()
            for number in range(turn * messages, (turn + 1) * messages):
                make(number)
            seconds[name].append((time.process_time() - begun) / messages)
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    return [{"name": name, "per_s": round(1 / each), "cpu_us": round(each * 1e6, 1)} for name, each in medians.items()]

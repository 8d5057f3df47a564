"""Sending messages to push services over TLS, one process for each client, on a core of its own where there are two.

    python -m bench.channels.sending CLIENT PORT CERTIFICATE MESSAGES

Prints {"seconds", "cpu_us"} as JSON. `Web Push`, `FCM`, `HMS` and the other vendors of phones are all that delivery
does from a message and an address to the answer: the text, its encryption or JSON, headers, the request and what its
answer says. Requests of HMS, Honor and Xiaomi are for many devices, because all messages are of one push. `floor`
writes requests of the same size that were made before, over as many connections as Web Push has, and looks for the end
of each answer.
"""

import asyncio
import base64
import json
import os
import resource
import ssl
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import uvloop

from bench.channels.making import EXPIRES_MS, MESSAGE, new_credentials, subscriptions
from bench.channels.server import Server
from protos.push.v1.push_pb2 import SendPush
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID
from services.delivery.channels import PushEncoder, PushService, Recipient, RetryHistory, Sender
from services.delivery.channels.fcm.sender import FcmEndpoint, FcmSenderPool
from services.delivery.channels.fcm.service import FcmService
from services.delivery.channels.hms.service import HmsEndpoint, hms_service
from services.delivery.channels.webpush.encryption import encrypt
from services.delivery.channels.webpush.sender import CONNECTIONS, PushServices
from services.delivery.channels.webpush.service import WebPushService
from services.delivery.state.pushes import StartedPush
from services.domain.channel_credentials.hms import HmsCredentials
from services.domain.endpoint_connections import EndpointConnector, SystemResolver
from services.fcm_simulator.accounts import new_account
from services.process.clock import SystemClock
from testkit.delivery.vendors import VENDORS

IN_FLIGHT = 500
WARM_UP = 300
DEADLINE_S = 300
_PEER_SHARE = 20
"""pywebpush, one request after the other, sends this part of the messages."""

Client = Callable[[int], Awaitable[None]]
"""Sends so many messages, and returns once all are answered."""


class _Sent:
    """A message on its way, which tells its answer to the run."""

    def __init__(self, run: "_Run", request: Any) -> None:
        self.request = request
        self._run = run

    def is_wanted(self) -> bool:
        return True

    def answered(self, answer: Any) -> None:
        if not 200 <= answer.status < 300:
            print(answer, file=sys.stderr)
            os._exit(1)
        self._run.answered()

    def skipped(self) -> None:
        raise AssertionError("every message is wanted")


class _Run:
    """Sends `count` messages, IN_FLIGHT at a time; `done` is set once all are answered."""

    def __init__(
        self,
        encoder: PushEncoder[Any, Any],
        sender: Sender[Any, Any],
        to: list[Recipient],
        credentials: Any,
        msgid: int | None,
    ) -> None:
        """`msgid`: of all messages; None: each has its own."""
        self.done = asyncio.Event()
        self._encoder, self._sender, self._to, self._credentials = encoder, sender, to, credentials
        self._msgid = msgid
        self._left = self._unanswered = 0

    async def send(self, count: int) -> None:
        self._left = self._unanswered = count
        self.done.clear()
        for _ in range(min(IN_FLIGHT, count)):
            self._submit()
        await self.done.wait()

    def answered(self) -> None:
        self._unanswered -= 1
        if self._left:
            self._submit()
        elif not self._unanswered:
            self.done.set()

    def _submit(self) -> None:
        self._left -= 1
        recipient = self._to[self._left % len(self._to)]
        msgid = self._left if self._msgid is None else self._msgid
        request = self._encoder.encode(msgid, recipient, self._credentials).request
        self._sender.submit(_Sent(self, request))


def _service(
    service: PushService[Any, Any, Any], credentials: Any, to: list[Recipient], msgid: int | None = None
) -> Client:
    service.open(lambda appkey: True)
    send = SendPush(msgid=1, appkey="1", platform=PLATFORM_ANDROID, message=MESSAGE)
    encoder = service.encoder(StartedPush(send, 0, EXPIRES_MS))
    return _Run(encoder, service.sender(credentials, RetryHistory()), to, credentials, msgid).send


def web_push(port: int, certificate: str) -> Client:
    clock = SystemClock()
    tls = ssl.create_default_context(cafile=certificate)
    keys: Any = None  # the credentials are not sealed
    service = WebPushService(lambda: PushServices(EndpointConnector(SystemResolver(), tls), clock), keys, clock)
    to = [
        Recipient("1", 0, number, f"https://127.0.0.1:{port}/wpush/v2/{number}", p256dh=each.p256dh, auth=each.auth)
        for number, each in enumerate(subscriptions())
    ]
    return _service(service, new_credentials(f"127.0.0.1:{port}"), to)


def fcm(port: int, certificate: str) -> Client:
    clock = SystemClock()
    with open(certificate) as file:
        endpoint = FcmEndpoint(f"https://127.0.0.1:{port}", f"https://127.0.0.1:{port}/token", file.read())
    account = new_account("bench")
    service = FcmService(lambda: FcmSenderPool(endpoint, clock), lambda app: account, clock)
    to = [Recipient("1", 0, number, f"c{os.urandom(8).hex()}:{os.urandom(67).hex()}") for number in range(100)]
    return _service(service, account, to)


def hms(port: int, certificate: str) -> Client:
    clock = SystemClock()
    with open(certificate) as file:
        endpoint = HmsEndpoint(f"https://127.0.0.1:{port}", f"https://127.0.0.1:{port}/token", file.read())
    client = HmsCredentials("bench", "secret", "bench")
    service = hms_service(lambda: endpoint, lambda app: client, clock)
    to = [Recipient("1", 0, number, f"IQ{os.urandom(64).hex()}") for number in range(100)]
    return _service(service, client, to, msgid=1)


def vendor(name: str) -> Callable[[int, str], Client]:
    """Return what makes the client of a vendor of phones."""

    def made(port: int, certificate: str) -> Client:
        case, clock, url = VENDORS[name], SystemClock(), f"https://127.0.0.1:{port}"
        with open(certificate) as file:
            at = SimpleNamespace(url=url, token_url=f"{url}/token", authority=file.read())
        to = [Recipient("1", 0, number, os.urandom(32).hex()) for number in range(100)]
        return _service(case.service(at, lambda app: case.account, clock), case.account, to, msgid=1)

    return made


class _FloorConnection(asyncio.Protocol):
    """Writes the same request again as soon as the answer before has ended."""

    def __init__(self, request: bytes, next_request: Callable[[], bool]) -> None:
        self._request = request
        self._next_request = next_request
        self._read = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._write()

    def data_received(self, data: bytes) -> None:
        self._read += data
        if self._read.endswith(b"\r\n\r\n"):
            assert self._read.startswith(b"HTTP/1.1 201 "), self._read
            self._read = b""
            self._write()

    def _write(self) -> None:
        if self._next_request():
            self._transport.write(self._request)
        else:
            self._transport.close()


def floor(port: int, certificate: str) -> Client:
    tls = ssl.create_default_context(cafile=certificate)
    body = encrypt(b"x" * 400, subscriptions()[0])
    head = f"POST /wpush/v2/1 HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-length: {len(body)}\r\n"
    request = (head + f"authorization: vapid t={'x' * 280}\r\nttl: 3600\r\n\r\n").encode() + body

    async def send(count: int) -> None:
        written = 0
        closed = 0
        done = asyncio.Event()

        def next_request() -> bool:
            nonlocal written, closed
            if written < count:
                written += 1
                return True
            closed += 1
            if closed == CONNECTIONS:
                done.set()
            return False

        loop = asyncio.get_running_loop()
        make = lambda: _FloorConnection(request, next_request)  # noqa: E731
        await asyncio.gather(*(loop.create_connection(make, "127.0.0.1", port, ssl=tls) for _ in range(CONNECTIONS)))
        await done.wait()

    return send


def pywebpush(port: int, certificate: str) -> Client:
    import pywebpush as library
    from cryptography.hazmat.primitives import serialization
    from py_vapid import Vapid

    session = library.requests.Session()
    session.trust_env = False  # else REQUESTS_CA_BUNDLE goes before `verify`
    session.verify = certificate
    key = serialization.load_pem_private_key(new_credentials().key_pem.encode(), None)
    vapid = Vapid(key)
    to = [
        {
            "endpoint": f"https://127.0.0.1:{port}/wpush/v2/{number}",
            "keys": {"p256dh": _base64url(each.p256dh), "auth": _base64url(each.auth)},
        }
        for number, each in enumerate(subscriptions())
    ]

    async def send(count: int) -> None:
        for number in range(count):
            library.webpush(
                to[number % len(to)],
                MESSAGE.content,
                vapid_private_key=vapid,
                vapid_claims={"sub": "mailto:push@example.org"},
                ttl=3600,
                requests_session=session,
            )

    return send


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


CLIENTS: dict[str, Callable[[int, str], Client]] = {
    "floor": floor,
    "Web Push": web_push,
    "FCM": fcm,
    "HMS": hms,
    "Honor": vendor("honor"),
    "Xiaomi": vendor("xiaomi"),
    "OPPO": vendor("oppo"),
    "vivo": vendor("vivo"),
    "pywebpush": pywebpush,
}


def measure(messages: int, to: Server) -> list[dict[str, Any]]:
    """Return messages a second and microseconds of CPU time of each client."""
    rows = []
    for name in CLIENTS:
        if name == "pywebpush" and not all(map(find_spec, ("pywebpush", "aiohttp"))):
            print("left out: pip install pywebpush", file=sys.stderr)
            continue
        count = max(1, messages // _PEER_SHARE) if name == "pywebpush" else messages
        command = [sys.executable, "-m", "bench.channels.sending", name, str(to.tls_port), str(to.certificate)]
        done = subprocess.run(
            [*command, str(count)],
            stdout=subprocess.PIPE,
            check=True,
            timeout=DEADLINE_S,
            preexec_fn=lambda: os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]}),
        )
        measured = json.loads(done.stdout)
        rows.append({"name": name, "per_s": round(count / measured["seconds"]), "cpu_us": measured["cpu_us"]})
    return rows


async def _measure(name: str, port: int, certificate: str, messages: int) -> dict[str, float]:
    send = CLIENTS[name](port, certificate)
    for count in (1, min(WARM_UP, messages)):
        await send(count)
    cpu_s, began_s = _cpu_s(), time.perf_counter()
    await send(messages)
    seconds = time.perf_counter() - began_s
    return {"seconds": seconds, "cpu_us": round((_cpu_s() - cpu_s) / messages * 1e6, 1)}


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    _, name, port, certificate, messages = sys.argv
    print(json.dumps(uvloop.run(_measure(name, int(port), certificate, int(messages)))), flush=True)
    os._exit(0)  # open connections and their tasks end with the process

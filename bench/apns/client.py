"""One APNs client that sends pushes to a server and prints the cost; `bench.apns` runs this process for each client.

    python -m bench.apns.client CLIENT URL CERTIFICATE PUSHES PREFIX

Prints {"seconds", "cpu_us", "statuses"} as JSON. Every client keeps up to IN_FLIGHT pushes in flight, on uvloop.
"""

import asyncio
import io
import json
import resource
import ssl
import sys
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import uvloop

from services.apns_simulator.keys import new_key
from services.delivery.channels.apns.provider_tokens import ProviderToken
from services.delivery.channels.apns.request import ApnsPush, ApnsResult
from services.delivery.channels.apns.sender import ApnsSender
from services.domain.apns_credentials import ApnsCredentials
from services.process.clock import SystemClock

IN_FLIGHT = 200
TOPIC = "org.example.app"
PAYLOAD = json.dumps({"aps": {"alert": {"title": "Carillon", "body": "x" * 240}}}).encode()
WARM_UP = 300
_IDS = uuid.UUID(int=0)
Client = Callable[[int], Awaitable[Counter[int]]]


class _BenchPush:
    """A push of Carillon's sender, which reports its result to the run."""

    def __init__(self, run: "_Run", push: ApnsPush) -> None:
        self.request = push
        self._run = run

    def is_wanted(self) -> bool:
        return True

    def answered(self, result: ApnsResult) -> None:
        self._run.answered(result.status)

    def skipped(self) -> None:
        raise AssertionError("no push expires in this benchmark")


class _Run:
    """Sends `count` pushes with Carillon's sender, IN_FLIGHT at a time; `done` is set once all are answered."""

    def __init__(self, sender: ApnsSender, count: int, prefix: str) -> None:
        self.statuses: Counter[int] = Counter()
        self.done = asyncio.Event()
        self._sender = sender
        self._next, self._count, self._prefix = 0, count, prefix
        for _ in range(min(IN_FLIGHT, count)):
            self._submit()

    def answered(self, status: int) -> None:
        self.statuses[status] += 1
        if self._next < self._count:
            self._submit()
        elif self.statuses.total() == self._count:
            self.done.set()

    def _submit(self) -> None:
        token = device_token(self._prefix, self._next)
        self._next += 1
        push = ApnsPush(token, TOPIC, PAYLOAD, self._next, 1_900_000_000_000, collapse_id="1")
        self._sender.submit(_BenchPush(self, push))


def carillon(url: str, certificate: str, prefix: str, key: str) -> Client:
    credentials = ApnsCredentials("KEYID12345", "TEAMID1234", TOPIC, key)
    clock = SystemClock()
    with open(certificate) as file:
        sender = ApnsSender(url, ProviderToken(credentials, clock), clock, file.read(), connections=1)

    async def send(count: int) -> Counter[int]:
        run = _Run(sender, count, prefix)
        await run.done.wait()
        return run.statuses

    return send


def aioapns(url: str, certificate: str, prefix: str, key: str) -> Client:
    from aioapns import APNs, NotificationRequest
    from aioapns.connection import APNsProductionClientProtocol as Protocol

    place = urlsplit(url)
    Protocol.APNS_SERVER, Protocol.APNS_PORT = place.hostname, place.port
    client = APNs(
        key=key,
        key_id="KEYID12345",
        team_id="TEAMID1234",
        topic=TOPIC,
        max_connections=1,
        ssl_context=_trust(certificate),
    )
    message = json.loads(PAYLOAD)

    async def send_one(number: int) -> int:
        request = NotificationRequest(device_token=device_token(prefix, number), message=message, collapse_key="1")
        return int((await client.send_notification(request)).status)

    return _by_tasks(send_one)


def wreq(url: str, certificate: str, prefix: str, key: str) -> Client:
    from wreq import Client as Wreq
    from wreq.tls import CertStore

    with open(certificate) as file:
        client = Wreq(tls_verify=CertStore.from_pem_certs([file.read()]), http2_only=True, no_proxy=True)

    async def send_one(number: int) -> int:
        token = device_token(prefix, number)
        answer = await client.post(f"{url}/3/device/{token}", body=PAYLOAD, headers=_headers(number, token))
        await answer.bytes()
        return int(answer.status.as_int())

    return _by_tasks(send_one)


def pycurl(url: str, certificate: str, prefix: str, key: str) -> Client:
    """Return a client of libcurl's multi_socket interface, driven by the event loop."""
    import pycurl as curl

    loop = asyncio.get_running_loop()
    multi = curl.CurlMulti()
    multi.setopt(curl.M_PIPELINING, curl.PIPE_MULTIPLEX)
    multi.setopt(curl.M_MAX_HOST_CONNECTIONS, 1)
    multi.setopt(curl.M_MAX_CONCURRENT_STREAMS, IN_FLIGHT)
    timers: list[asyncio.TimerHandle] = []
    answered: list[Callable[[Any, int], None]] = []

    def act(descriptor: int, what: int) -> None:
        multi.socket_action(descriptor, what)
        collect()

    def collect() -> None:
        left = 1
        while left:
            left, done, failed = multi.info_read(IN_FLIGHT)
            for easy, status in [(easy, easy.getinfo(curl.RESPONSE_CODE)) for easy in done] + [
                (easy, 0) for easy, *_ in failed
            ]:
                multi.remove_handle(easy)
                answered[0](easy, status)

    def watch(what: int, descriptor: int, _multi: Any, _data: Any) -> None:
        loop.remove_reader(descriptor)
        loop.remove_writer(descriptor)
        if what in (curl.POLL_IN, curl.POLL_INOUT):
            loop.add_reader(descriptor, act, descriptor, curl.CSELECT_IN)
        if what in (curl.POLL_OUT, curl.POLL_INOUT):
            loop.add_writer(descriptor, act, descriptor, curl.CSELECT_OUT)

    def wake(timeout_ms: int) -> None:
        while timers:
            timers.pop().cancel()
        if timeout_ms >= 0:
            timers.append(loop.call_later(timeout_ms / 1000, act, curl.SOCKET_TIMEOUT, 0))

    multi.setopt(curl.M_SOCKETFUNCTION, watch)
    multi.setopt(curl.M_TIMERFUNCTION, wake)
    bodies: dict[Any, io.BytesIO] = {}

    def handle() -> Any:
        easy = curl.Curl()
        easy.setopt(curl.HTTP_VERSION, curl.CURL_HTTP_VERSION_2_0)
        easy.setopt(curl.PIPEWAIT, 1)
        easy.setopt(curl.CAINFO, certificate)
        easy.setopt(curl.TIMEOUT, 20)
        return easy

    handles = [handle() for _ in range(IN_FLIGHT)]

    async def send(count: int) -> Counter[int]:
        statuses: Counter[int] = Counter()
        finished = asyncio.Event()
        numbers = iter(range(count))

        def start(easy: Any) -> None:
            number = next(numbers, None)
            if number is None:
                return
            token = device_token(prefix, number)
            body = bodies[easy] = io.BytesIO()
            easy.setopt(curl.URL, f"{url}/3/device/{token}")
            easy.setopt(curl.HTTPHEADER, [f"{name}: {value}" for name, value in _headers(number, token).items()])
            easy.setopt(curl.POSTFIELDS, PAYLOAD)
            easy.setopt(curl.WRITEDATA, body)
            multi.add_handle(easy)

        def on_answer(easy: Any, status: int) -> None:
            statuses[status] += 1
            loop.call_soon(start, easy)
            if statuses.total() == count:
                finished.set()

        answered[:] = [on_answer]
        for easy in handles:
            start(easy)
        await finished.wait()
        return statuses

    return send


CLIENTS: dict[str, Callable[[str, str, str, str], Client]] = {
    "carillon": carillon,
    "wreq": wreq,
    "pycurl": pycurl,
    "aioapns": aioapns,
}


def device_token(prefix: str, number: int) -> str:
    return f"{prefix}{number:0{64 - len(prefix)}x}"


def _by_tasks(send_one: Callable[[int], Awaitable[int]]) -> Client:
    """Return a client that keeps IN_FLIGHT tasks, each of which sends one push after the other."""

    async def send(count: int) -> Counter[int]:
        statuses: Counter[int] = Counter()
        numbers = iter(range(count))

        async def worker() -> None:
            for number in numbers:
                statuses[await send_one(number)] += 1

        await asyncio.gather(*(worker() for _ in range(min(IN_FLIGHT, count))))
        return statuses

    return send


def _trust(certificate: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificate)
    context.set_alpn_protocols(["h2"])
    return context


def _headers(number: int, token: str) -> dict[str, str]:
    return {
        "authorization": "bearer " + "x" * 180,
        "apns-topic": TOPIC,
        "apns-push-type": "alert",
        "apns-priority": "10",
        "apns-expiration": "1900000000",
        "apns-id": str(uuid.uuid5(_IDS, f"{number}/{token}")),
        "apns-collapse-id": "1",
    }


async def _measure(name: str, url: str, certificate: str, pushes: int, prefix: str) -> dict[str, Any]:
    send = CLIENTS[name](url, certificate, prefix, new_key())
    for count in (1, WARM_UP):
        await send(count)
    cpu_s, began_s = _cpu_s(), time.perf_counter()
    statuses = await send(pushes)
    seconds = time.perf_counter() - began_s
    return {"seconds": seconds, "cpu_us": (_cpu_s() - cpu_s) / pushes * 1e6, "statuses": statuses}


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    name, url, certificate, pushes, prefix = sys.argv[1:]
    print(json.dumps(uvloop.run(_measure(name, url, certificate, int(pushes), prefix))), flush=True)
    sys.stdout.flush()

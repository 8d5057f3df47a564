"""Virtual iOS devices: they register over HTTP and receive the pushes accepted for them by the APNs simulator."""

import asyncio
import contextlib
import json
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any

import httpx

from carillon.commands.role_calls import call_all_instances
from protos.delivery.v1.virtual_pb2 import WatchRequest, WatchResponse
from protos.delivery.v1.virtual_pb2_grpc import VirtualPhonesServiceStub
from services.domain.settings import Port, Settings
from services.errors import CarillonError
from services.net.http.client_address import url_host
from services.net.rpc.channel import Channel

Frame = Mapping[str, Any]
Show = Callable[[int, Any], None]
"""Called with a device's index, from 1, and an event to print."""

_TIMEOUT_S = 30
_CONCURRENT_REGISTRATIONS = 50
_CODE_ATTEMPTS = 3
_CODE_TIMEOUT_S = 65
"""Time to wait for a code: the service pushes one a minute to a token, and the last one may have gone elsewhere."""


class VirtualDeviceSettings(Settings, frozen=True, kw_only=True):
    """The address of the v2 interface."""

    v2_port: Port = 8300

    def url(self) -> str:
        return f"http://{url_host(self.host)}:{self.v2_port}/device/v1"


class VirtualDevice:
    """One virtual iOS device. `opens`: it reports an app open after each push, like a user who taps on it.

    It acknowledges pushes that carry their message id, and reports that it showed them.
    """

    def __init__(
        self,
        http: httpx.AsyncClient,
        url: str,
        identity: Mapping[str, str],
        show: Callable[[Any], None],
        *,
        opens: bool,
    ) -> None:
        self._http = http
        self._url = url
        self._identity = dict(identity)
        self._show = show
        self._opens = opens
        self._code: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def register(self, attributes: Mapping[str, str], requests: Sequence[Frame]) -> None:
        """Register, then send the requests. CarillonError: the registration was refused.

        A token that is registered already has no key here, so the device waits for the code that is pushed to it.
        """
        hello = {"type": "hello", "device": attributes}
        welcome = await self._request(hello)
        self._show(welcome)
        for _ in range(_CODE_ATTEMPTS):
            if welcome.get("reason") == "possession":
                welcome = await self._request(hello | await self._pushed_code())
                self._show(welcome)
        if welcome["type"] != "welcome":
            raise CarillonError(f"the device was refused: {welcome.get('desc')}")
        self._identity["key"] = welcome["key"]
        for request in requests:
            self._show({**await self._request(request), "request": request["type"]})

    async def _pushed_code(self) -> dict[str, str]:
        """Return the field `code` for the next hello; {} after a timeout, so that the hello asks for another code."""
        try:
            return {"code": await asyncio.wait_for(asyncio.shield(self._code), _CODE_TIMEOUT_S)}
        except TimeoutError:
            return {}

    async def receive(self, push: WatchResponse) -> None:
        payload = json.loads(push.payload)
        own = payload.get("carillon", {})
        if "code" in own:
            self._show({"type": "code", "headers": dict(push.headers)})
            if not self._code.done():
                self._code.set_result(own["code"])
            return
        self._show({"type": "push", "payload": payload, "headers": dict(push.headers)})
        if "key" not in self._identity:
            return
        for frame in self._told(own.get("msgid"), is_shown="alert" in payload["aps"]):
            answer = await self._request(frame)
            self._show({**answer, "request": frame["type"]})

    def _told(self, msgid: int | None, *, is_shown: bool) -> Iterator[Frame]:
        """Yield what an app tells of a push: that it came and was shown, and that the user tapped it and opened it."""
        if msgid is not None:
            yield {"type": "ack", "msgids": [msgid]}
            if is_shown:
                yield {"type": "report", "event": "shown", "msgid": msgid}
                if self._opens:
                    yield {"type": "report", "event": "clicked", "msgid": msgid}
        if self._opens:
            yield {"type": "activity", "event": "open"}

    async def _request(self, frame: Frame) -> dict[str, Any]:
        try:
            response = await self._http.post(self._url, json={**frame, **self._identity})
            answer = response.json()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise CarillonError(f"no answer from {self._url}: {error or type(error).__name__}") from None
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or "type" not in answer:
            raise CarillonError(f"{self._url} answered HTTP {response.status_code}, and no frame")
        return answer


def run_virtual_devices(
    url: str,
    appkey: str,
    tokens: Sequence[str],
    attributes: Mapping[str, str],
    requests: Sequence[Frame],
    show: Show,
    closed: Callable[[], Coroutine[Any, Any, None]],
    *,
    opens: bool,
) -> None:
    """Run the devices until a signal, or until `closed` returns: then nobody reads the output. `url`: POST /device/v1.

    Errors are those of `call_all_instances`.
    """

    async def live(channels: Sequence[Channel]) -> None:
        async with httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False) as http:
            devices = {
                token.lower(): VirtualDevice(
                    http, url, {"appkey": appkey, "token": token}, _of(show, index), opens=opens
                )
                for index, token in enumerate(tokens, 1)
            }
            await _until_stopped(_live(devices, channels, attributes, requests), closed())

    call_all_instances("delivery", live)


def new_tokens(count: int) -> list[str]:
    """Generate random device tokens in Apple's format: 64 hexadecimal digits."""
    return [secrets.token_hex(32) for _ in range(count)]


def _of(show: Show, index: int) -> Callable[[Any], None]:
    return lambda event: show(index, event)


async def _until_stopped(running: Coroutine[Any, Any, None], closed: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(running)
    watch = asyncio.create_task(closed)
    watch.add_done_callback(lambda _: task.cancel())
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await task
    finally:
        watch.cancel()


async def _live(
    devices: Mapping[str, VirtualDevice],
    channels: Sequence[Channel],
    attributes: Mapping[str, str],
    requests: Sequence[Frame],
) -> None:
    """Watch for pushes before registering, so that none is missed."""
    try:
        async with asyncio.TaskGroup() as tasks:
            watching = [asyncio.Event() for _ in channels]
            for channel, started in zip(channels, watching, strict=True):
                tasks.create_task(_watch(channel, devices, started))
            for started in watching:
                await started.wait()
            slots = asyncio.Semaphore(_CONCURRENT_REGISTRATIONS)
            for device in devices.values():
                tasks.create_task(_register(device, attributes, requests, slots))
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


async def _register(
    device: VirtualDevice, attributes: Mapping[str, str], requests: Sequence[Frame], slots: asyncio.Semaphore
) -> None:
    async with slots:
        await device.register(attributes, requests)


async def _watch(channel: Channel, devices: Mapping[str, VirtualDevice], started: asyncio.Event) -> None:
    """Hand pushes to their devices. The first response only confirms that the watch has started."""
    async for push in VirtualPhonesServiceStub(channel).Watch(_watch_request(list(devices))):
        if started.is_set():
            await devices[push.token.lower()].receive(push)
        started.set()


async def _watch_request(tokens: Sequence[str]) -> AsyncIterator[WatchRequest]:
    """Send one request and keep the stream open."""
    yield WatchRequest(tokens=tokens)
    await asyncio.Event().wait()

"""Virtual iOS devices: they register over HTTP and get what the stand-in for Apple's service took for them."""

import asyncio
import contextlib
import json
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any

import httpx

from carillon.commands.connect import reach_all
from protos.delivery.v1.virtual_pb2 import WatchRequest, WatchResponse
from protos.delivery.v1.virtual_pb2_grpc import VirtualPhonesServiceStub
from services.runtime.errors import CarillonError
from services.runtime.process.settings import Port, Settings
from services.runtime.rpc.transport import Channel

Frame = Mapping[str, Any]
Show = Callable[[int, Any], None]

_TIMEOUT_S = 30
_AT_ONCE = 50
"""Devices that register at the same time."""


class PhoneSettings(Settings, frozen=True, kw_only=True):
    """Where the v2 door listens."""

    v2_port: Port = 8300

    def url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104
        return f"http://{f'[{host}]' if ':' in host else host}:{self.v2_port}/device/v1"


class Phone:
    """One virtual device. `opens`: it says that the app was opened after each push, as a user does who taps on it."""

    def __init__(
        self, http: httpx.AsyncClient, url: str, who: Mapping[str, str], show: Callable[[Any], None], *, opens: bool
    ) -> None:
        self._http = http
        self._url = url
        self._who = dict(who)
        self._show = show
        self._opens = opens

    async def register(self, attributes: Mapping[str, str], wishes: Sequence[Frame]) -> None:
        """CarillonError: the door refuses it."""
        welcome = await self._say({"type": "hello", "device": attributes})
        self._show(welcome)
        if welcome["type"] != "welcome":
            raise CarillonError(f"the device was refused: {welcome.get('desc')}")
        self._who["key"] = welcome["key"]
        for wish in wishes:
            self._show({**await self._say(wish), "request": wish["type"]})

    async def got(self, push: WatchResponse) -> None:
        self._show({"type": "push", "payload": json.loads(push.payload), "headers": dict(push.headers)})
        if self._opens and "key" in self._who:
            answer = await self._say({"type": "activity", "event": "open"})
            self._show({**answer, "request": "activity"})

    async def _say(self, frame: Frame) -> dict[str, Any]:
        try:
            response = await self._http.post(self._url, json={**frame, **self._who})
            answer = response.json()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise CarillonError(f"no answer from {self._url}: {error or type(error).__name__}") from None
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or "type" not in answer:
            raise CarillonError(f"{self._url} answered HTTP {response.status_code}, and no frame")
        return answer


def run_phones(
    url: str,
    appkey: str,
    tokens: Sequence[str],
    attributes: Mapping[str, str],
    wishes: Sequence[Frame],
    show: Show,
    *,
    opens: bool,
) -> None:
    """Run them until a signal comes, as `reach` calls; the door at `url` is POST /device/v1."""

    async def live(channels: Sequence[Channel]) -> None:
        async with httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False) as http:
            phones = {
                token.lower(): Phone(http, url, {"appkey": appkey, "token": token}, _of(show, index), opens=opens)
                for index, token in enumerate(tokens, 1)
            }
            await _until_signal(_live(phones, channels, attributes, wishes))

    reach_all("delivery", live)


def new_tokens(count: int) -> list[str]:
    """Such as Apple gives: 64 hexadecimal digits."""
    return [secrets.token_hex(32) for _ in range(count)]


def _of(show: Show, index: int) -> Callable[[Any], None]:
    return lambda event: show(index, event)


async def _until_signal(life: Coroutine[Any, Any, None]) -> None:
    living = asyncio.create_task(life)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, living.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await living


async def _live(
    phones: Mapping[str, Phone], channels: Sequence[Channel], attributes: Mapping[str, str], wishes: Sequence[Frame]
) -> None:
    """Watch first, so that no push is missed, then register."""
    try:
        async with asyncio.TaskGroup() as tasks:
            watching = [asyncio.Event() for _ in channels]
            for channel, begun in zip(channels, watching, strict=True):
                tasks.create_task(_watch(channel, phones, begun))
            for begun in watching:
                await begun.wait()
            slots = asyncio.Semaphore(_AT_ONCE)
            for phone in phones.values():
                tasks.create_task(_register(phone, attributes, wishes, slots))
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


async def _register(
    phone: Phone, attributes: Mapping[str, str], wishes: Sequence[Frame], slots: asyncio.Semaphore
) -> None:
    async with slots:
        await phone.register(attributes, wishes)


async def _watch(channel: Channel, phones: Mapping[str, Phone], begun: asyncio.Event) -> None:
    """The first response says that nothing is missed from now on."""
    async for push in VirtualPhonesServiceStub(channel).Watch(_asked(list(phones))):
        if begun.is_set():
            await phones[push.token.lower()].got(push)
        begun.set()


async def _asked(tokens: Sequence[str]) -> AsyncIterator[WatchRequest]:
    yield WatchRequest(tokens=tokens)
    await asyncio.Event().wait()
